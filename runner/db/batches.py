"""Batches of work that costs the same for many items as for one. Items that arrive during a batch share the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

PAUSE = 4
"""Turns of the event loop between two batches. In these turns, callers pass their answers on, and waiting requests are
read and add their items. Without the pause, a batch often holds one item, the next one all others, then one again."""


class Stopped(Exception):  # noqa: N818 - the state of a batch
    """The batch was cancelled, so it is unknown whether it was done."""


class Batches(Generic[Item, Answer]):
    """Calls `work` with all items that were added since its last call, up to `most` at once, and with each item once.

    `work` returns an answer for each item, in order, or raises an exception for all of them. There is no start or stop:
    a task runs while items wait, in the context of the first caller.
    """

    def __init__(self, work: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]], most: int) -> None:
        self._work = work
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._working: asyncio.Task[None] | None = None

    def add(self, item: Item) -> asyncio.Future[Answer]:
        """Add an item. The future gets its answer or an exception: `Stopped` if the batch is cancelled."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answered))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work_all())
        return answered

    async def cancel(self) -> None:
        """Cancel the running batch, if there is one. Its callers get `Stopped`."""
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
        if answered.done():  # The caller has gone.
            continue
        if isinstance(answer, Exception):
            answered.set_exception(answer)
        else:
            answered.set_result(answer)
