"""Schedules the writes of one installation: one at a time, with an interval between them, and within the budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count

from handlers.effects.rate_limit import HOUR_S, Budget, Turn, WriteBudget, plan_write
from handlers.ports import OverBudget, WritePriority


class OwnBudget:
    """A `handlers.effects.rate_limit.WriteBudget` in memory, for the only client that writes as its App."""

    def __init__(self, budget: Budget, now: Callable[[], datetime]) -> None:
        self._budget = budget
        self._now = now
        self._numbers = count()
        self._counts_at: dict[Turn, float] = {}

    async def reserve(self, account: str, priority: WritePriority) -> Turn:
        """Reserve a turn within the budget. Raises `OverBudget`."""
        now = self._now().timestamp()
        self._counts_at = {turn: at for turn, at in self._counts_at.items() if at > now - HOUR_S}
        ages_s = [now - at for turn, at in self._counts_at.items() if turn.account == account]
        plan = plan_write(ages_s, priority, self._budget)
        if plan.dropped:
            raise OverBudget(plan.wait_s)
        turn = Turn(account, next(self._numbers), plan.wait_s)
        self._counts_at[turn] = now + plan.wait_s + self._budget.longest_write_s
        return turn

    async def settle(self, turn: Turn) -> None:
        """Record that the write has ended. It counts as written at this moment."""
        self._counts_at[turn] = self._now().timestamp()


class WritePace:
    """The write turns of one installation in this process, with at least `interval_s` seconds between two writes."""

    def __init__(self, account: str, budget: WriteBudget, interval_s: float) -> None:
        self._account = account
        self._budget = budget
        self._interval_s = interval_s
        self._lock = asyncio.Lock()
        self._free_at = 0.0

    @asynccontextmanager
    async def turn(self, priority: WritePriority) -> AsyncIterator[None]:
        """Wait for a turn. The block is the write. Raises `OverBudget` if the wait would be too long."""
        clock = asyncio.get_running_loop().time
        async with self._lock:
            turn = await self._budget.reserve(self._account, priority)
            try:
                await asyncio.sleep(max(turn.wait_s, self._free_at - clock()))
                yield
            finally:
                self._free_at = clock() + self._interval_s
                await self._budget.settle(turn)
