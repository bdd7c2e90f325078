"""A webhook as bedevere has it (https://github.com/python/bedevere): gidgethub's check, its router, and an answer.

It stores nothing, and its handler does nothing. Started with the port and the secret.
"""

from __future__ import annotations

import sys

from aiohttp import web
from gidgethub import routing, sansio

router = routing.Router()


@router.register("issue_comment", action="created")
async def ignore(event: sansio.Event) -> None:
    """Do nothing."""


def make_application(secret: str) -> web.Application:
    async def main(request: web.Request) -> web.Response:
        body = await request.read()
        event = sansio.Event.from_http(request.headers, body, secret=secret)
        if event.event == "ping":
            return web.Response(status=200)
        await router.dispatch(event)
        return web.Response(status=200)

    application = web.Application()
    application.router.add_post("/webhook", main)
    return application


if __name__ == "__main__":
    web.run_app(make_application(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
