"""Limits how many pages are rendered at the same time, so that the service's own work never waits for them.

A page needs database connections and CPU time, and anybody may request any number of pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from aiohttp import web

from bot.web.auth.headers import refuse_busy

AT_ONCE = 6
"""The most pages at the same time: less than half of the database pool's connections."""

AT_ONCE_FOR_ONE = 3
"""The most pages of one reader at the same time."""

PATIENCE_S = 5.0
"""The most seconds that a request waits for its turn."""

_THREADS = ThreadPoolExecutor(2, thread_name_prefix="page")
"""Threads for pages only, because DNS lookups and writes to disk wait for asyncio's default ones."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Args = ParamSpec("Args")
Result = TypeVar("Result")


async def run_for_page(function: Callable[Args, Result], *args: Args.args, **named: Args.kwargs) -> Result:
    """Call a slow function in one of the pages' threads."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: function(*args, **named))


class PageQueue:
    """The pages that are being rendered, and the requests that wait."""

    def __init__(self, find_reader: Callable[[web.Request], str | None], patience_s: float = PATIENCE_S) -> None:
        """`find_reader` returns the name of a request's sender. All without a name (None) count as one reader."""
        self._find_reader, self._patience_s = find_reader, patience_s
        self._all = asyncio.Semaphore(AT_ONCE)
        self._own: WeakValueDictionary[str | None, asyncio.Semaphore] = WeakValueDictionary()

    def guard(self, route: web.RouteDef) -> web.RouteDef:
        """Wrap a route so that its requests wait in the queue.

        A form (POST) does not wait in it, because a slow sender would keep a place for the whole upload.
        """
        handle: Handler = route.handler

        async def answer(request: web.Request) -> web.StreamResponse:
            return await self.make(request, lambda: handle(request))

        return route if route.method == "POST" else web.RouteDef(route.method, route.path, answer, route.kwargs)

    async def make(self, request: web.Request, make: Callable[[], Awaitable[Result]]) -> Result:
        """Await `make` when it is this reader's turn. Raises `HTTPServiceUnavailable` after a long wait."""
        own = self._own.setdefault(self._find_reader(request), asyncio.Semaphore(AT_ONCE_FOR_ONE))
        try:
            async with asyncio.timeout(self._patience_s):
                await own.acquire()
                try:
                    await self._all.acquire()
                except BaseException:
                    own.release()
                    raise
        except TimeoutError:
            raise refuse_busy("too many requests for pages") from None
        try:
            return await make()
        finally:
            self._all.release()
            own.release()
