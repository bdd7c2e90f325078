"""What is read of a form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from bot.listener import HttpListener
from bot.web.auth.form_fields import KIND, MAX_FORM, read_fields
from bot.web.dashboard.actions import MAX_ADVICE

FORM_S = 0.2


@pytest.fixture
async def url() -> AsyncIterator[URL]:
    async def show(request: web.Request) -> web.Response:
        return web.json_response(await read_fields(request, FORM_S))

    application = web.Application(client_max_size=MAX_FORM)
    application.router.add_post("/", show)
    listener = HttpListener(application, grace_s=1.0)
    yield URL(await listener.open("127.0.0.1", 0))
    await listener.close()


async def test_texts_are_what_a_database_takes(url: URL) -> None:
    form = [("one", "a\0b"), ("one", "c"), ("two", "")]
    async with aiohttp.ClientSession() as session, session.post(url, data=form) as answer:
        assert await answer.json() == [["one", "a\ufffdb"], ["one", "c"], ["two", ""]]


async def test_the_longest_advice_fits_in_any_script(url: URL) -> None:
    advice = "\U0001f600" * MAX_ADVICE
    body = f"csrf={'x' * 100}&occasion={'x' * 40}&advice={quote(advice)}".encode()
    async with aiohttp.ClientSession() as session:
        answer = await session.post(url, data=body, headers={"Content-Type": KIND})
        assert dict(await answer.json())["advice"] == advice


@pytest.mark.parametrize("kind", [f"{KIND}; charset=punycode", f"{KIND}; charset=utf-7", "multipart/form-data"])
async def test_nothing_is_decoded_by_a_charset_or_a_type_that_the_sender_chooses(url: URL, kind: str) -> None:
    async with aiohttp.ClientSession() as session:
        answer = await session.post(url, data=b"a-" * 1000, headers={"Content-Type": kind})
        assert answer.status == 415


async def test_a_form_that_does_not_end_is_refused_in_time(url: URL) -> None:
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: {KIND}\r\nContent-Length: 99\r\n\r\na=".encode())
    async with asyncio.timeout(10):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    writer.close()
