"""Forwards bytes between agents and the service. It does not interpret them."""

from __future__ import annotations

import asyncio
import fcntl
import os
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
CLOSED_AFTER_S = 10.0
"""The age of a socket from which on a refusal means that it was closed. sshd makes the file before it listens."""
FLUSH_S = 30.0
"""How long the last bytes may take to reach an agent that reads slowly."""
MAX_CONNECTIONS = 256
"""Connections of agents at the same time; further ones wait in the listener's queue. The service has half as many and
decides itself which of its own gives way, because it knows who has shown the job's token."""
FIRST_BYTES_S = 60.0
"""Seconds in which a new connection must send its first bytes; the service would wait as long."""
BURST, RATE = 100, 20.0
"""Connections to the service at once, and then in each second. Package installers open about fifty at once. All jobs of
a machine share what the service can handle for it, some 250 a second (`runner.transport.paced`)."""


def serve(listener: socket.socket, folder: int) -> None:
    """Forward all connections, forever."""
    asyncio.run(forward(listener, folder))


async def forward(listener: socket.socket, folder: int, first_bytes_s: float = FIRST_BYTES_S) -> None:
    """See `serve`."""
    relay = _Connections(folder, first_bytes_s)
    await asyncio.gather(relay.take_all(listener), relay.keep_to_newest())


class _Endpoint(asyncio.Protocol):
    """One end of a connection: forwards received data to the other end, without a task in between.

    Until there is another end, it keeps its first data and reads no more.
    """

    transport: asyncio.Transport
    other: _Endpoint | None = None

    def __init__(self, begin: Callable[[_Endpoint], None] = lambda one: None) -> None:
        self._begin = begin
        self.first = b""
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        """Done when this end has sent its first data."""
        self.over: asyncio.Future[None] = loop.create_future()
        """Done when this end sends no more data."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._begin(self)

    def join(self, other: _Endpoint) -> None:
        self.other, other.other = other, self

    def data_received(self, data: bytes) -> None:
        if self.other:
            self.other.transport.write(data)
            return
        self.first += data
        self.transport.pause_reading()
        if not self.begun.done():
            self.begun.set_result(None)

    def pause_writing(self) -> None:
        if self.other:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other:
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

    def __init__(self, folder: int, first_bytes_s: float) -> None:
        self._first_bytes_s = first_bytes_s
        self._folder = f"/proc/self/fd/{folder}"
        self._by_name: dict[str, set[asyncio.Transport]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._silent: dict[_Endpoint, None] = {}
        """Those of agents that have not sent anything, the oldest first."""
        self._next_turn = 0.0
        """When the connection to the service after the last one is due. It may be as far back as the burst is long."""

    async def take_all(self, listener: socket.socket) -> None:
        """Handle all new connections of agents, forever."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError:  # The connection is gone again, or this process may open no more files.
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            if self._room.locked() and self._silent:
                reset(next(iter(self._silent)).transport)  # The oldest.
            await self._room.acquire()
            task = loop.create_task(self._forward(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()

    async def _forward(self, accepted: socket.socket) -> None:
        """Hold a connection until the service is there, then forward both directions. Ends it as the service does."""
        _, agent = await asyncio.get_running_loop().connect_accepted_socket(_Endpoint, accepted)
        try:
            if not await self._has_begun(agent):
                return
            await self._wait_for_turn()
            if found := await self._find_service(agent, time.monotonic() + HOLD_S):
                await self._join(agent, *found)
        finally:
            reset(agent.transport)

    async def _has_begun(self, agent: _Endpoint) -> bool:
        """Wait for the first data of an agent: a connection without any must cost the service nothing."""
        self._silent[agent] = None
        try:
            ends = [agent.begun, agent.over]
            await asyncio.wait(ends, timeout=self._first_bytes_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._silent[agent]
        return agent.begun.done()

    async def _wait_for_turn(self) -> None:
        """Wait until the job may open another connection to the service; in order."""
        now = time.monotonic()
        self._next_turn = max(self._next_turn, now - BURST / RATE) + 1 / RATE
        await asyncio.sleep(self._next_turn - now)

    async def _join(self, agent: _Endpoint, name: str, service: _Endpoint) -> None:
        mine = self._by_name.setdefault(name, set())
        mine.add(service.transport)
        try:
            agent.transport.resume_reading()
            service.transport.write(agent.first)  # May pause reading, and so comes after resuming it.
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
                        if time.time() - os.lstat(path).st_mtime > CLOSED_AFTER_S:
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
