"""One log that people follow: read and rendered once in this process, whoever follows it.

What was rendered last is kept, as much as is bounded. A reader is no more than a place in it: one that is slow, or
comes back, goes on from there, and costs nothing. How the job stands travels with its log.
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
"""After so much silence a comment is sent: proxies end what is silent."""

BEHIND = 262_144
"""Bytes before the end of a log from which on it is rendered for whoever comes."""

KEPT = 524_288
"""Characters of rendered log that are kept for readers that are slow or come back."""

SENT = 65_536
"""Characters after which an event is sent without waiting for more."""

LOOK_S = 2.0
"""How often the database is asked how a watched job stands."""

PACE_S = 0.1
"""Between two renderings of a log that grows all the time."""

CHUNK = 262_144
"""Bytes of a log that are read at once."""

OVER = "over"
"""The event after which a stream ends for good."""

_LINE_END = re.compile(r"\r\n|\r|\n")
"""What ends a line of a stream of events."""


def encode(event: str, html: str, offset: int | None = None) -> bytes:
    """One server-sent event. Whatever its text holds, it stays within the event's data.

    https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """
    head = f"event: {event}\n" if offset is None else f"event: {event}\nid: {offset}\n"
    data = "".join(f"data: {line}\n" for line in _LINE_END.split(html))
    return f"{head}{data}\n".encode()


def may_read(stage: str, *, reads_log: bool) -> bool:
    """Whether somebody who sees a job may read the log of this stage: that of the service's own checks, always."""
    return reads_log or stage == CHECK


@dataclass(frozen=True, slots=True)
class View:
    """A job as its readers may see it at one moment."""

    job: Job
    is_withheld: bool
    """Whether nothing of it may be shown."""
    parts: Mapping[str, str]
    """The parts of its page that change, as HTML, by the events that carry them; where it is withheld, `gone`."""


@dataclass(slots=True)
class Reader:
    """What one reader has been sent by now."""

    offset: int
    reads_log: bool = True
    """Whether they may read logs; anybody else only gets how the job stands."""
    parts: dict[str, bytes] = field(default_factory=dict)


class Channel:
    """The log of one stage of a job, as everybody sees it who follows it."""

    def __init__(
        self,
        look: Callable[[str], Awaitable[View]],
        draw: Callable[..., str],
        spool: Spool,
        logs: JobLogs,
        job: Job,
        stage: str,
    ) -> None:
        """`look` says how a job stands; `draw` renders a template."""
        self._look, self._draw = look, draw
        self._spool, self._logs = spool, logs
        self._job, self.stage = job, stage
        self._told: deque[tuple[int, str]] = deque()
        self._size = 0
        self._forgotten = 0
        """The offset up to which nothing is kept."""
        self._parts: dict[str, bytes] = {}
        self._made: tuple[int, int, bytes] = (0, 0, b"")
        """The last event that was made, and between which offsets: as a rule all readers are at the same one."""
        self._last: Mapping[bool, bytes] | None = None
        """What ends the stream of readers who have got everything else, by whether they may read logs."""
        self._news = asyncio.Event()
        self.readers = 0

    async def run(self) -> None:
        """Read and render until there will be nothing more."""
        try:
            with self._spool.watch(self._job.id) as listener:
                await self._follow(listener)
        except Exception:
            log.exception("live_log.failed", job=self._job.id, stage=self.stage)
            self.end()

    def end(self, last: Mapping[bool, bytes] | None = None) -> None:
        """Let every reader go once it has got everything. Unless it gets told that all is over, it comes back."""
        self._last = last or {True: b"", False: b""}
        self._tell_all()

    async def stream(self, reader: Reader) -> AsyncIterator[bytes]:
        """Everything that a reader has not got, as it comes; a comment where nothing does for a while."""
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
        """What comes next after an offset: as much as one event should hold."""
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
            # What is over by now has written all that it ever will.
            is_over = self._is_over(view.job)
            if not view.is_withheld:
                read_to = await self._render_news(transcript, read_to, view.job, is_over)
            if view.is_withheld or is_over:
                self.end({reads_log: self._render_end(view, reads_log=reads_log) for reads_log in (True, False)})
                return
            await asyncio.sleep(PACE_S)
            await listener.wait(max(looked_at + LOOK_S - clock(), 0.0))

    async def _begin(self) -> tuple[LiveTranscript, int]:
        """The end of the log is rendered for whoever comes, but not all of a long one."""
        kept = await self._logs.fetch_kept(self._job.id, self.stage)
        size = self._spool.offset(self._job.id, self.stage) if kept is None else len(kept)
        start = max(size - BEHIND - MAX_HELD, 0)
        self._forgotten = start + MAX_HELD if start else 0
        return self._logs.open_transcript(self._job, self.stage, start), start

    def _is_over(self, job: Job) -> bool:
        return not job.active or STAGES.index(GROWING[job.state]) > STAGES.index(self.stage)

    def _note_parts(self, view: View) -> None:
        """What has changed of the job. Of one that is withheld by now nothing else is sent any more."""
        if view.is_withheld:
            self._told.clear()
            self._parts.clear()
        self._parts |= {name: encode(name, html) for name, html in view.parts.items()}
        self._tell_all()

    async def _render_news(self, transcript: LiveTranscript, read_to: int, job: Job, is_over: bool) -> int:
        """Render what the log has grown by since; up to where it is read then."""
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

    def _render_end(self, view: View, *, reads_log: bool) -> bytes:
        over = encode(OVER, "")
        if view.is_withheld:
            return over
        after = STAGES[STAGES.index(self.stage) + 1 :]
        for stage in after if view.job.active else ():
            if stage == GROWING[view.job.state] or self._spool.offset(self._job.id, stage):
                shown = may_read(stage, reads_log=reads_log)
                values = {"job": view.job, "stage": stage, "entries": (), "live_from": 0, "is_shown": shown}
                section = self._draw("log_section.html", **values)
                return encode("next", section) + over
        return encode("end", self._draw("ended.html", job=view.job)) + over

    def _tell_all(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
