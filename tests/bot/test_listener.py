"""Where requests come in, and how it closes."""

from __future__ import annotations

import asyncio
import gc
import socket

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from bot.listener import Listener


async def _hello(_: web.Request) -> web.Response:
    await asyncio.sleep(0.2)
    return web.Response(text="hello")


def _make_listener() -> Listener:
    application = web.Application()
    application.router.add_get("/", _hello)
    return Listener(application, grace_s=5.0)


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_while_it_closes_is_not_leaked(turns: int) -> None:
    listener = _make_listener()
    url = URL(await listener.open("127.0.0.1", 0))
    with socket.create_connection((url.host, url.port)):
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener.close()
        gc.collect()


async def test_a_request_in_hand_is_answered_before_it_is_closed() -> None:
    listener = _make_listener()
    url = await listener.open("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.get(url))
        await asyncio.sleep(0.1)
        await listener.close()
        assert await (await asking).text() == "hello"
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)


async def test_it_says_its_address_as_it_is_written_in_a_url_and_closes_twice() -> None:
    listener = _make_listener()
    url = URL(await listener.open("::1", 0))
    assert url.host == "::1"
    await listener.close()
    await listener.close()


async def test_what_never_listened_can_be_closed_and_a_taken_address_is_an_error() -> None:
    await _make_listener().close()
    first, second = _make_listener(), _make_listener()
    port = URL(await first.open("127.0.0.1", 0)).port
    with pytest.raises(OSError, match="in use"):
        await second.open("127.0.0.1", port or 0)
    await first.close()
    await second.close()
