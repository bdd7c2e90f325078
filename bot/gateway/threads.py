"""Runs work of the gateway in threads, so that one job cannot block the service, and cannot delay other jobs for long.

A job needs a turn for each thread, and has a limited number of turns. Work that waits for a thread runs in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def run_in_turn(
    threads: Executor,
    turns: asyncio.Semaphore,
    work: Callable[[], T],
    pause: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """Run `work` in a thread. Returns its result, or raises its error. `pause` runs before it, within the same turn.

    A thread cannot be stopped. So the turn lasts until `work` has ended, even if the caller is cancelled before that.
    """
    loop = asyncio.get_running_loop()

    def end_turn(_: object) -> None:
        with suppress(RuntimeError):  # The event loop is closed, because the service has stopped.
            loop.call_soon_threadsafe(turns.release)

    await turns.acquire()
    try:
        if pause:
            await pause()
        running = threads.submit(work)
    except BaseException:
        turns.release()
        raise
    running.add_done_callback(end_turn)
    return await asyncio.wrap_future(running)
