"""Somebody between GitHub and the service, like smee.io: answers GitHub at once, whatever becomes of the delivery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from tests.support.world import World


@dataclass
class Forwarder:
    session: aiohttp.ClientSession
    target: str
    url: str = ""
    is_away: bool = False
    """Whether its client, which passes deliveries on, does not run."""
    rewrite: Callable[[bytes], bytes] = bytes
    """What it does to bodies on their way."""
    overheard: Callable[[bytes, dict[str, str]], None] = lambda body, headers: None
    """Hears what comes, as anybody can on a public channel."""
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.overheard(body, _choose(request))
        if not self.is_away:
            task = asyncio.create_task(self._pass_on(body, request))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return web.Response(text="ok")

    async def settle(self) -> None:
        """Wait until all that came so far has been passed on."""
        await asyncio.gather(*self._under_way)

    async def _pass_on(self, body: bytes, request: web.Request) -> None:
        async with self.session.post(self.target, data=self.rewrite(body), headers=_choose(request)):
            pass


def _choose(request: web.Request) -> dict[str, str]:
    """The headers that are passed on."""
    return {name: value for name, value in request.headers.items() if name.startswith(("X-", "Content-Type"))}


@asynccontextmanager
async def open_forwarder(world: World) -> AsyncIterator[Forwarder]:
    """Put one between GitHub and the service, which is restarted with its address."""
    playground = world.playground
    async with aiohttp.ClientSession() as session:
        forwarder = Forwarder(session, f"{playground.service.url}/webhook")
        application = web.Application()
        application.router.add_post("/channel", forwarder.handle)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            forwarder.url = f"http://127.0.0.1:{runner.addresses[0][1]}/channel"
            text = playground.config.read_text()
            playground.config.write_text(text.replace("[server]\n", f'[server]\nwebhook_url = "{forwarder.url}"\n', 1))
            await playground.stop_service()
            await playground.start_service()
            yield forwarder
            await forwarder.settle()
        finally:
            await runner.cleanup()
