"""The budget of writes in the database, so that all replicas of the service keep it together.

A turn is reserved in one short transaction. It counts from the latest moment at which GitHub can have counted the
write. When the write has ended it counts from then, which the replica's next reservation writes down: everybody waits
for the one turn to write to the database, and so each write on GitHub takes only one. A replica that dies in between
leaves a turn that counts longer, and never none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.effects.budget import HOUR_S, Budget, Turn, plan_write
from handlers.ports import GitHubUnavailable, OverBudget, Worth
from runner.db.database import Database
from runner.db.schema import github_accounts, github_writes


class WriteLedger:
    """`WriteBudget` over rows. `now` is the service's clock; replicas keep theirs in step (NTP)."""

    def __init__(self, db: Database, budget: Budget, now: Callable[[], datetime]) -> None:
        self._db = db
        self._budget = budget
        self._now = now
        self._ended: dict[tuple[str, int], datetime] = {}
        """When turns ended that the rows still call open."""

    async def reserve(self, account: str, worth: Worth) -> Turn:
        """A turn within the budget. Raises `OverBudget`, and `GitHubUnavailable` while the database cannot be used."""
        try:
            async with self._db.write() as connection:
                ended = dict(self._ended)
                await _settle_all(connection, ended)
                turn, wait_s = await self._reserve(connection, account.lower(), worth)
        except SQLAlchemyError as error:
            # Whoever cannot count does not write.
            raise GitHubUnavailable(f"no turn to write could be reserved ({type(error).__name__})") from None
        for key in ended:
            self._ended.pop(key, None)
        if turn is None:
            raise OverBudget(wait_s)
        return turn

    async def settle(self, turn: Turn) -> None:
        """The write has ended: it counts from now on."""
        self._ended[turn.account, turn.number] = self._now()

    async def _reserve(
        self, connection: AsyncConnection, account: str, worth: Worth
    ) -> tuple[Turn, float] | tuple[None, float]:
        """A turn, or none where it would be long in coming; and in how many seconds there is one."""
        number = await _count_up(connection, account)
        # Only now, for whoever else reserves waits for our transaction to end.
        now = self._now()
        await self._sweep(connection, account, now)
        ours = select(github_writes.c.counts_at).where(github_writes.c.account == account)
        ages_s = [(now - at).total_seconds() for at in (await connection.execute(ours)).scalars()]
        plan = plan_write(ages_s, worth, self._budget)
        if plan.dropped:
            return None, plan.wait_s
        ends_at = now + timedelta(seconds=plan.wait_s + self._budget.longest_write_s)
        await connection.execute(insert(github_writes).values(account=account, number=number, counts_at=ends_at))
        return Turn(account, number, plan.wait_s), plan.wait_s

    async def _sweep(self, connection: AsyncConnection, account: str, now: datetime) -> None:
        """Forget what no longer counts, and what stands further ahead than any turn can: a clock was set back."""
        latest = now + timedelta(seconds=self._budget.longest_wait_s + self._budget.longest_write_s)
        past = github_writes.c.counts_at <= now - timedelta(seconds=HOUR_S)
        stale = or_(past, github_writes.c.counts_at > latest)
        await connection.execute(delete(github_writes).where(github_writes.c.account == account, stale))


async def _settle_all(connection: AsyncConnection, ended: Mapping[tuple[str, int], datetime]) -> None:
    for (account, number), at in ended.items():
        this_turn = (github_writes.c.account == account, github_writes.c.number == number)
        await connection.execute(update(github_writes).where(*this_turn).values(counts_at=at))


async def _count_up(connection: AsyncConnection, account: str) -> int:
    """The account's next number. The row that this changes is locked until the transaction ends."""
    this_account = github_accounts.c.account == account
    count = update(github_accounts).where(this_account).values(turns=github_accounts.c.turns + 1)
    if (await connection.execute(count)).rowcount == 0:
        # Another replica may be the first at the same moment.
        with suppress(IntegrityError):
            async with connection.begin_nested():
                await connection.execute(insert(github_accounts).values(account=account, turns=0))
        await connection.execute(count)
    return int((await connection.execute(select(github_accounts.c.turns).where(this_account))).scalar_one())
