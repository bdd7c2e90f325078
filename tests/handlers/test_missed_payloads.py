"""Strangers can write thousands of long comments during an outage: recovery holds one missed delivery at a time."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import select

from handlers.context import Context
from handlers.events import User
from handlers.inbox.inbox import Inbox
from handlers.ports import DeliveryAttempt, GitHub, GitHubUnavailable, Labelling, NotFound
from handlers.recovery.recovery import Recovery
from handlers.triggers.router import ROUTER
from runner.db.schema import deliveries
from tests.handlers.asked import NAME, render_payload
from tests.handlers.test_recovery_timelines import RULES, LabelledIssue, list_answered
from tests.support.clock import Clock
from tests.support.jobs import open_database

COUNT, LONG = 80, 1_000_000


class LongOutage(LabelledIssue):
    """Missed deliveries with odd numbers are of a label, and all are long."""

    def __init__(self, now: Clock) -> None:
        super().__init__(now)
        self.writers.add("boss")
        self.labellings[7] = [Labelling(User(login="boss"), now() + timedelta(minutes=1))]
        self.fetched = list[int]()
        self.failures = dict[int, BaseException]()
        """How the so many'th request for a payload ends."""

    def miss(self, *numbers: int) -> None:
        self.missed = [self._miss(number) for number in reversed(numbers)]

    def _miss(self, number: int) -> DeliveryAttempt:
        event, action = ("issues", "labeled") if number % 2 else ("issue_comment", "created")
        return DeliveryAttempt(number, f"guid {number:02}", event, action, self._now(), succeeded=False)

    async def fetch_payload(self, attempt_id: int) -> Mapping[str, Any]:
        self.fetched.append(attempt_id)
        if failure := self.failures.pop(len(self.fetched), None):
            raise failure
        said = {"comment": {"body": "x" * LONG}, "action": "created"}
        changes: dict[str, Any] = {"action": "labeled", "label": {"name": "ptq"}} if attempt_id % 2 else said
        payload = render_payload(7, "boss", self.labellings[7][0].at, **changes)
        return {**payload, "issue": {**payload["issue"], "body": "x" * LONG}}


class Outage:
    """A database, a GitHub, and replicas that find out what was missed."""

    def __init__(self, context: Context, github: LongOutage, clock: Clock) -> None:
        self.context, self.github, self._clock = context, github, clock

    async def begin(self) -> Recovery:
        inbox = Inbox(self.context.db, ROUTER, self._clock)
        recovery = Recovery(self.context, inbox, ROUTER, sweep_max=5, in_flight_s=30, is_relayed=False)
        await recovery.begin()
        self._clock.forward(300)
        return recovery

    async def list_stored(self) -> list[str]:
        async with self.context.db.read() as connection:
            return [*(await connection.execute(select(deliveries.c.id).order_by(deliveries.c.sequence))).scalars()]


@asynccontextmanager
async def begin_outage(tmp_path: Path) -> AsyncIterator[Outage]:
    async with open_database(tmp_path) as database:
        clock = Clock()
        github = LongOutage(clock)
        context = Context(cast(GitHub, github), database, {NAME: RULES}, {}, "https://ptq", (), clock, lambda: None)
        yield Outage(context, github, clock)


@pytest.mark.slow
async def test_missed_deliveries_are_stored_one_after_the_other(tmp_path: Path) -> None:
    async with begin_outage(tmp_path) as outage:
        recovery = await outage.begin()
        outage.github.miss(*range(COUNT))
        tracemalloc.start()
        try:
            await recovery.step()
            # Some of them wait for the garbage collector.
            assert tracemalloc.get_traced_memory()[1] < COUNT * LONG / 2
        finally:
            tracemalloc.stop()
        assert await outage.list_stored() == [f"guid {number:02}" for number in range(COUNT)]


async def test_after_a_death_in_the_middle_the_next_replica_stores_the_rest(tmp_path: Path) -> None:
    async with begin_outage(tmp_path) as outage:
        outage.github.miss(0, 2, 4, 6, 8)
        outage.github.failures[4] = asyncio.CancelledError()
        with pytest.raises(asyncio.CancelledError):
            await (await outage.begin()).step()
        assert await outage.list_stored() == ["guid 00", "guid 02", "guid 04"]
        await (await outage.begin()).step()
        assert await outage.list_stored() == ["guid 00", "guid 02", "guid 04", "guid 06", "guid 08"]


@pytest.mark.parametrize("failure", [NotFound(410, "it is gone"), GitHubUnavailable("GitHub answered 502")])
async def test_a_label_whose_delivery_is_gone_when_it_should_be_stored_is_answered_all_the_same(
    tmp_path: Path, failure: Exception
) -> None:
    async with begin_outage(tmp_path) as outage:
        recovery = await outage.begin()
        outage.github.miss(1)
        outage.github.failures[2] = failure
        await recovery.step()
        assert (await outage.list_stored(), await list_answered(outage.context)) == ([], [])
        outage.github.missed = []
        await recovery.step()
        assert await list_answered(outage.context) == [7]
