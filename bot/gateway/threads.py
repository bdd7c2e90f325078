"""Work of the gateway in threads of its own: what one job asks for delays neither the service nor, for long, others.

Each job takes turns, so no job has more threads at once than it has turns, and jobs that wait are served in order.
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
    """What `work` returns or raises. `pause` runs before it, within the same turn.

    A thread cannot be stopped. So the turn lasts until the work has ended, also where nobody waits for it any more.
    """
    loop = asyncio.get_running_loop()

    def end_turn(_: object) -> None:
        with suppress(RuntimeError):  # The service has stopped meanwhile.
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
