"""A network that can be stalled: a TCP proxy on loopback, with an SSH server behind it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import asyncssh

from bot.demo.loopback import ADDRESS, find_free_port
from bot.demo.sshd import EmbeddedSshServer, write_known_hosts


class StallingSshServer:
    """An SSH server with its network. `stall` stops every byte on its way, and lets nobody know; `resume` ends that."""

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedSshServer(folder)
        self.client_key_file = self.server.client_key_file
        self.known_hosts_file = folder / "known_hosts_of_the_proxy"
        self.user = self.server.user
        self.port = find_free_port()
        self._folder = folder
        self._flows = asyncio.Event()
        self._pumps: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        await self.server.start()
        self._flows.set()
        self._listener = await asyncio.start_server(self._connect, ADDRESS, self.port)
        write_known_hosts(self.known_hosts_file, self.port, asyncssh.read_private_key(str(self._folder / "host_key")))

    async def stop(self) -> None:
        """Stop listening, and end every connection."""
        if self._listener:
            self._listener.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self.server.stop()

    async def cut_connections(self) -> None:
        """Break every connection off."""
        await self.server.cut_connections()

    def stall(self) -> None:
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(ADDRESS, self.server.port)
        for source, target in ((reader, there_writer), (there_reader, writer)):
            pump = asyncio.create_task(self._pump(source, target))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(65_536):
                    await self._flows.wait()
                    target.write(data)
                    await target.drain()
        finally:
            target.close()
