"""Connections that can be cut, stalled and refused, between a service and whatever it speaks with."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

ADDRESS = "127.0.0.1"


class Wire:
    """Listens on a port of its own, and passes every connection on to one of some ports."""

    def __init__(self, find_ports: Callable[[], list[int]], draw: random.Random) -> None:
        self._find_ports = find_ports
        self._draw = draw
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, ADDRESS, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection off."""
        for task in self._tasks:
            task.cancel()

    def stall(self) -> None:
        """Let nothing through, and say nothing about it."""
        self._flows.clear()

    def repair(self) -> None:
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._pass_on(reader, writer)
        except* (OSError, asyncio.CancelledError):
            """It was cut, by us or by one of the two; before Python 3.12 `suppress` knows no groups."""
        writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = self._find_ports()
        for port in self._draw.sample(ports, len(ports)):
            with suppress(OSError):
                other_reader, other_writer = await asyncio.open_connection(ADDRESS, port)
                break
        else:
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, other_writer))
                group.create_task(self._copy(other_reader, writer))
        finally:
            other_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()
