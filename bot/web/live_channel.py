"""One live log: read and rendered once in this process for all its readers.

The newest rendered part is kept, up to a limit. A reader is only a position in it, so slow and returning readers cost
nothing. The stream also carries the state of the job.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from bot.web.job_logs import JobLogs
from handlers.text.live_transcript import LiveTranscript, Told
from handlers.text.log_redactor import MAX_HELD
from runner.model.job import Job
from runner.steps.loops import Listener
from runner.steps.spool import CHECK, GROWING, STAGES, Spool

log = structlog.get_logger()

KEEP_ALIVE_S = 15.0
"""A comment is sent after so much silence, because proxies close silent connections."""

BEHIND = 262_144
"""A new channel renders at most this many bytes of an existing log."""

KEPT = 524_288
"""The characters of rendered log that are kept for slow and returning readers."""

SENT = 65_536
"""The characters of an event after which it is sent without waiting for more."""

LOOK_S = 2.0
"""The interval between database queries for the job's state."""

PACE_S = 0.1
"""The least time between two renderings of a growing log."""

CHUNK = 262_144
"""The bytes that are read at once."""

OVER = "over"
"""The last event of a stream."""

_LINE_END = re.compile(r"\r\n|\r|\n")
"""The line ends of an event stream."""


def encode(event: str, html: str, offset: int | None = None) -> bytes:
    """Encode one server-sent event. Line ends in its text cannot end the event's data.

    https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """
    head = f"event: {event}\n" if offset is None else f"event: {event}\nid: {offset}\n"
    data = "".join(f"data: {line}\n" for line in _LINE_END.split(html))
    return f"{head}{data}\n".encode()


def may_read(stage: str, *, reads_log: bool) -> bool:
    """Whether a visitor of a job may read the log of this stage. The log of the service's checks is always readable."""
    return reads_log or stage == CHECK


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one moment, as its readers may see it."""

    job: Job
    is_withheld: bool
    """Whether nothing of the job may be shown."""
    parts: Mapping[str, str]
    """Event -> HTML of a changing part of the page; only `gone` if the job is withheld."""


@dataclass(slots=True)
class Reader:
    """The position of one reader."""

    offset: int
    reads_log: bool = True
    """Whether they may read logs. Other readers get only the job's state."""
    parts: dict[str, bytes] = field(default_factory=dict)


class Channel:
    """The live log of one stage of a job, for all its readers."""

    def __init__(
        self,
        look: Callable[[str], Awaitable[JobView]],
        draw: Callable[..., str],
        spool: Spool,
        logs: JobLogs,
        job: Job,
        stage: str,
    ) -> None:
        """`look` fetches the state of a job; `draw` renders a template."""
        self._look, self._draw = look, draw
        self._spool, self._logs = spool, logs
        self._job, self.stage = job, stage
        self._told: deque[tuple[int, str]] = deque()
        self._size = 0
        self._forgotten = 0
        """The offset up to which the log is no longer kept."""
        self._parts: dict[str, bytes] = {}
        self._made: tuple[int, int, bytes] = (0, 0, b"")
        """The last log event with its two offsets: usually all readers need the same one."""
        self._last: Mapping[bool, bytes] | None = None
        """The last event for readers who have received everything else, by whether they may read logs."""
        self._news = asyncio.Event()
        self.readers = 0

    async def run(self) -> None:
        """Read and render until the log is complete."""
        try:
            with self._spool.watch(self._job.id) as listener:
                await self._follow(listener)
        except Exception:
            log.exception("live_log.failed", job=self._job.id, stage=self.stage)
            self.end()

    def end(self, last: Mapping[bool, bytes] | None = None) -> None:
        """End every stream after its reader has received everything. Without `last`, readers reconnect."""
        self._last = last or {True: b"", False: b""}
        self._tell_all()

    async def stream(self, reader: Reader) -> AsyncIterator[bytes]:
        """The events that a reader has not received, as they occur, and comments during silence."""
        while True:
            news, last = self._news, self._last
            for event in self._catch_up(reader):
                yield event
            if last is not None:
                yield last[reader.reads_log]
                return
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await news.wait()
            except TimeoutError:
                yield b": still here\n\n"

    def _catch_up(self, reader: Reader) -> Iterator[bytes]:
        if may_read(self.stage, reads_log=reader.reads_log):
            yield from self._catch_up_log(reader)
        for name, event in [*self._parts.items()]:
            if reader.parts.get(name) != event:
                reader.parts[name] = event
                yield event

    def _catch_up_log(self, reader: Reader) -> Iterator[bytes]:
        if reader.offset < self._forgotten:
            reader.offset = self._forgotten
            yield encode("log", self._draw("left_out.html", job=self._job, stage=self.stage), reader.offset)
        while later := self._find_later(reader.offset):
            began, reader.offset = reader.offset, later[-1][0]
            if self._made[:2] != (began, reader.offset):
                self._made = began, reader.offset, encode("log", "".join(html for _, html in later), reader.offset)
            yield self._made[2]

    def _find_later(self, offset: int) -> Sequence[tuple[int, str]]:
        """The next rendered parts after an offset, as much as one event should hold."""
        found: list[tuple[int, str]] = []
        for piece in reversed(self._told):
            if piece[0] <= offset:
                break
            found.append(piece)
        found.reverse()
        size = 0
        for count, (_, html) in enumerate(found, 1):
            size += len(html)
            if size > SENT:
                return found[:count]
        return found

    async def _follow(self, listener: Listener) -> None:
        transcript, read_to = await self._begin()
        clock, looked_at, view = asyncio.get_running_loop().time, 0.0, None
        while True:
            if view is None or clock() >= looked_at + LOOK_S:
                looked_at = clock()
                view = await self._look(self._job.id)
                self._note_parts(view)
            # If the stage has ended, its log is complete.
            is_over = self._is_over(view.job)
            if not view.is_withheld:
                read_to = await self._render_news(transcript, read_to, view.job, is_over)
            if view.is_withheld or is_over:
                self.end({reads_log: self._render_end(view, reads_log=reads_log) for reads_log in (True, False)})
                return
            await asyncio.sleep(PACE_S)
            await listener.wait(max(looked_at + LOOK_S - clock(), 0.0))

    async def _begin(self) -> tuple[LiveTranscript, int]:
        """Render the end of the log, but not all of a long one."""
        kept = await self._logs.fetch_kept(self._job.id, self.stage)
        size = self._spool.offset(self._job.id, self.stage) if kept is None else len(kept)
        start = max(size - BEHIND - MAX_HELD, 0)
        self._forgotten = start + MAX_HELD if start else 0
        return self._logs.open_transcript(self._job, self.stage, start), start

    def _is_over(self, job: Job) -> bool:
        return not job.active or STAGES.index(GROWING[job.state]) > STAGES.index(self.stage)

    def _note_parts(self, view: JobView) -> None:
        """Note changed parts of the job. If it is withheld now, nothing else is sent."""
        if view.is_withheld:
            self._told.clear()
            self._parts.clear()
        self._parts |= {name: encode(name, html) for name, html in view.parts.items()}
        self._tell_all()

    async def _render_news(self, transcript: LiveTranscript, read_to: int, job: Job, is_over: bool) -> int:
        """Render the new part of the log. Returns the new offset."""
        kept = None if job.active else await self._logs.fetch_kept(job.id, self.stage)
        while chunk := self._read(kept, read_to):
            read_to += len(chunk)
            self._keep(await asyncio.to_thread(self._render, transcript.feed, chunk))
        if is_over:
            self._keep(await asyncio.to_thread(self._render, transcript.finish))
        return read_to

    def _read(self, kept: bytes | None, offset: int) -> bytes:
        if kept is not None:
            return kept[offset : offset + CHUNK]
        return self._spool.read_from(self._job.id, self.stage, offset, CHUNK)

    def _render(self, tell: Callable[..., Sequence[Told]], *chunk: bytes) -> list[tuple[int, str]]:
        told = tell(*chunk)
        return [(one.end, self._draw("entries.html", entries=one.entries)) for one in told if one.entries]

    def _keep(self, rendered: Sequence[tuple[int, str]]) -> None:
        self._told.extend(rendered)
        self._size += sum(len(html) for _, html in rendered)
        while self._size > KEPT and len(self._told) > 1:
            self._forgotten, html = self._told.popleft()
            self._size -= len(html)
        if rendered:
            self._tell_all()

    def _render_end(self, view: JobView, *, reads_log: bool) -> bytes:
        over = encode(OVER, "")
        if view.is_withheld:
            return over
        after = STAGES[STAGES.index(self.stage) + 1 :]
        for stage in after if view.job.active else ():
            if stage == GROWING[view.job.state] or self._spool.offset(self._job.id, stage):
                shown = may_read(stage, reads_log=reads_log)
                values = {"job": view.job, "stage": stage, "entries": (), "live_from": 0}
                values |= {"is_shown": shown, "is_open": True}
                section = self._draw("log_section.html", **values)
                return encode("next", section) + over
        return encode("end", self._draw("ended.html", job=view.job)) + over

    def _tell_all(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
