"""Models for the doctor to ask, which answer as they are asked to."""

from __future__ import annotations

from aiohttp import web
from aiohttp.test_utils import TestServer


async def answer_as_asked(request: web.Request) -> web.Response:
    assert "k3y-k3y-k3y" in str(request.headers)
    return web.Response(status=int(request.match_info["status"]), headers={"Location": "/200/v1/models"})


def make_models() -> TestServer:
    """Models whose answer stands in their address: they take no key below `/401`."""
    application = web.Application()
    application.router.add_get("/{status}/v1/models", answer_as_asked)
    return TestServer(application)
