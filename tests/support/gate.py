"""A gate in front of a port, at which every connection waits until a test opens it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.support.forward_proxy import join


class Gate:
    """`async with Gate(port)` listens on `port` of its own, and leads to that one."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._waiting: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.arrived = 0
        """How many connections have come so far."""
        self.is_open = False
        """Whether connections from now on need not wait."""

    async def __aenter__(self) -> Gate:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        while not self._waiting.empty():
            self._waiting.get_nowait().set()

    async def meet(self) -> asyncio.Event:
        """Wait for the next connection; what is returned lets it through."""
        return await self._waiting.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.arrived += 1
        if not self.is_open:
            pass_on = asyncio.Event()
            self._waiting.put_nowait(pass_on)
            await pass_on.wait()
        with suppress(OSError):
            await join((reader, writer), await asyncio.open_connection("127.0.0.1", self._behind))
        writer.close()
