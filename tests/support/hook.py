"""Where an operator listens: a real HTTP server that answers as a test tells it to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PATH = "/hooks/T0P-S3CR3T"


@dataclass
class Hook:
    answers: list[int] = field(default_factory=list)
    """HTTP statuses, one a request; 200 when there are no more."""
    heard: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.Response:
        if request.path != PATH:
            self.heard.append({"followed": request.path})
            return web.Response()
        self.heard.append(await request.json())
        status = self.answers.pop(0) if self.answers else 200
        headers = {"Location": "/elsewhere"} if 300 <= status < 400 else {}
        return web.Response(status=status, headers=headers)


@asynccontextmanager
async def open_hook(*answers: int) -> AsyncIterator[Hook]:
    hook = Hook(list(answers))
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", hook.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hook.url = f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}"
        yield hook
    finally:
        await runner.cleanup()
