"""A large answer is sent in pieces, and who does not read it takes neither memory nor all room."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from bot.listener import HttpListener
from bot.web.auth.headers import HEADERS
from bot.web.large_answers import PIECE, LargeAnswers
from bot.web.shares import NoRoom, Shares
from runner.model.job import JobState
from tests.support.site import make_report, open_site

BODY = b"a line of a log\n" * 250_000
"""More than sockets hold."""
PATIENCE_S = 20.0


@dataclass
class Hall:
    """A listener with one large answer. Whoever asks says in a header who they are."""

    url: URL
    large: LargeAnswers
    transports: list[asyncio.Transport] = field(default_factory=list)

    def held(self) -> list[int]:
        return [transport.get_write_buffer_size() for transport in self.transports]

    async def wait_for(self, under_way: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.large.under_way != under_way:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def open_hall(max_under_way: int) -> AsyncIterator[Hall]:
    large = LargeAnswers(lambda request: request.headers.get("who"), max_under_way, people_sign_in=True)
    transports: list[asyncio.Transport] = []

    async def show(request: web.Request) -> web.Response:
        assert request.transport
        transports.append(request.transport)
        answer = web.Response(body=BODY, status=203, headers={"x-own": "1"}, content_type="text/plain", charset="utf-8")
        answer.set_cookie("one", "two")
        return answer

    application = web.Application()
    application.router.add_routes([large.guard(web.get("/", show))])
    listener = HttpListener(application, grace_s=0.1)
    try:
        yield Hall(URL(await listener.open("127.0.0.1", 0)), large, transports)
    finally:
        await listener.close()


def ask_and_not_read(url: URL, who: str = "") -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((url.host, url.port))
    connection.sendall(f"GET {url.path} HTTP/1.1\r\nHost: x\r\n{f'who: {who}' if who else 'x: y'}\r\n\r\n".encode())
    connection.setblocking(False)
    return connection


async def test_clients_that_do_not_read_hold_a_piece_each_and_leave_room_for_others() -> None:
    async with open_hall(max_under_way=16 * len(BODY)) as hall, AsyncExitStack() as stack:
        strangers = [stack.enter_context(ask_and_not_read(hall.url)) for _ in range(20)]
        await hall.wait_for(8 * len(BODY))
        said = [await asyncio.get_running_loop().sock_recv(one, 12) for one in strangers]
        assert sorted(said) == [b"HTTP/1.1 203"] * 8 + [b"HTTP/1.1 503"] * 12, "half is kept for people"
        assert max(hall.held()) <= 3 * PIECE
        for _ in range(3):
            stack.enter_context(ask_and_not_read(hall.url, "alice"))
        await hall.wait_for(10 * len(BODY))  # An eighth of all is hers.
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.get(hall.url) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (503, "10")
            assert refused.headers.items() >= HEADERS.items()
        async with session.get(hall.url, headers={"who": "bob"}) as answer:
            assert await answer.read() == BODY
        for one in strangers:
            one.close()
        await hall.wait_for(2 * len(BODY))
        async with session.get(hall.url) as answer:
            assert answer.status == 203, "the others have gone"
            assert await answer.read() == BODY


async def test_an_answer_in_pieces_has_the_same_head_as_one_that_is_sent_whole() -> None:
    async with open_hall(max_under_way=len(BODY)) as hall, aiohttp.ClientSession() as session:
        async with session.get(hall.url) as answer:
            assert await answer.read() == BODY
        async with session.head(hall.url) as head:
            assert await head.read() == b""
        for one in (answer, head):
            assert (one.status, one.headers["x-own"], one.headers["Set-Cookie"]) == (203, "1", "one=two; Path=/")
            assert one.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert one.headers["Content-Length"] == str(len(BODY))
            assert "Transfer-Encoding" not in one.headers
        assert len(set(map(id, hall.transports))) == 1, "the connection goes on"
        assert hall.large.under_way == 0


@pytest.mark.slow
async def test_logs_patches_files_and_pages_are_among_the_large_answers(tmp_path: Path) -> None:
    async with open_site(tmp_path, max_under_way=100_000) as site:
        patch = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -0,0 +1,10000 @@\n" + "+a line\n" * 10_000
        long = await site.add(make_report(job_id="aaaaaaaaaa", worklog=BODY.decode()), id="aaaaaaaaaa", thread=8)
        job = await site.add(make_report(patch=patch), state=JobState.SUCCEEDED, agent="mine")
        await site.keep_log(job, "agent", b"a line\n" * 10_000)
        paths = [f"/jobs/{job.id}{rest}" for rest in ("/log/agent", "/patch", "/files/change.patch", "")]
        loop, asked = asyncio.get_running_loop(), f"/jobs/{long.id}/files/worklog.md"
        with ask_and_not_read(URL(site.url).with_path(asked)) as connection:
            assert await loop.sock_recv(connection, 12) == b"HTTP/1.1 200"
            assert [(await site.get(path)).status for path in paths] == [503] * 4
        answers = [await site.get(path) for path in paths]
        assert [answer.status for answer in answers] == [200] * 4
        assert min(len(answer.html) for answer in answers) > PIECE


def test_who_has_nothing_gets_what_is_more_than_a_share() -> None:
    shares = Shares(100, 0.1, people_sign_in=True)
    with shares.take("alice", 60):
        with pytest.raises(NoRoom), shares.take("alice"):
            pass
        with pytest.raises(NoRoom), shares.take(None, 41):
            pass
        with shares.take(None, 30), pytest.raises(NoRoom), shares.take(None, 21):
            pass
    with shares.take("alice", 10), pytest.raises(NoRoom), shares.take("alice"):
        pass
    assert shares.taken == 0
