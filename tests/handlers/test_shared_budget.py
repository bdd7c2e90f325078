"""One budget for all replicas, over real databases that several of them have open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy import event, func, select

from handlers.effects.rate_limit import Budget, SharedBudget
from handlers.ports import GitHubUnavailable, OverBudget, WritePriority
from runner.db.schema import github_writes
from tests.support.clock import Clock
from tests.support.jobs import open_database

BUDGET = Budget(per_minute=10, per_hour=20, longest_wait_s=5, longest_write_s=30)


class Replicas:
    """Budgets over one file, each with connections of its own, as processes have."""

    def __init__(self, budgets: list[SharedBudget], clock: Clock) -> None:
        self.budgets, self.clock = budgets, clock

    async def count_granted(self, wanted: int, priority: WritePriority = WritePriority.REPORT) -> int:
        """How many of `wanted` writes, asked for all at once and by turns of every replica, get a turn at once."""
        asked = (self.budgets[at % len(self.budgets)].reserve("octo", priority) for at in range(wanted))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(answer.wait_s == 0 for answer in answers if not isinstance(answer, BaseException))
        return sum(not isinstance(answer, OverBudget) for answer in answers)


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as stack:
        clock = Clock()
        databases = [await stack.enter_async_context(open_database(tmp_path)) for _ in range(3)]
        yield Replicas([SharedBudget(database, BUDGET, clock) for database in databases], clock)


@pytest.mark.parametrize(
    ("priority", "granted"),
    [(WritePriority.REPORT, 10), (WritePriority.REPLY, 9), (WritePriority.STATUS, 8), (WritePriority.LIVE, 5)],
)
async def test_replicas_that_all_write_at_once_spend_one_budget(
    replicas: Replicas, priority: WritePriority, granted: int
) -> None:
    assert await replicas.count_granted(30, priority) == granted


async def test_what_is_worth_more_finds_the_rest_of_the_budget_free(replicas: Replicas) -> None:
    assert await replicas.count_granted(10, WritePriority.LIVE) == 5
    assert await replicas.count_granted(10, WritePriority.STATUS) == 3
    assert await replicas.count_granted(10, WritePriority.REPLY) == 1
    assert await replicas.count_granted(10, WritePriority.REPORT) == 1


async def test_a_write_counts_from_its_end(replicas: Replicas) -> None:
    one, another, _ = replicas.budgets
    turns = [await one.reserve("octo", WritePriority.REPORT) for _ in range(10)]
    replicas.clock.forward(20)
    for turn in turns:
        await one.settle(turn)
    with pytest.raises(OverBudget):
        await one.reserve("octo", WritePriority.REPORT)
    replicas.clock.forward(54)
    with pytest.raises(OverBudget) as caught:
        await another.reserve("octo", WritePriority.REPORT)
    assert caught.value.retry_after_s == 6
    replicas.clock.forward(2)
    assert (await another.reserve("octo", WritePriority.REPORT)).wait_s == 4


async def test_a_write_takes_one_turn_to_write_to_the_database(replicas: Replicas) -> None:
    budget, taken = replicas.budgets[0], list[object]()
    event.listen(budget._db.engine.sync_engine, "begin", taken.append)
    for _ in range(3):
        await budget.settle(await budget.reserve("octo", WritePriority.REPORT))
    assert len(taken) == 3


async def test_a_write_whose_replica_died_counts_as_long_as_it_may_have_taken(replicas: Replicas) -> None:
    assert await replicas.count_granted(10) == 10
    replicas.clock.forward(89)
    assert (await replicas.budgets[0].reserve("octo", WritePriority.REPORT)).wait_s == 1


async def test_each_account_has_a_budget_of_its_own_and_the_case_of_its_name_does_not_matter(
    replicas: Replicas,
) -> None:
    assert await replicas.count_granted(10) == 10
    with pytest.raises(OverBudget):
        await replicas.budgets[0].reserve("OCTO", WritePriority.REPORT)
    assert (await replicas.budgets[0].reserve("acme", WritePriority.REPORT)).wait_s == 0


async def test_turns_are_forgotten_when_they_no_longer_count(replicas: Replicas) -> None:
    for _ in range(4):
        assert await replicas.count_granted(10) == 10
        replicas.clock.forward(3700)
    assert await _count_rows(replicas) == 10


async def test_a_clock_that_was_set_back_blocks_nobody(replicas: Replicas) -> None:
    assert await replicas.count_granted(10) == 10
    replicas.clock.forward(-24 * 3600)
    assert await replicas.count_granted(10) == 10


async def test_whoever_cannot_count_does_not_write(replicas: Replicas, tmp_path: Path) -> None:
    budget = replicas.budgets[0]
    turn = await budget.reserve("octo", WritePriority.REPORT)
    async with replicas.budgets[1]._db.write() as connection:
        await connection.exec_driver_sql("DROP TABLE github_writes")
    with pytest.raises(GitHubUnavailable, match="no turn"):
        await budget.reserve("octo", WritePriority.REPORT)
    await budget.settle(turn)


async def _count_rows(replicas: Replicas) -> int:
    async with replicas.budgets[0]._db.read() as connection:
        return int((await connection.execute(select(func.count()).select_from(github_writes))).scalar_one())
