"""Where requests come in: it listens, and closes without losing a connection that was just being taken.

It refuses to know what is answered.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

BACKLOG = 128
"""Connections that may wait to be taken; aiohttp's own number."""


class Listener:
    """Listens from `open` on; `close` may be called again."""

    def __init__(self, application: web.Application, grace_s: float) -> None:
        # Compressed bodies are refused by their header; nothing may be unpacked before that.
        self._runner = web.AppRunner(application, access_log=None, auto_decompress=False, shutdown_timeout=grace_s)
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> str:
        """The address that it listens at. Raises `OSError` when it is not to be had."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        assert self._runner.server is not None
        self._server = await loop.create_server(self._runner.server, host, port, backlog=BACKLOG)
        name, number = self._server.sockets[0].getsockname()[:2]
        return f"http://{f'[{name}]' if ':' in name else name}:{number}"

    async def close(self) -> None:
        """Take no more connections, let requests in hand be answered for as long as the grace lasts, end the rest."""
        if self._server is not None:
            # A connection whose server is closed between its accept and the next turn is leaked by asyncio (3.11:
            # `Server._attach` asserts); so nothing more is accepted for one turn before.
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
            await asyncio.sleep(0)
            self._server.close()
        await self._runner.cleanup()
