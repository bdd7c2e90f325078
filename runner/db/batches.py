"""Work that costs as much for many as for one: what is asked for while it is done shares the next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

PAUSE = 4
"""Turns of the event loop between two turns of work: so many it takes until whoever was answered has passed that on,
and a request that lay ready has been read and asks for work. Without them it often is one alone, then all others, then
one again."""


class Stopped(Exception):  # noqa: N818 - what is the case
    """The turn was cancelled, so that nobody knows whether it was done."""


class Batches(Generic[Item, Answer]):
    """Calls `work` for all that were added since its last call, for at most so many at once, and for nobody twice.

    `work` answers each, in their order, or raises what all of them get. Needs neither start nor stop: it works for as
    long as somebody waits for it, in the context of whoever came first.
    """

    def __init__(self, work: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]], most: int) -> None:
        self._work = work
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._working: asyncio.Task[None] | None = None

    def add(self, item: Item) -> asyncio.Future[Answer]:
        """Have this one worked on: the answer to it, or what is raised; `Stopped` when the turn is cancelled."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answered))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work_all())
        return answered

    async def cancel(self) -> None:
        """End the turn that is under way, if there is one; whoever waits for it is told."""
        if self._working:
            self._working.cancel()
            await asyncio.wait([self._working])

    async def _work_all(self) -> None:
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                _answer(batch, await self._work_on([item for item, _ in batch]))
                for _ in range(PAUSE):
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            batch, self._waiting = [*batch, *self._waiting], []
            _answer(batch, [Stopped("it was cancelled")] * len(batch))
            raise

    async def _work_on(self, items: Sequence[Item]) -> Sequence[Answer | Exception]:
        try:
            return await self._work(items)
        except Exception as error:
            return [error] * len(items)


def _answer(batch: Sequence[tuple[Item, asyncio.Future[Answer]]], answers: Sequence[Answer | Exception]) -> None:
    for (_, answered), answer in zip(batch, answers, strict=True):
        if answered.done():  # Whoever asked has gone.
            continue
        if isinstance(answer, Exception):
            answered.set_exception(answer)
        else:
            answered.set_result(answer)
