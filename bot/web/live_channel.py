"""One live log. This process reads and renders it once for all its readers.

The newest rendered part is kept, up to a limit. A reader is only a position in the log, so slow and returning readers
cost nothing. The stream also carries the state of the job.

Anybody can open and close streams, and an agent can write a log that takes long to redact. So a log is rendered only
while it still grows, only for people who may read it, and in a thread that does nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
"""A comment is sent after this many seconds without an event, because proxies close silent connections."""

BEHIND = 262_144
"""The most bytes that a channel renders of the log that exists when the channel begins, and of the rest of the log when
the job ends."""

KEPT = 524_288
"""The most characters of the rendered log that are kept for slow and returning readers."""

SENT = 65_536
"""The number of characters from which on an event is full. The rest of the log is sent in further events."""

LOOK_S = 2.0
"""The interval between database queries for the job's state."""

PACE_S = 0.1
"""The least time between two renderings of a growing log."""

CHUNK = 262_144
"""The most bytes that are read at once."""

OVER = "over"
"""The name of the last event of a stream."""

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="live log")
"""The thread that renders all logs, one piece at a time. A channel has at most one piece waiting for it. A channel that
began after the end of its job has no pieces."""

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
    """Whether a visitor of a job may read the log of this stage. Every visitor may read the log of the checks."""
    return reads_log or stage == CHECK


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one moment, as its readers may see it."""

    job: Job
    is_withheld: bool
    """Whether nothing of the job may be shown."""
    parts: Mapping[str, str]
    """Event -> HTML of a changing part of the page, or the mark of `fetch_offer_mark`.

    If the job is withheld, the only event is `gone`.
    """
    log_parts: Mapping[str, str] = field(default_factory=dict)
    """The parts for people who may read the log."""


@dataclass(slots=True)
class Reader:
    """The position of one reader."""

    offset: int
    parts: dict[str, bytes] = field(default_factory=dict)
    """The last event of each part that the reader has received."""


class Channel:
    """The live log of one stage of a job, for all readers with the same right to its log."""

    def __init__(
        self,
        look: Callable[[str], Awaitable[JobView]],
        draw: Callable[..., str],
        spool: Spool,
        logs: JobLogs,
        job: Job,
        stage: str,
        *,
        reads_log: bool,
    ) -> None:
        """`look` fetches the state of a job. `draw` renders a template.

        Without `reads_log`, the readers get the job's state, and only the log that every visitor may read (`may_read`).
        """
        self._look, self._draw = look, draw
        self._spool, self._logs = spool, logs
        self._job, self.stage, self._reads_log = job, stage, reads_log
        self._transcript: LiveTranscript | None = None
        """None if no log is sent."""
        self._read_to = 0
        self._told: deque[tuple[int, str]] = deque()
        self._size = 0
        self._forgotten = 0
        """The offset up to which the log is no longer kept."""
        self._parts: dict[str, bytes] = {}
        self._made: tuple[int, int, bytes] = (0, 0, b"")
        """The last log event, with the offsets of its beginning and end. Usually all readers need the same event."""
        self._last: bytes | None = None
        """The last event for readers who have received everything else."""
        self._news = asyncio.Event()
        self.readers = 0

    async def run(self, view: JobView | None) -> None:
        """Read and render until the log is complete. `view` is the current state of the job, if already fetched."""
        try:
            with self._spool.watch(self._job.id) as listener:
                await self._follow(listener, view or await self._look(self._job.id))
        except Exception:
            log.exception("live_log.failed", job=self._job.id, stage=self.stage)
            self.end()

    def end(self, last: bytes = b"") -> None:
        """End every stream after its reader has received everything. Without `last`, readers reconnect."""
        self._last = last
        self._tell_all()

    async def stream(self, reader: Reader) -> AsyncIterator[bytes]:
        """The events that a reader has not received, as they occur. During silence, it yields comments."""
        while True:
            news, last = self._news, self._last
            for event in self._catch_up(reader):
                yield event
            if last is not None:
                yield last
                return
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await news.wait()
            except TimeoutError:
                yield b": still here\n\n"

    def _catch_up(self, reader: Reader) -> Iterator[bytes]:
        if self._transcript:
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
        """The rendered parts after an offset, up to the size of one event."""
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

    async def _follow(self, listener: Listener, view: JobView) -> None:
        clock = asyncio.get_running_loop().time
        looked_at = clock()
        self._note_parts(view)
        if view.job.active and may_read(self.stage, reads_log=self._reads_log):
            self._begin()
        while True:
            # This is checked before the log is read: once the stage has ended, its log is complete.
            is_over = self._is_over(view.job)
            is_whole = not view.is_withheld and await self._render_news(view.job, is_over=is_over)
            if view.is_withheld or is_over:
                self.end(self._render_end(view, is_whole=is_whole))
                return
            await asyncio.sleep(PACE_S)
            await listener.wait(max(looked_at + LOOK_S - clock(), 0.0))
            if clock() >= looked_at + LOOK_S:
                looked_at = clock()
                view = await self._look(self._job.id)
                self._note_parts(view)

    def _begin(self) -> None:
        """Begin near the end of the log. The beginning of a long log is not rendered."""
        start = max(self._spool.offset(self._job.id, self.stage) - BEHIND - MAX_HELD, 0)
        self._forgotten = start + MAX_HELD if start else 0
        self._transcript, self._read_to = self._logs.open_transcript(self._job, self.stage, start), start

    def _is_over(self, job: Job) -> bool:
        return not job.active or STAGES.index(GROWING[job.state]) > STAGES.index(self.stage)

    def _note_parts(self, view: JobView) -> None:
        """Note changed parts of the job. If the job is withheld now, nothing else is sent."""
        if view.is_withheld:
            self._told.clear()
            self._parts.clear()
        parts = {**view.parts, **view.log_parts} if self._reads_log else view.parts
        self._parts |= {name: encode(name, html) for name, html in parts.items()}
        self._tell_all()

    async def _render_news(self, job: Job, *, is_over: bool) -> bool:
        """Render the new part of the log. Returns whether all of the log up to now is rendered."""
        if (transcript := self._transcript) is None:
            return False
        if job.active:
            while chunk := self._spool.read_from(self._job.id, self.stage, self._read_to, CHUNK):
                await self._render_aside(transcript.feed, chunk)
        elif len(rest := await self._fetch_rest()) <= BEHIND:
            await self._render_aside(transcript.feed, rest)
        else:
            return False
        if is_over:
            await self._render_aside(transcript.finish)
        return True

    async def _fetch_rest(self) -> bytes:
        """The part of an ended job's log that is not rendered yet, but at most `BEHIND` bytes and one more."""
        kept, end = await self._logs.fetch_kept(self._job.id, self.stage), self._read_to + BEHIND + 1
        if kept is None:
            return self._spool.read_from(self._job.id, self.stage, self._read_to, end - self._read_to)
        return kept[self._read_to : end]

    async def _render_aside(self, tell: Callable[..., Sequence[Told]], *chunk: bytes) -> None:
        self._read_to += sum(map(len, chunk))
        self._keep(await asyncio.get_running_loop().run_in_executor(_THREAD, self._render, tell, *chunk))

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

    def _render_end(self, view: JobView, *, is_whole: bool) -> bytes:
        over = encode(OVER, "")
        if view.is_withheld:
            return over
        after = STAGES[STAGES.index(self.stage) + 1 :]
        for stage in after if view.job.active else ():
            if stage == GROWING[view.job.state] or self._spool.offset(self._job.id, stage):
                shown = may_read(stage, reads_log=self._reads_log)
                values = {"job": view.job, "stage": stage, "entries": (), "live_from": 0}
                values |= {"is_shown": shown, "is_open": True}
                section = self._draw("log_section.html", **values)
                return encode("next", section) + over
        return encode("end", self._draw("ended.html", job=view.job, is_whole=is_whole)) + over

    def _tell_all(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
