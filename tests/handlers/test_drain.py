"""The loop of all effects, shown with a kind that is made up here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.context import Context
from handlers.effects.drain import FRESH, Due, Effect, NotSent, drain
from handlers.effects.retry_policy import Abandoned
from handlers.ports import GitHubError, GitHubUnavailable, OverBudget
from runner.db.database import Database
from runner.rows.claims import ClaimLost
from runner.rows.notifications import (
    Notification,
    NotificationKind,
    change_notification,
    draft,
    fetch_newest,
    fetch_waiting,
    insert_notification,
)
from tests.support.clock import Clock
from tests.support.jobs import NOON, open_database


class Lamps(Effect[Due[Notification]]):
    """Each row is a lamp that should be on. The oldest goes first."""

    waits = "lamp.waits"
    store = staticmethod(change_notification)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.switched = list[str]()
        self.fails: dict[str, Exception] = {}
        self.seen = list[Notification]()

    async def fetch_next(
        self, connection: AsyncConnection, now: datetime, tried: Collection[str]
    ) -> Due[Notification] | None:
        waiting = [lamp for lamp in await fetch_waiting(connection) if lamp.abandoned is None]
        due = (lamp for lamp in waiting if lamp.next_attempt_at <= now and lamp.key not in tried)
        lamp = next(due, None)
        return Due(lamp.about, lamp, {"lamp": lamp.about}) if lamp else None

    async def carry_out(self, due: Due[Notification]) -> None:
        self.switched.append(due.row.about)
        async with self.context.db.read() as connection:
            self.seen += [lamp for lamp in await fetch_waiting(connection) if lamp.key == due.row.key]
        if error := self.fails.get(due.row.about):
            raise error
        await self.save(due, delivered_at=self.context.now(), **FRESH)


@dataclass
class House:
    lamps: Lamps
    db: Database
    clock: Clock
    rings: list[str] = field(default_factory=list)

    async def add(self, name: str, at_s: float = 0) -> None:
        async with self.db.write() as connection:
            await insert_notification(
                connection, draft(NotificationKind.CAP, name, name, {}, NOON + timedelta(seconds=at_s))
            )

    async def find(self, name: str) -> Notification:
        async with self.db.read() as connection:
            return (await fetch_newest(connection, NotificationKind.CAP))[name]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_database(tmp_path) as db:
        clock, rings = Clock(), list[str]()
        context = Context(cast("Any", None), db, {}, {}, "https://ptq", (), clock, lambda: rings.append("notified"))
        yield House(Lamps(context), db, clock, rings)


async def test_the_attempt_is_stored_before_the_steps_begin(house: House) -> None:
    await house.add("hall")
    await drain(house.lamps)
    assert [lamp.attempts for lamp in house.lamps.seen] == [1]
    hall = await house.find("hall")
    assert (hall.attempts, hall.delivered_at is not None) == (0, True)


async def test_one_that_fails_waits_and_the_others_go_on_in_their_order(house: House) -> None:
    for number, name in enumerate(("hall", "attic", "cellar")):
        await house.add(name, -number)
    house.lamps.fails["attic"] = GitHubUnavailable("no answer")
    await drain(house.lamps)
    assert house.lamps.switched == ["cellar", "attic", "hall"]
    attic = await house.find("attic")
    assert (attic.attempts, attic.trouble) == (1, "GitHub does not answer properly")
    assert attic.next_attempt_at == house.clock() + timedelta(seconds=2)
    house.clock.forward(2)
    house.lamps.fails.clear()
    await drain(house.lamps)
    assert house.lamps.switched == ["cellar", "attic", "hall", "attic"]
    assert (await house.find("attic")).trouble is None


@pytest.mark.parametrize(
    ("error", "after_s"),
    [(OverBudget(20), 20), (OverBudget(900), 60), (NotSent(next_attempt_at=NOON + timedelta(seconds=5)), 5)],
)
async def test_where_nothing_was_sent_there_was_no_attempt(house: House, error: Exception, after_s: float) -> None:
    await house.add("hall")
    house.lamps.fails["hall"] = error
    await drain(house.lamps)
    hall = await house.find("hall")
    assert (hall.attempts, hall.refusals) == (0, 0)
    assert hall.next_attempt_at == NOON + timedelta(seconds=after_s)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Abandoned("the lamp is sold"), "the lamp is sold"),
        (GitHubError(410, "Gone"), "the issue was deleted, moved, or converted to a discussion"),
    ],
)
async def test_one_that_can_never_be_is_given_up_with_a_reason(house: House, error: Exception, reason: str) -> None:
    await house.add("hall")
    house.lamps.fails["hall"] = error
    await drain(house.lamps)
    await drain(house.lamps)
    assert house.lamps.switched == ["hall"]
    assert (await house.find("hall")).abandoned == reason
    assert house.rings == ["notified"]


async def test_a_lost_claim_ends_the_pass_and_leaves_the_attempt_in_doubt(house: House) -> None:
    await house.add("hall")
    await house.add("attic", 1)
    house.lamps.fails["hall"] = ClaimLost("another replica")
    with pytest.raises(ClaimLost):
        await drain(house.lamps)
    assert house.lamps.switched == ["hall"]
    assert (await house.find("hall")).attempts == 1
