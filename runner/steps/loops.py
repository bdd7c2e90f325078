"""The service's endless loops: level-triggered passes, woken early by notifications, never ended by an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import structlog

from runner.rows.claims import Claims

log = structlog.get_logger()

Value = TypeVar("Value")


class Listener:
    """Receives notifications for one loop. A notification that comes between two waits ends the next wait."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Wait for a notification for up to `timeout_s` seconds. Return at once if one came since the last wait."""
        # Not `asyncio.wait_for`: before Python 3.12 it can lose a cancellation that comes with a notification.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.heard.wait()
        self.heard.clear()


class Wakeup:
    """Wakes loops before their interval is over. A lost notification only costs that interval.

    `tell_others` notifies the other replicas, which then call `notify_here`. `narrower` is another `Wakeup`. It
    is notified with this one, but does not notify this one: it is for frequent events that few loops need.
    """

    def __init__(self, tell_others: Callable[[], None] = lambda: None, narrower: Wakeup | None = None) -> None:
        self._listeners: set[Listener] = set()
        self._tell_others = tell_others
        self._narrower = narrower

    def notify(self) -> None:
        """Wake all listeners, also in other replicas."""
        self.notify_here()
        self._tell_others()

    def notify_here(self) -> None:
        """Wake all listeners in this process."""
        for listener in self._listeners:
            listener.heard.set()
        if self._narrower:
            self._narrower.notify_here()

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Receive notifications inside the block."""
        listener = Listener()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


async def finish(work: Coroutine[None, None, Value]) -> Value:
    """Await `work` to its end. If the caller is cancelled meanwhile, the cancellation follows afterwards.

    A transaction that is interrupted during a statement can leave SQLite locked forever.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def run_forever(name: str, step: Callable[[], Awaitable[None]], wakeup: Wakeup, interval_s: float) -> None:
    """Call `step` at every notification and every `interval_s` seconds. A failed pass is logged and repeated."""
    with wakeup.listen() as listener:
        while True:
            try:
                await step()
            except Exception:
                log.exception("loop.failed", loop=name)
            await listener.wait(interval_s)


class Loop:
    """`run_forever` in a task, which can be ended between two passes."""

    def __init__(
        self,
        name: str,
        step: Callable[[], Awaitable[None]],
        wakeup: Wakeup,
        interval_s: float,
        claims: Claims | None = None,
    ) -> None:
        """With `claims`, only one replica at a time runs the loop: the one that has the claim of this name."""
        self._step = claims.keeping(name, step) if claims else step
        self._passing = asyncio.Lock()
        self._task = asyncio.create_task(run_forever(name, self._pass, wakeup, interval_s), name=name)

    async def finish(self) -> None:
        """Wait for the current pass, and start no other."""
        async with self._passing:
            self._task.cancel()
        await self.cancel()

    async def cancel(self) -> None:
        """End the loop at once, even during a pass."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _pass(self) -> None:
        async with self._passing:
            await self._step()
