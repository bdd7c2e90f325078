"""Forwards bytes between agents and the service. It does not interpret them."""

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
"""How long a new connection waits for the service."""
LOOK_EVERY_S = 0.2
FLUSH_S = 30.0
"""How long the last bytes may take to reach an agent that reads slowly."""


def serve(listener: socket.socket, folder: int) -> None:
    """Forward all connections, forever."""
    asyncio.run(_serve(listener, folder))


async def _serve(listener: socket.socket, folder: int) -> None:
    relay = _Connections(folder)
    server = await asyncio.get_running_loop().create_server(lambda: _Endpoint(relay.take), sock=listener)
    await asyncio.gather(server.serve_forever(), relay.keep_to_newest())


class _Endpoint(asyncio.Protocol):
    """One end of a connection: forwards received data to the other end, without a task in between."""

    transport: asyncio.Transport
    other: _Endpoint

    def __init__(self, begin: Callable[[_Endpoint], None]) -> None:
        self._begin = begin
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when this end sends no more data."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._begin(self)

    def join(self, other: _Endpoint) -> None:
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
    """The open connections, by the socket that they use."""

    def __init__(self, folder: int) -> None:
        self._folder = f"/proc/self/fd/{folder}"
        self._by_name: dict[str, set[asyncio.Transport]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, agent: _Endpoint) -> None:
        """Handle a new connection of an agent."""
        loop = asyncio.get_running_loop()
        loop.call_soon(agent.transport.pause_reading)  # Up to Python 3.10, a paused new transport reads.
        task = loop.create_task(self._forward(agent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, agent: _Endpoint) -> None:
        """Hold a connection until the service is there, then forward both directions. Ends it as the service does."""
        try:
            if found := await self._find_service(agent, time.monotonic() + HOLD_S):
                await self._join(agent, *found)
        finally:
            reset(agent.transport)

    async def _join(self, agent: _Endpoint, name: str, service: _Endpoint) -> None:
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
        """Abort connections that use an older socket once there is a newer one: nobody serves the older socket."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            names = self._list_names()
            for name in [name for name in self._by_name if names and name != names[0]]:
                for transport in self._by_name.pop(name):
                    transport.abort()

    async def _find_service(self, agent: _Endpoint, deadline: float) -> tuple[str, _Endpoint] | None:
        loop = asyncio.get_running_loop()
        while time.monotonic() < deadline:
            for name in self._list_names():
                path = f"{self._folder}/{name}"
                try:
                    return name, (await loop.create_unix_connection(lambda: _Endpoint(agent.join), path))[1]
                except ConnectionRefusedError:
                    with suppress(OSError):  # The service closed this socket; it will open another one.
                        Path(path).unlink()
                except OSError:
                    continue
            await asyncio.sleep(LOOK_EVERY_S)
        return None

    def _list_names(self) -> list[str]:
        """The service's sockets, newest first."""
        with suppress(OSError):
            return sorted((path.name for path in Path(self._folder).iterdir()), reverse=True)
        return []


async def flush(transport: asyncio.Transport) -> None:
    """Wait until the other side has confirmed all data; an abort would lose the rest."""
    deadline = time.monotonic() + FLUSH_S
    while count_unsent(transport) and time.monotonic() < deadline:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.005)


def count_unsent(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not confirmed; 0 if it is gone (tcp(7), SIOCOUTQ)."""
    with suppress(OSError):
        sent = transport.get_extra_info("socket").fileno()
        queued: int = struct.unpack("i", fcntl.ioctl(sent, termios.TIOCOUTQ, b"\0" * 4))[0]
        return queued + transport.get_write_buffer_size()
    return 0


def reset(transport: asyncio.Transport) -> None:
    """Abort a connection so that the other side sees an error and not a normal end (socket(7), SO_LINGER)."""
    with suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
