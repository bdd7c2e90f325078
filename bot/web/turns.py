"""How many pages are made at once, and where: the service's own work never waits for people who look at pages.

A page takes connections of the database's pool and time of the processor. Strangers may ask for any number of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from aiohttp import web

AT_ONCE = 6
"""Pages that are made at once: less than half of the connections that the database's pool has."""

AT_ONCE_FOR_ONE = 3
"""Of these, for one person, or for all who have not signed in."""

PATIENCE_S = 5.0
"""Seconds that a request may wait for its turn."""

_THREADS = ThreadPoolExecutor(2, thread_name_prefix="page")
"""Pages have their own, because the default executor looks up names and does steps of jobs."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Args = ParamSpec("Args")
Result = TypeVar("Result")


async def run_for_page(function: Callable[Args, Result], *args: Args.args, **named: Args.kwargs) -> Result:
    """Call a slow function in a thread for pages."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: function(*args, **named))


class PageTurns:
    """The pages that are being made."""

    def __init__(
        self,
        find_login: Callable[[web.Request], str | None],
        headers: Mapping[str, str],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`find_login` says who asks, None for somebody who has not signed in. `headers` are those of a refusal."""
        self._find_login, self._headers, self._patience_s = find_login, headers, patience_s
        self._all = asyncio.Semaphore(AT_ONCE)
        self._own: WeakValueDictionary[str | None, asyncio.Semaphore] = WeakValueDictionary()

    def guard(self, route: web.RouteDef) -> web.RouteDef:
        """The route, with its answers made when it is their turn. A form has its sender's time to arrive: it waits for
        no turn."""
        handle: Handler = route.handler

        async def answer(request: web.Request) -> web.StreamResponse:
            return await self.make(request, lambda: handle(request))

        return route if route.method == "POST" else web.RouteDef(route.method, route.path, answer, route.kwargs)

    async def make(self, request: web.Request, make: Callable[[], Awaitable[Result]]) -> Result:
        """What `make` returns, when it is this reader's turn. Raises `HTTPServiceUnavailable` after a long wait."""
        own = self._own.setdefault(self._find_login(request), asyncio.Semaphore(AT_ONCE_FOR_ONE))
        try:
            async with asyncio.timeout(self._patience_s):
                await own.acquire()
                try:
                    await self._all.acquire()
                except BaseException:
                    own.release()
                    raise
        except TimeoutError:
            text = "too many pages are asked for at once: try again soon\n"
            headers = {**self._headers, "Retry-After": "10"}
            raise web.HTTPServiceUnavailable(text=text, headers=headers) from None
        try:
            return await make()
        finally:
            self._all.release()
            own.release()
