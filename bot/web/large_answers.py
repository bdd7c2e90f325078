"""Sends large answers in pieces, and limits how many bytes of them are being sent at the same time.

aiohttp keeps a copy of a whole answer for each connection until its client has read it. Thousands of clients that do
not read could use all memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from bot.web.auth.headers import refuse_busy
from bot.web.shares import NoRoom, Shares

PIECE = 65_536
"""The bytes of a piece. An answer is large if it has more bytes."""

MAX_UNDER_WAY = 160_000_000
"""The most bytes of large answers at the same time. The longest logs of thirty readers fit, or the pages of hundreds of
readers."""

SHARE_OF_PERSON = 0.125
"""The most that one signed-in person can use, as a part of `MAX_UNDER_WAY`. A few logs fit."""

STALL_S, SLOWEST = 30.0, 5_000
"""A client has `STALL_S` seconds to receive an answer, and one more second for each `SLOWEST` bytes."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LargeAnswers:
    """The large answers that are being sent."""

    def __init__(
        self,
        find_login: Callable[[web.Request], str | None],
        max_under_way: int = MAX_UNDER_WAY,
        *,
        people_sign_in: bool = False,
    ) -> None:
        """`find_login` returns the sender's login, or None.

        With `people_sign_in`, half of the bytes are reserved for signed-in people.
        """
        self._find_login = find_login
        self._shares = Shares(max_under_way, SHARE_OF_PERSON, people_sign_in=people_sign_in)

    @property
    def under_way(self) -> int:
        """The bytes of all answers that are being sent."""
        return self._shares.taken

    def guard(self, route: web.RouteDef) -> web.RouteDef:
        """Wrap a route so that its large answers are sent in pieces."""
        handle: Handler = route.handler

        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._send(request, await handle(request))

        return web.RouteDef(route.method, route.path, answer, route.kwargs)

    async def _send(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        body = answer.body if isinstance(answer, web.Response) and request.method != "HEAD" else None
        if not isinstance(answer, web.Response) or not isinstance(body, bytes) or len(body) <= PIECE:
            return answer
        try:
            with self._shares.take(self._find_login(request), len(body)):
                answer.headers["Content-Length"] = str(len(body))
                answer.body = _cut(body)
                await _send_all(request, answer, STALL_S + len(body) / SLOWEST)
        except NoRoom:
            raise refuse_busy("too many large downloads") from None
        return answer


async def _send_all(request: web.Request, answer: web.Response, most_s: float) -> None:
    with suppress(ConnectionError):  # The client has gone. aiohttp notices it again, and closes the connection.
        try:
            async with asyncio.timeout(most_s):
                await answer.prepare(request)
                await answer.write_eof()
        except TimeoutError:
            if request.transport:
                request.transport.abort()


async def _cut(body: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(view), PIECE):
        yield view[start : start + PIECE]
