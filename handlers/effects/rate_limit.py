"""Limits how fast an installation writes on GitHub, and decides which write is next.

A write with a higher priority may use a larger share of the budget.

GitHub allows an installation to create content 80 times a minute and 500 times an hour:
https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits

`plan_write` and `take_turns` decide. `SharedBudget` keeps the turns in the database, shared by all replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.ports import GitHubUnavailable, OverBudget, WritePriority
from runner.db.database import Database
from runner.db.schema import github_accounts, github_writes

MINUTE_S = 60.0
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Budget:
    """GitHub's limits for one installation, and our longest waits."""

    per_minute: int = 80
    per_hour: int = 500
    longest_wait_s: float = 10.0
    """A write that would wait longer is refused instead."""
    longest_write_s: float = 160.0
    """The longest time that a write can take."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision about a write: send it after `wait_s` seconds, or drop it for now."""

    wait_s: float
    dropped: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """A reserved place in the budget: send the write after `wait_s` seconds. `number` counts the account's turns."""

    account: str
    number: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A write that waits for its turn. `case` is its issue."""

    id: str
    case: str
    priority: WritePriority
    since: datetime


class WriteBudget(Protocol):
    """Reserves turns for the writes of an account. All programs that write as the same App share one budget."""

    async def reserve(self, account: str, priority: WritePriority) -> Turn:
        """Reserve a turn. Raises `OverBudget` if the wait would be long."""

    async def settle(self, turn: Turn) -> None:
        """Record that the write has ended. Never raises: a turn that is not settled only counts for longer."""


def plan_write(ages_s: Sequence[float], priority: WritePriority, budget: Budget) -> Plan:
    """Decide when a write of this priority is sent.

    `ages_s` has the seconds since the moment from which each earlier write counts. A write in progress may count later,
    so its number is negative. No minute and no hour has more writes than its budget, and each priority leaves a share
    to higher ones.
    """
    newest_first = sorted(ages_s)
    wait_s = 0.0
    for period_s, most in ((MINUTE_S, budget.per_minute), (HOUR_S, budget.per_hour)):
        share = count_share(most, priority)
        if len(newest_first) >= share:
            wait_s = max(wait_s, period_s - newest_first[share - 1])
    # A live edit never waits, because the next one will be newer.
    patience_s = 0.0 if priority is WritePriority.LIVE else budget.longest_wait_s
    return Plan(wait_s, dropped=wait_s > patience_s)


def count_share(most: int, priority: WritePriority) -> int:
    """The part of `most` writes that writes of this priority may use, together with all others. At least 1."""
    return max(1, -(-most * priority.percent // 100))


def take_turns(waiting: Iterable[Waiting]) -> list[Waiting]:
    """The order of writes, by priority.

    Within a priority, every case gets a turn before any case gets a second one, and the oldest write goes first. So a
    case with many writes does not delay the others, and none starves.
    """
    places: list[tuple[int, int, datetime, str, Waiting]] = []
    turns: Counter[tuple[str, WritePriority]] = Counter()
    for one in sorted(waiting, key=lambda one: (one.since, one.id)):
        places.append((-one.priority.percent, turns[one.case, one.priority], one.since, one.id, one))
        turns[one.case, one.priority] += 1
    return [place[-1] for place in sorted(places, key=lambda place: place[:-1])]


class SharedBudget:
    """`WriteBudget` in the database. `now` is the service's clock; replicas synchronize theirs (NTP).

    A turn is reserved in one short transaction, and counts from the latest moment at which GitHub may count the write.
    After the write has ended, the turn counts from its end. The replica's next reservation stores this, so that each
    write on GitHub needs only one transaction. If a replica crashes in between, its turn counts for longer.
    """

    def __init__(self, db: Database, budget: Budget, now: Callable[[], datetime]) -> None:
        self._db = db
        self._budget = budget
        self._now = now
        self._ended: dict[tuple[str, int], datetime] = {}
        """When the writes of turns ended that are still open in the database, by account and number."""

    async def reserve(self, account: str, priority: WritePriority) -> Turn:
        """Reserve a turn. Raises `OverBudget`, and `GitHubUnavailable` if the database cannot be used."""
        try:
            async with self._db.write() as connection:
                ended = dict(self._ended)
                await _settle_all(connection, ended)
                turn = await self._reserve(connection, account.lower(), priority)
        except SQLAlchemyError as error:
            # A write that cannot be counted is not sent.
            raise GitHubUnavailable(f"no turn to write could be reserved ({type(error).__name__})") from None
        for key in ended:
            self._ended.pop(key, None)
        if isinstance(turn, OverBudget):
            raise turn
        return turn

    async def settle(self, turn: Turn) -> None:
        """Record that the write has ended. It counts from now on."""
        self._ended[turn.account, turn.number] = self._now()

    async def _reserve(self, connection: AsyncConnection, account: str, priority: WritePriority) -> Turn | OverBudget:
        """A turn. If the wait would be too long, the exception, which is raised after the transaction."""
        number = await _count_up(connection, account)
        # Read the clock after the lock, which may have waited for another replica.
        now = self._now()
        await self._sweep(connection, account, now)
        ours = select(github_writes.c.counts_at).where(github_writes.c.account == account)
        ages_s = [(now - at).total_seconds() for at in (await connection.execute(ours)).scalars()]
        plan = plan_write(ages_s, priority, self._budget)
        if plan.dropped:
            return OverBudget(plan.wait_s)
        ends_at = now + timedelta(seconds=plan.wait_s + self._budget.longest_write_s)
        await connection.execute(insert(github_writes).values(account=account, number=number, counts_at=ends_at))
        return Turn(account, number, plan.wait_s)

    async def _sweep(self, connection: AsyncConnection, account: str, now: datetime) -> None:
        """Delete turns that no longer count, and turns too far in the future, which remain if a clock is set back."""
        latest = now + timedelta(seconds=self._budget.longest_wait_s + self._budget.longest_write_s)
        past = github_writes.c.counts_at <= now - timedelta(seconds=HOUR_S)
        stale = or_(past, github_writes.c.counts_at > latest)
        await connection.execute(delete(github_writes).where(github_writes.c.account == account, stale))


async def _settle_all(connection: AsyncConnection, ended: Mapping[tuple[str, int], datetime]) -> None:
    for (account, number), at in ended.items():
        this_turn = (github_writes.c.account == account, github_writes.c.number == number)
        await connection.execute(update(github_writes).where(*this_turn).values(counts_at=at))


async def _count_up(connection: AsyncConnection, account: str) -> int:
    """The account's next number. The changed row is locked until the transaction ends."""
    this_account = github_accounts.c.account == account
    count = update(github_accounts).where(this_account).values(turns=github_accounts.c.turns + 1)
    if (await connection.execute(count)).rowcount == 0:
        # Another replica may insert the first row at the same moment.
        with suppress(IntegrityError):
            async with connection.begin_nested():
                await connection.execute(insert(github_accounts).values(account=account, turns=0))
        await connection.execute(count)
    return int((await connection.execute(select(github_accounts.c.turns).where(this_account))).scalar_one())
