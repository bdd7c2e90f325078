"""What the service's endless loops share: level-triggered passes, rung awake early, never ended by an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import structlog

log = structlog.get_logger()

Value = TypeVar("Value")


class Listener:
    """One loop's ear: hears every ring since it last waited."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next ring, at once if one came meanwhile, and after `timeout_s` seconds at the latest."""
        # Not `asyncio.wait_for`: before Python 3.12 it can swallow a cancellation that comes together with a ring.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.heard.wait()
        self.heard.clear()


class Bell:
    """Wakes every loop before its interval is over. A lost ring costs that interval and nothing else.

    `tell_others` carries a ring to the other replicas, where `ring_here` is to be called. `narrower` rings whenever
    this one does here: it is for what happens so often that not every loop should look.
    """

    def __init__(self, tell_others: Callable[[], None] = lambda: None, narrower: Bell | None = None) -> None:
        self._listeners: set[Listener] = set()
        self._tell_others = tell_others
        self._narrower = narrower

    def ring(self) -> None:
        """Wake all who listen, here and elsewhere."""
        self.ring_here()
        self._tell_others()

    def ring_here(self) -> None:
        """Wake all who listen in this process."""
        for listener in self._listeners:
            listener.heard.set()
        if self._narrower:
            self._narrower.ring_here()

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Hear every ring inside the block."""
        listener = Listener()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


async def finish(work: Coroutine[None, None, Value]) -> Value:
    """Do something to its end, also when the caller is cancelled meanwhile; the cancellation comes after it.

    A transaction that is broken off in mid-statement can leave SQLite locked for good.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def run_forever(name: str, step: Callable[[], Awaitable[None]], bell: Bell, interval_s: float) -> None:
    """Call `step` at every ring and every `interval_s` seconds. A pass that fails is logged, and repeated."""
    with bell.listen() as listener:
        while True:
            try:
                await step()
            except Exception:
                log.exception("loop.failed", loop=name)
            await listener.wait(interval_s)


class Loop:
    """`run_forever` in a task of its own, which can be ended between two passes."""

    def __init__(self, name: str, step: Callable[[], Awaitable[None]], bell: Bell, interval_s: float) -> None:
        self._step = step
        self._passing = asyncio.Lock()
        self._task = asyncio.create_task(run_forever(name, self._pass, bell, interval_s), name=name)

    async def finish(self) -> None:
        """Let the pass that is under way come to its end, and begin no other."""
        async with self._passing:
            self._task.cancel()
        await self.cancel()

    async def cancel(self) -> None:
        """End it at once."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _pass(self) -> None:
        async with self._passing:
            await self._step()
