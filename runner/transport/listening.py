"""Streams and listening sockets on machines, and a function that joins two streams.

This module does not interpret the data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import asyncssh

from runner.transport.machine_connection import make_room

CHUNK = 65_536


class Stream(Protocol):
    """One end of a connection. All methods except `abort` raise `OSError` once it is broken."""

    async def read(self) -> bytes:
        """The next bytes. Empty at the end of the data."""

    async def write(self, data: bytes) -> None:
        """Send data. Wait while the other side does not keep up."""

    async def end(self) -> None:
        """Signal the end of the data."""

    def abort(self) -> None:
        """Close the connection with an error."""


Accept = Callable[[Stream], Awaitable[None]]
"""Handles one connection until it returns."""


class CannotListen(Exception):  # noqa: N818 - a state
    """The machine forbids listening on a socket. The message is a clause for people."""


class Listening(Protocol):
    """A listening socket. It ends with the connection to its machine."""

    @property
    def is_alive(self) -> bool:
        """Whether programs on the machine can still reach the service through the socket."""

    def close(self) -> None:
        """Stop listening. Open connections stay open."""


class LocalStream:
    """A socket on this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        """See `Stream`."""
        return await self._reader.read(CHUNK)

    async def write(self, data: bytes) -> None:
        """See `Stream`."""
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        """See `Stream`."""
        self._writer.write_eof()

    def abort(self) -> None:
        """See `Stream`."""
        self._writer.transport.abort()


class SshStream:
    """A connection that sshd forwards to the service."""

    def __init__(self, reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes]) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        """See `Stream`."""
        try:
            return await self._reader.read(CHUNK)
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error

    async def write(self, data: bytes) -> None:
        """See `Stream`. `drain` waits for the channel's window only, and the machine chooses how large that is."""
        try:
            await make_room(self._writer.channel)
            self._writer.write(data)
            await self._writer.drain()
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error

    async def end(self) -> None:
        """See `Stream`."""
        self._writer.write_eof()

    def abort(self) -> None:
        """See `Stream`."""
        self._writer.channel.abort()


class LocalListening:
    """Listens on this machine."""

    def __init__(self, server: asyncio.AbstractServer) -> None:
        self._server = server

    @property
    def is_alive(self) -> bool:
        """See `Listening`."""
        return self._server.is_serving()

    def close(self) -> None:
        """See `Listening`."""
        self._server.close()


class SshListening:
    """Listens on a machine over SSH, while the connection to it lives."""

    def __init__(self, connection: asyncssh.SSHClientConnection, listener: asyncssh.SSHListener) -> None:
        self._connection, self._listener = connection, listener
        self._is_closed = False

    @property
    def is_alive(self) -> bool:
        """See `Listening`."""
        return not self._is_closed and not self._connection.is_closed()

    def close(self) -> None:
        """See `Listening`."""
        self._is_closed = True
        self._listener.close()


class PeekedStream:
    """A stream whose first bytes have been read already. `read` returns them again."""

    def __init__(self, stream: Stream, first: bytes) -> None:
        self.first = first
        self._stream = stream
        self._unread = first

    async def read(self) -> bytes:
        """See `Stream`."""
        unread, self._unread = self._unread, b""
        return unread or await self._stream.read()

    async def write(self, data: bytes) -> None:
        """See `Stream`."""
        await self._stream.write(data)

    async def end(self) -> None:
        """See `Stream`."""
        await self._stream.end()

    def abort(self) -> None:
        """See `Stream`."""
        self._stream.abort()


async def peek(stream: Stream, size: int) -> PeekedStream:
    """Wait for `size` bytes or the end of the data, without consuming them. Raises `OSError`."""
    first = b""
    while len(first) < size and (more := await stream.read()):
        first += more
    return PeekedStream(stream, first)


async def join(one: Stream, other: Stream) -> None:
    """Copy data in both directions, until one side breaks or both have ended. Then close both."""
    ways = [asyncio.create_task(_pass_on(one, other)), asyncio.create_task(_pass_on(other, one))]
    try:
        await asyncio.gather(*ways)
    except (OSError, EOFError):
        pass
    finally:
        for way in ways:
            way.cancel()
        for stream in (one, other):
            with suppress(OSError):
                stream.abort()


async def _pass_on(source: Stream, target: Stream) -> None:
    while data := await source.read():
        await target.write(data)
    await target.end()
