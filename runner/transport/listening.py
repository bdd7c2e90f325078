"""Connections that come from a machine: what listens there for us, and two of them made into one.

It refuses to know what passes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import asyncssh

CHUNK = 65_536


class Stream(Protocol):
    """One end of a connection. Every method but `abort` raises `OSError` once it is broken."""

    async def read(self) -> bytes:
        """Some bytes; empty at the end of what the other side has to say."""

    async def write(self, data: bytes) -> None:
        """Send, and wait while the other side does not keep up."""

    async def end(self) -> None:
        """Say that nothing more comes."""

    def abort(self) -> None:
        """Break it off."""


Accept = Callable[[Stream], Awaitable[None]]
"""Works on one connection until it returns."""


class CannotListen(Exception):  # noqa: N818 - what is the case
    """A machine does not let us listen there. The message is a clause for people."""


class Listening(Protocol):
    """Something that listens. It ends with the connection to its machine."""

    @property
    def is_alive(self) -> bool:
        """Whether somebody there can still reach us by it."""

    def close(self) -> None:
        """Listen no more. Connections that are open stay so."""


class LocalStream:
    """A socket of this machine."""

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
    """A connection that sshd passes on to us."""

    def __init__(self, reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes]) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        """See `Stream`."""
        try:
            return await self._reader.read(CHUNK)
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error

    async def write(self, data: bytes) -> None:
        """See `Stream`."""
        try:
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
    """Listens on a machine behind SSH, for as long as the connection to it lives."""

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


class Begun:
    """A connection of which the beginning was looked at."""

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


async def begin(stream: Stream, size: int) -> Begun:
    """Wait for so many bytes, or the end, and look at them. Raises `OSError`."""
    first = b""
    while len(first) < size and (more := await stream.read()):
        first += more
    return Begun(stream, first)


async def join(one: Stream, other: Stream) -> None:
    """Pass on what each says to the other, until one is broken or both have ended. Then both are over."""
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
