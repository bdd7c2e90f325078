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
CHUNK = 65_536


def serve(listener: socket.socket, folder: int, is_welcome: Callable[[int, int], bool] | None) -> None:
    """Pass on every connection that comes, for ever."""
    asyncio.run(_serve(listener, folder, is_welcome))


async def _serve(listener: socket.socket, folder: int, is_welcome: Callable[[int, int], bool] | None) -> None:
    relay = _Connections(folder)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
        if is_welcome and not is_welcome(*ports):
            break_off(writer)
            return
        await relay.pass_on(reader, writer)

    server = await asyncio.start_server(handle, sock=listener)
    await asyncio.gather(server.serve_forever(), relay.keep_to_newest())


class _Connections:
    """What is under way, by the socket that it goes by."""

    def __init__(self, folder: int) -> None:
        self._folder = f"/proc/self/fd/{folder}"
        self._by_name: dict[str, set[asyncio.StreamWriter]] = {}

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hold a connection until the service is there, then pass on what both say. Ends it as the service does."""
        found = await self._find_service(time.monotonic() + HOLD_S)
        if not found:
            break_off(writer)
            return
        name, their_reader, their_writer = found
        mine = self._by_name.setdefault(name, set())
        mine.add(their_writer)
        ways = [asyncio.ensure_future(copy(reader, their_writer)), asyncio.ensure_future(copy(their_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if ways[1].done():
                await flush(writer)
        finally:
            mine.discard(their_writer)
            for way in ways:
                way.cancel()
            their_writer.transport.abort()
            break_off(writer)

    async def keep_to_newest(self) -> None:
        """Break off what goes by an older socket once there is a newer one: behind the older nobody is left."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            names = self._list_names()
            for name in [name for name in self._by_name if names and name != names[0]]:
                for writer in self._by_name.pop(name):
                    writer.transport.abort()

    async def _find_service(self, deadline: float) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter] | None:
        while time.monotonic() < deadline:
            for name in self._list_names():
                path = f"{self._folder}/{name}"
                try:
                    return (name, *await asyncio.open_unix_connection(path))
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


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until there is no more, or one side is broken."""
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()


async def flush(writer: asyncio.StreamWriter) -> None:
    """Wait until the other side has what was sent: to break off a connection loses what is still on its way."""
    writer.transport.set_write_buffer_limits(0)
    deadline = time.monotonic() + FLUSH_S
    with suppress(OSError):
        await asyncio.wait_for(writer.drain(), FLUSH_S)
        sent = writer.get_extra_info("socket").fileno()
        while struct.unpack("i", fcntl.ioctl(sent, termios.TIOCOUTQ, b"\0" * 4))[0]:
            await asyncio.sleep(0.005)
            if time.monotonic() > deadline:
                return


def break_off(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the other side cannot take it for an end that was meant (socket(7), SO_LINGER)."""
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
