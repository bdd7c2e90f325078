"""When the writes of one installation go: one at a time, apart, and within the budget. It refuses to know requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count

from handlers.effects.rate_limit import HOUR_S, Budget, Turn, WriteBudget, plan_write
from handlers.ports import OverBudget, Worth


class OwnBudget:
    """`handlers.effects.rate_limit.WriteBudget` for a client that writes alone, kept in memory."""

    def __init__(self, budget: Budget, now: Callable[[], datetime]) -> None:
        self._budget = budget
        self._now = now
        self._numbers = count()
        self._counts_at: dict[Turn, float] = {}

    async def reserve(self, account: str, worth: Worth) -> Turn:
        """A turn within the budget. Raises `OverBudget`."""
        now = self._now().timestamp()
        self._counts_at = {turn: at for turn, at in self._counts_at.items() if at > now - HOUR_S}
        ages_s = [now - at for turn, at in self._counts_at.items() if turn.account == account]
        plan = plan_write(ages_s, worth, self._budget)
        if plan.dropped:
            raise OverBudget(plan.wait_s)
        turn = Turn(account, next(self._numbers), plan.wait_s)
        self._counts_at[turn] = now + plan.wait_s + self._budget.longest_write_s
        return turn

    async def settle(self, turn: Turn) -> None:
        """The write has ended: it counts from now on."""
        self._counts_at[turn] = self._now().timestamp()


class WritePace:
    """The turns of one installation in this process. `interval_s` passes between one write and the next."""

    def __init__(self, account: str, budget: WriteBudget, interval_s: float) -> None:
        self._account = account
        self._budget = budget
        self._interval_s = interval_s
        self._lock = asyncio.Lock()
        self._free_at = 0.0

    @asynccontextmanager
    async def turn(self, worth: Worth) -> AsyncIterator[None]:
        """Wait for a turn, write in the block. Raises `OverBudget` when the turn would be long in coming."""
        clock = asyncio.get_running_loop().time
        async with self._lock:
            turn = await self._budget.reserve(self._account, worth)
            try:
                await asyncio.sleep(max(turn.wait_s, self._free_at - clock()))
                yield
            finally:
                self._free_at = clock() + self._interval_s
                await self._budget.settle(turn)
