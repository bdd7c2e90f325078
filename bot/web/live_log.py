"""`GET /jobs/{id}/log/{stage}/events`: a growing log and the state of its job, as server-sent events.

The `id` of an event is the offset in the log where its reader continues. `Pages` decides who may read, and decides it
again each time a stream reconnects. The beginning of a stream waits in the queue of pages, because it costs as much as
a page.

The stream of an ended job says only that the job has ended. Its log is on the job's page.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from aiohttp import web

from bot.web.auth.headers import HEADERS, refuse_busy
from bot.web.auth.page_queue import PageQueue
from bot.web.job_logs import JobLogs
from bot.web.live_channel import Channel, JobView, Reader
from bot.web.shares import NoRoom, Shares
from runner.model.job import Job
from runner.steps.spool import STAGES, Spool

MAX_STREAMS = 1_000
"""The most readers in this process."""

SHARE_OF_PERSON = 0.03
"""The most that one signed-in person can use, as a part of all streams. Nobody reads so many tabs."""

STALL_S = 30.0
"""A reader that cannot receive an event for this many seconds is dropped. Its browser reconnects at the same offset."""

LASTS_S = 900.0
"""How long a stream lasts. The browser then reconnects, and permissions are checked again."""

RETRY_MS = 2_000
"""How long a browser waits before it reconnects."""


@dataclass(frozen=True, slots=True)
class LiveLogCallbacks:
    """The functions of `Pages` that decide who may read, and what a job looks like."""

    find: Callable[[web.Request], Awaitable[tuple[str | None, Job, bool]]]
    """Returns the visitor's login (or None), the job, and whether the visitor may read its log.

    Raises `web.HTTPException`.
    """
    look: Callable[[str], Awaitable[JobView]]
    """Fetches the current state of a job."""
    draw: Callable[..., str]
    """Renders the template of this name with these values."""


def read_offset(request: web.Request) -> int:
    """The offset where the stream continues: `Last-Event-ID` if a browser reconnects, or else `from` in the address.

    0 if the offset is not valid.
    """
    told = request.headers.get("Last-Event-ID") or request.query.get("from", "")
    return int(told) if re.fullmatch(r"[0-9]{1,15}", told) else 0


@dataclass(frozen=True, slots=True)
class _Begun:
    """A request for a stream."""

    login: str | None
    job: Job
    stage: str
    reads_log: bool
    view: JobView | None
    """The current state of the job. None if a channel already follows it."""

    @property
    def key(self) -> tuple[str, str, bool]:
        """The key of the channel."""
        return self.job.id, self.stage, self.reads_log


class LiveLogs:
    """The handler of streams, with the channels of the logs that have readers.

    A log has one channel for people who may read logs, and another one for other people.
    """

    def __init__(
        self,
        decided: LiveLogCallbacks,
        queue: PageQueue,
        spool: Spool,
        logs: JobLogs,
        max_streams: int = MAX_STREAMS,
        *,
        people_sign_in: bool = False,
    ) -> None:
        """With `people_sign_in`, half of the streams are reserved for signed-in people."""
        self._decided, self._queue, self._spool, self._logs = decided, queue, spool, logs
        self._streams = Shares(max_streams, SHARE_OF_PERSON, people_sign_in=people_sign_in)
        self._channels: dict[tuple[str, str, bool], tuple[Channel, asyncio.Task[None]]] = {}
        self._is_closing = False

    def route(self) -> web.RouteDef:
        """The route of the stream."""
        return web.get("/jobs/{id}/log/{stage}/events", self.show, allow_head=False)

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Stream a log from an offset until it ends or the reader disconnects.

        A reader who may not read the log gets only the state of the job.
        """
        begun = await self._queue.make(request, lambda: self._begin(request))
        if self._is_closing:
            raise _refuse_stream()
        try:
            with self._streams.take(begun.login):
                return await self._stream(request, begun)
        except NoRoom:
            raise _refuse_stream() from None

    async def _begin(self, request: web.Request) -> _Begun:
        (login, job, reads_log), stage = await self._decided.find(request), request.match_info["stage"]
        if stage not in STAGES:
            raise web.HTTPNotFound(text="this job has no such log\n", headers=HEADERS)
        begun = _Begun(login, job, stage, reads_log, None)
        return begun if begun.key in self._channels else replace(begun, view=await self._decided.look(job.id))

    async def _stream(self, request: web.Request, begun: _Begun) -> web.StreamResponse:
        # `X-Accel-Buffering` tells nginx not to buffer the answer.
        headers = {**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        async with self._join(begun) as channel:
            await response.prepare(request)
            await _send_all(request, response, channel, Reader(read_offset(request)))
        return response

    async def close(self, _: object = None) -> None:
        """End all streams when the service stops. New ones are refused."""
        self._is_closing = True
        for channel, _task in self._channels.values():
            channel.end()

    @asynccontextmanager
    async def _join(self, begun: _Begun) -> AsyncIterator[Channel]:
        """The channel of a log. A channel exists while it has readers."""
        key, job = begun.key, begun.job
        if key not in self._channels:
            values = (self._decided.look, self._decided.draw, self._spool, self._logs, job, begun.stage)
            channel = Channel(*values, reads_log=begun.reads_log)
            self._channels[key] = channel, asyncio.create_task(channel.run(begun.view), name=f"live log of {job.id}")
        channel, task = self._channels[key]
        channel.readers += 1
        try:
            yield channel
        finally:
            channel.readers -= 1
            if not channel.readers:
                del self._channels[key]
                task.cancel()


def _refuse_stream() -> web.HTTPException:
    return refuse_busy("too many live logs are open", 30)


async def _send_all(request: web.Request, response: web.StreamResponse, channel: Channel, reader: Reader) -> None:
    with suppress(TimeoutError, ConnectionError):
        await response.write(f"retry: {RETRY_MS}\n\n".encode())
        async with asyncio.timeout(LASTS_S):
            async for event in channel.stream(reader):
                if event:
                    await _send(request, response, event)


async def _send(request: web.Request, response: web.StreamResponse, event: bytes) -> None:
    try:
        async with asyncio.timeout(STALL_S):
            await response.write(event)
    except TimeoutError:
        if request.transport:
            request.transport.abort()  # Otherwise, the end of the answer would wait for the client again.
        raise
