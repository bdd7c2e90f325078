"""A relay at work: it passes on what an agent and the service say to each other. It refuses to know what that is."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

HOLD_S = 300.0
"""How long a new connection is held while the service is not there."""
LOOK_EVERY_S = 0.2
FLUSH_S = 30.0
"""How long the last words may take to reach an agent that reads slowly."""


def serve(listener: socket.socket, folder: int) -> None:
    """Pass on every connection that comes, for ever."""
    asyncio.run(_serve(listener, folder))


async def _serve(listener: socket.socket, folder: int) -> None:
    relay = _Connections(folder)
    server = await asyncio.get_running_loop().create_server(lambda: _End(relay.take), sock=listener)
    await asyncio.gather(server.serve_forever(), relay.keep_to_newest())


class _End(asyncio.Protocol):
    """One end of a connection: what is said here is said on at the other end. No task stands in between."""

    transport: asyncio.Transport
    other: _End

    def __init__(self, begin: Callable[[_End], None]) -> None:
        self._begin = begin
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once nothing more is said here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._begin(self)

    def join(self, other: _End) -> None:
        self.other, other.other = other, self

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class _Connections:
    """What is under way, by the socket that it goes by."""

    def __init__(self, folder: int) -> None:
        self._folder = f"/proc/self/fd/{folder}"
        self._by_name: dict[str, set[asyncio.Transport]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, agent: _End) -> None:
        """Look after a connection of an agent from here on."""
        loop = asyncio.get_running_loop()
        loop.call_soon(agent.transport.pause_reading)  # Until Python 3.10 a new transport reads even if it is paused.
        task = loop.create_task(self._pass_on(agent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, agent: _End) -> None:
        """Hold a connection until the service is there, then pass on what both say. Ends it as the service does."""
        try:
            if found := await self._find_service(agent, time.monotonic() + HOLD_S):
                await self._join(agent, *found)
        finally:
            break_off(agent.transport)

    async def _join(self, agent: _End, name: str, service: _End) -> None:
        mine = self._by_name.setdefault(name, set())
        mine.add(service.transport)
        try:
            agent.transport.resume_reading()
            await asyncio.wait([agent.over, service.over], return_when=asyncio.FIRST_COMPLETED)
            if service.over.done():
                await flush(agent.transport)
        finally:
            mine.discard(service.transport)
            service.transport.abort()

    async def keep_to_newest(self) -> None:
        """Break off what goes by an older socket once there is a newer one: behind the older nobody is left."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            names = self._list_names()
            for name in [name for name in self._by_name if names and name != names[0]]:
                for transport in self._by_name.pop(name):
                    transport.abort()

    async def _find_service(self, agent: _End, deadline: float) -> tuple[str, _End] | None:
        loop = asyncio.get_running_loop()
        while time.monotonic() < deadline:
            for name in self._list_names():
                path = f"{self._folder}/{name}"
                try:
                    return name, (await loop.create_unix_connection(lambda: _End(agent.join), path))[1]
                except ConnectionRefusedError:
                    with suppress(OSError):  # Its service is gone, and comes back with another one.
                        Path(path).unlink()
                except OSError:
                    continue
            await asyncio.sleep(LOOK_EVERY_S)
        return None

    def _list_names(self) -> list[str]:
        """The service's sockets, the newest first."""
        with suppress(OSError):
            return sorted((path.name for path in Path(self._folder).iterdir()), reverse=True)
        return []


async def flush(transport: asyncio.Transport) -> None:
    """Wait until the other side has what was sent: to break off a connection loses what is still on its way."""
    deadline = time.monotonic() + FLUSH_S
    while count_unsent(transport) and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.005)


def count_unsent(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not confirmed; none where it is gone (tcp(7), SIOCOUTQ)."""
    with suppress(OSError):
        sent = transport.get_extra_info("socket").fileno()
        queued: int = struct.unpack("i", fcntl.ioctl(sent, termios.TIOCOUTQ, b"\0" * 4))[0]
        return queued + transport.get_write_buffer_size()
    return 0


def break_off(transport: asyncio.Transport) -> None:
    """End a connection so that the other side cannot take it for an end that was meant (socket(7), SO_LINGER)."""
    with suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
