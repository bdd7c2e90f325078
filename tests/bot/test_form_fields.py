"""What is read of a form."""

from __future__ import annotations

import aiohttp
from aiohttp import web

from bot.listener import HttpListener
from bot.web.auth.form_fields import read_fields


async def test_texts_are_what_a_database_takes_and_files_are_left_out() -> None:
    async def show(request: web.Request) -> web.Response:
        return web.json_response(await read_fields(request))

    application = web.Application()
    application.router.add_post("/", show)
    listener = HttpListener(application, grace_s=1.0)
    url = await listener.open("127.0.0.1", 0)
    form = aiohttp.FormData([("one", "a\0b"), ("one", "c")])
    form.add_field("file", b"content", filename="x.txt")
    async with aiohttp.ClientSession() as session, session.post(url, data=form) as answer:
        assert await answer.json() == [["one", "a\ufffdb"], ["one", "c"]]
    await listener.close()
