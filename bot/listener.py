"""The HTTP server: accepts connections, limits their number and their waiting times, and closes without a leak.

It does not know how requests are answered.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import structlog
from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD

log = structlog.get_logger()

BACKLOG = 128
"""Connections that the kernel queues until they are accepted. This is also aiohttp's default."""

MAX_CONNECTIONS = 4_000
"""The most open connections. If half of the process's limit of open files is lower, that is used instead."""

HEAD_S = 10.0
"""How long the head of a connection's first request may take to arrive, in seconds.

GitHub waits no longer than this for a complete response.
"""

MAX_HEAD = 65_536
"""After this many bytes, aiohttp gets an incomplete head, and rejects its lines and fields if they are too long."""

IDLE_S = 75.0
"""How long a connection may wait for its next request, in seconds: longer than most proxies keep a connection."""

STALL_S = 30.0
"""The time in which a client must receive some of the data sent to it, in seconds. Live logs use the same value."""

SETTLED_S = 0.1
"""The age in seconds after which an idle connection, or one with an incomplete request, may be closed for a new one."""

MAX_WAITING = 2
"""The most queued requests of one connection. aiohttp would keep up to 32, with 2 MB of headers each."""

PIECE_BYTES = 4096
"""The most bytes that aiohttp gets at once outside of bodies, because it parses everything that it gets."""

HEAD_END = b"\r\n\r\n"

WARN_S = 60.0
"""The shortest time between two warnings about rejected connections, in seconds."""

_TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 21\r\nConnection: close\r\n\r\ntoo many connections\n"
)


def raise_file_limit() -> None:
    """Raise the process's limit of open files as far as allowed, but not above four times `MAX_CONNECTIONS`.

    Each HTTP or SSH connection needs an open file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, 4 * MAX_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _count_allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft // 2)


class HttpListener:
    """Listens after `open`. `close` may be called more than once."""

    def __init__(
        self,
        application: web.Application,
        grace_s: float,
        *,
        max_connections: int | None = None,
        head_s: float = HEAD_S,
        stall_s: float = STALL_S,
        settled_s: float = SETTLED_S,
    ) -> None:
        self._runner = web.AppRunner(application, shutdown_timeout=grace_s)
        self._max_connections = max_connections or _count_allowed()
        self._head_s = head_s
        self._stall_s = stall_s
        self._settled_s = settled_s
        self._server: asyncio.Server | None = None
        self._arriving: set[_Arriving] = set()
        self._idle: dict[web.RequestHandler, float] = {}
        """Idle connection -> time of the last received data or sent response; the longest idle first."""
        self._unfinished: dict[_Arriving | web.RequestHandler, float] = {}
        """Connection with an incomplete request -> time when the request began; the oldest first."""
        self._warned_at = float("-inf")

    async def open(self, host: str, port: int) -> str:
        """Start to listen, and return the address as a URL. Raises `OSError` if the address is not available."""
        await self._runner.setup()
        assert self._runner.server is not None
        self._answer = self._runner.server.request_handler
        self._runner.server.request_handler = self._handle
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Arriving(self), host, port, backlog=BACKLOG)
        name, number = self._server.sockets[0].getsockname()[:2]
        return f"http://{f'[{name}]' if ':' in name else name}:{number}"

    async def close(self) -> None:
        """Stop accepting connections, finish current requests within the grace period, and close the rest."""
        if self._server is not None:
            # asyncio leaks a connection if its server is closed between the accept and the loop's next pass (3.11:
            # `Server._attach` asserts). So stop accepting one pass before closing.
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
            await asyncio.sleep(0)
            self._server.close()
        for arriving in list(self._arriving):
            arriving.abort()
        await self._runner.cleanup()

    def _bound_stalls(self, transport: asyncio.BaseTransport) -> None:
        """Make the kernel close a connection whose client receives none of the data sent to it.

        Only Linux can do this. On other systems the connection stays open.
        """
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(self._stall_s * 1000)
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def _admit(self, arriving: _Arriving) -> float | None:
        """The seconds that a new connection has for its first head; None if it must be rejected.

        At the limit, a connection that waits for its client is closed instead. Its client can open a new one.
        """
        assert self._runner.server is not None
        count = len(self._arriving) + len(self._runner.server.connections)
        if count >= self._max_connections and not self._make_room():
            now = asyncio.get_running_loop().time()
            if now >= self._warned_at + WARN_S:
                self._warned_at = now
                log.warning("listener.full", connections=self._max_connections)
            return None
        self._arriving.add(arriving)
        self._unfinished[arriving] = asyncio.get_running_loop().time()
        return self._head_s

    def _forget(self, arriving: _Arriving) -> None:
        self._arriving.discard(arriving)
        self._unfinished.pop(arriving, None)

    def _forget_unfinished(self, connection: web.RequestHandler) -> None:
        self._unfinished.pop(connection, None)

    def _make_room(self) -> bool:
        """Close the connection that has been idle for the longest, or else the one with the oldest incomplete request.

        Returns False if every connection is busy or newer than `settled_s`.
        """
        now = asyncio.get_running_loop().time()
        waits: list[dict[Any, float]] = [self._idle, self._unfinished]
        for waiting in waits:
            connection, since = next(iter(waiting.items()), (None, now))
            if connection is not None and now - since >= self._settled_s:
                del waiting[connection]
                if connection.transport is not None:
                    connection.transport.abort()  # `close` would wait until the client has received everything.
                return True
        return False

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        self._idle.pop(connection, None)
        if has_no_length(request.headers):
            refusal = web.Response(status=411, text="a body needs a Content-Length\n")
            refusal.force_close()
            return refusal
        if not request.content.is_eof():
            self._unfinished[connection] = asyncio.get_running_loop().time()
            request.content.on_eof(partial(self._forget_unfinished, connection))
        try:
            return await self._answer(request)
        finally:
            self._forget_unfinished(connection)

    def _make_handler(self) -> asyncio.Protocol:
        assert self._runner.server is not None
        return _Connection(self._runner.server, self._idle)


def has_no_length(headers: Mapping[str, str]) -> bool:
    """Whether a request's body comes in chunks. Such bodies are refused unread, because each chunk takes aiohttp some
    time, and a chunk can have one byte. GitHub, browsers and forwarders send a `Content-Length`."""
    return hdrs.TRANSFER_ENCODING in headers


def find_size(unparsed: bytearray, missing: int) -> int:
    """How many bytes aiohttp gets next: all that is `missing` of a body, or else the next head, or a piece of it.

    The blank lines that may precede a head are passed on together, because each piece takes some microseconds.
    """
    if missing > 0:
        return missing
    end = -1 if unparsed.startswith(b"\r\n") else unparsed.find(HEAD_END, 0, PIECE_BYTES)
    return PIECE_BYTES if end < 0 else end + len(HEAD_END)


class _Arriving(asyncio.Protocol):
    """A connection before the head of its first request is complete. Then aiohttp takes over.

    aiohttp limits the time between two requests (`keepalive_timeout`), but not the time before the first one.
    """

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._head = bytearray()
        self.transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._listener._bound_stalls(transport)
        head_s = self._listener._admit(self)
        if head_s is None:
            self.transport.write(_TURNED_AWAY)
            self.transport.close()
            return
        self._timer = asyncio.get_running_loop().call_later(head_s, self.abort)

    def data_received(self, data: bytes) -> None:
        if self._timer is None or self.transport is None:
            return
        # The blank line after the head may arrive in two parts.
        searched = max(len(self._head) - 3, 0)
        self._head += data
        if self._head.find(HEAD_END, searched) < 0 and len(self._head) < MAX_HEAD:
            return
        self._end()
        handler = self._listener._make_handler()
        self.transport.set_protocol(handler)
        handler.connection_made(self.transport)
        handler.data_received(bytes(self._head))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def abort(self) -> None:
        """Close the connection without a response, because it has no complete request."""
        self._end()
        if self.transport is not None:
            self.transport.abort()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._listener._forget(self)


class _Connection(web.RequestHandler):
    """aiohttp's protocol for a connection. It also stores since when the connection is idle."""

    def __init__(self, server: web.Server, idle: dict[web.RequestHandler, float]) -> None:
        # Compressed bodies are rejected because of their header, so do not decompress them before.
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own runner accepts None, and passes it on.
            auto_decompress=False,
            keepalive_timeout=IDLE_S,
        )
        self._now = loop.time
        self._idle = idle
        self._unparsed = bytearray()
        """What comes after aiohttp has paused. It goes on with a call of `data_received` without data."""
        self._body, self._body_bytes = EMPTY_PAYLOAD, 0
        """The newest body and its length in bytes. A part of the body may still have to arrive."""
        self._is_refused = False
        """A request on this connection has no length. Nothing after its head is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Idle until a request is handled, because the data so far may be only empty lines.
        self._idle[self] = self._now()

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp goes on with what it has.
            super().data_received(data)
        self._unparsed += data
        while self._unparsed and not (self._reading_paused or self._is_refused or self._is_ahead()):
            size = find_size(self._unparsed, self._body_bytes - self._body.total_bytes)
            piece = bytes(self._unparsed[:size])
            del self._unparsed[:size]
            super().data_received(piece)
            for message, body in self._messages:
                if not isinstance(message, RawRequestMessage):
                    continue
                if has_no_length(message.headers):
                    self._is_refused = True
                    body.feed_eof()  # Otherwise aiohttp waits for the end of the body.
                elif body is not EMPTY_PAYLOAD:
                    # `CONNECT` has a body of unknown length.
                    self._body, self._body_bytes = body, int(message.headers.get(hdrs.CONTENT_LENGTH, 0))
        if self._is_refused:
            self._unparsed.clear()
        elif self._is_ahead() and self.transport is not None:
            self.transport.abort()
        if self._idle.pop(self, None) is not None:
            self._idle[self] = self._now()

    def _is_ahead(self) -> bool:
        """Whether the client sends more than clients do before they are answered.

        aiohttp would keep what comes behind a request for an upgrade, and parse it at once.
        """
        return len(self._messages) > MAX_WAITING or (self._upgraded and bool(self._unparsed))

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        if self.transport is not None:
            self._idle[self] = self._now()
        return finished

    def connection_lost(self, exc: BaseException | None) -> None:
        self._idle.pop(self, None)
        super().connection_lost(exc)
