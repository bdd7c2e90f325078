from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from gidgethub import sansio
from gidgethub.routing import Router
from sqlalchemy import select, text

from bot.operations.context import find_operator
from bot.operations.deliveries import replay
from handlers.context import Context
from handlers.events import User
from handlers.inbox.inbox import (
    LANES_AT_ONCE,
    MAX_ATTEMPTS,
    MAX_LONE_DEATHS,
    SUSPECT_DEATHS,
    Inbox,
    TooEarly,
    count_deliveries,
    has_earlier,
)
from handlers.ports import GitHub, GitHubUnavailable
from runner.db.database import Database
from runner.db.schema import deliveries
from runner.rows.claims import ClaimLost
from tests.support.clock import Clock
from tests.support.jobs import open_database

Work = Callable[[str], Awaitable[None]]


class Desk:
    """An inbox whose deliveries do what a test says, by the word in their payload."""

    def __init__(self, database: Database, work: Work) -> None:
        self.database, self.clock, self.worked, self.rings = database, Clock(), list[str](), list[str]()
        router = Router()

        async def on_issues(event: sansio.Event, _context: Context) -> None:
            self.worked.append(event.data["word"])
            await work(event.data["word"])

        router.add(on_issues, "issues", action="labeled")
        self.inbox = Inbox(database, router, self.clock, lambda: self.rings.append("notified"))
        self.context = Context(cast(GitHub, None), database, {}, {}, "", (), self.clock, lambda: None)

    async def bring(
        self, word: str, lane: str = "octo/widgets#1", event: str = "issues", guid: str = "", **written: Any
    ) -> bool:
        """`written` says how the JSON is written down."""
        body = json.dumps({"action": "labeled", "word": word}, **written).encode()
        return await self.inbox.receive(guid or f"id-{word}", event, lane, body)

    async def settle(self) -> None:
        """Work until nothing is due."""
        await self.inbox.stop()
        before, state = None, await self.read_state()
        while before != state:
            await self.inbox.step(self.context)
            await self.inbox.stop()
            before, state = state, await self.read_state()

    async def read_state(self) -> Any:
        async with self.database.read() as connection:
            rows = (await connection.execute(select(deliveries).order_by(deliveries.c.sequence))).all()
        return rows, len(self.worked)

    async def row(self, word: str) -> Any:
        async with self.database.read() as connection:
            return (await connection.execute(select(deliveries).where(deliveries.c.id == f"id-{word}"))).one()


async def do_nothing(_word: str) -> None:
    return None


@asynccontextmanager
async def open_desk(url: str, work: Work = do_nothing) -> AsyncIterator[Desk]:
    async with open_database(url) as database:
        yield Desk(database, work)


@pytest.mark.slow
async def test_a_claim_that_is_lost_costs_a_delivery_no_attempt(database_url: str) -> None:
    lost = ["one"] * (MAX_ATTEMPTS + 1)

    async def lose_the_claim(_word: str) -> None:
        if lost:
            raise ClaimLost(lost.pop())

    async with open_desk(database_url, lose_the_claim) as desk:
        await desk.bring("one")
        await desk.settle()
        row = await desk.row("one")
        assert (row.state, row.attempts, row.error) == ("done", 0, None)


@pytest.mark.slow
async def test_a_repeated_delivery_is_worked_once(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        assert await desk.bring("one")
        assert not await desk.bring("one")
        await desk.settle()
        assert not await desk.bring("one")
        await desk.settle()
        assert desk.worked == ["one"]


async def test_a_copy_under_another_id_is_not_worked(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        await desk.bring("one", event="unknown")
        await desk.bring("one", guid="id-as-sent")
        await desk.bring("one", guid="id-copied")
        await desk.settle()
        await desk.bring("one", guid="id-copied-later", indent=2, sort_keys=True)
        await desk.settle()
        assert desk.worked == ["one"]
        assert await count_deliveries(desk.database, ["done", "failed", "pending"]) == {
            "done": 4,
            "failed": 0,
            "pending": 0,
        }


async def test_a_copy_of_a_delivery_that_was_set_aside_is_not_worked(sqlite_url: str) -> None:
    """It would fail again, or end the service again."""

    async def work(_word: str) -> None:
        raise RuntimeError("no")

    async with open_desk(sqlite_url, work) as desk:
        await desk.bring("one")
        for _ in range(MAX_ATTEMPTS):
            await desk.settle()
            desk.clock.forward(60)
        assert (await desk.row("one")).state == "failed"
        await desk.bring("one", guid="id-copied")
        await desk.settle()
        assert desk.worked == ["one"] * MAX_ATTEMPTS


async def test_a_delivery_is_no_copy_of_itself_when_it_is_worked_again(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.bring("one")
        await desk.settle()
        async with desk.database.write() as connection:
            await replay(connection, find_operator(), "id-one", force=True)
        await desk.settle()
        assert desk.worked == ["one", "one"]


async def test_deliveries_of_one_issue_keep_their_order(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        for number in range(5):
            await desk.bring(f"{number}")
        await desk.settle()
        assert desk.worked == ["0", "1", "2", "3", "4"]


async def test_a_slow_issue_does_not_hold_up_another(sqlite_url: str) -> None:
    slow, quick = asyncio.Event(), asyncio.Event()

    async def work(word: str) -> None:
        if word == "slow":
            await slow.wait()
        if word == "quick":
            quick.set()

    async with open_desk(sqlite_url, work) as desk:
        await desk.bring("slow", "octo/widgets#1")
        await desk.bring("behind", "octo/widgets#1")
        await desk.bring("quick", "octo/widgets#2")
        await desk.inbox.step(desk.context)
        async with asyncio.timeout(30):
            await quick.wait()
        assert "behind" not in desk.worked
        slow.set()
        await desk.settle()
        assert desk.worked[-1] == "behind"


async def test_a_delivery_that_keeps_failing_is_set_aside_and_the_next_one_goes_on(sqlite_url: str) -> None:
    async def work(word: str) -> None:
        if word == "poison":
            raise RuntimeError("no")

    async with open_desk(sqlite_url, work) as desk:
        await desk.bring("poison")
        await desk.bring("next")
        for _ in range(MAX_ATTEMPTS):
            await desk.settle()
            desk.clock.forward(60)
        await desk.settle()
        assert desk.worked == ["poison"] * MAX_ATTEMPTS + ["next"]
        row = await desk.row("poison")
        assert (row.state, row.error) == ("failed", "RuntimeError('no')")
        assert await count_deliveries(desk.database, ("pending", "failed")) == {"pending": 0, "failed": 1}


@pytest.mark.slow
async def test_an_outage_of_the_database_sets_nothing_aside(postgres_url: str) -> None:
    async def work(_word: str) -> None:
        if len(desk.worked) <= MAX_ATTEMPTS + 1:
            async with desk.database.write() as connection:
                await connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    async with open_desk(postgres_url, work) as desk:
        await desk.bring("label")
        for _ in range(MAX_ATTEMPTS + 2):
            await desk.settle()
            desk.clock.forward(60)
        assert (await desk.row("label")).state == "done"
        assert len(desk.worked) == MAX_ATTEMPTS + 2


async def test_a_delivery_waits_for_as_long_as_github_asks(sqlite_url: str) -> None:
    async def work(word: str) -> None:
        if desk.worked.count(word) < 5:
            raise GitHubUnavailable("rate limit", retry_after_s=300)

    async with open_desk(sqlite_url, work) as desk:
        await desk.bring("patient")
        await desk.settle()
        desk.clock.forward(299)
        await desk.settle()
        assert desk.worked == ["patient"]
        for _ in range(4):
            desk.clock.forward(301)
            await desk.settle()
        assert (await desk.row("patient")).state == "done"


async def test_a_malformed_payload_is_set_aside_at_once_without_its_values(sqlite_url: str) -> None:
    async def work(_word: str) -> None:
        User.model_validate({"login": {"secret": "hunter2"}})

    async with open_desk(sqlite_url, work) as desk:
        await desk.bring("odd")
        await desk.settle()
        row = await desk.row("odd")
        assert (row.state, row.error) == ("failed", "missing or invalid fields in the payload: login")


async def test_characters_that_a_database_refuses_hold_up_no_delivery(database_url: str) -> None:
    async def work(_word: str) -> None:
        raise GitHubUnavailable("it said \0 and \ud800")

    async with open_desk(database_url, work) as desk:
        assert await desk.bring("odd", lane="octo/\0\ud800#1")
        await desk.settle()
        row = await desk.row("odd")
        assert (row.state, row.attempts, row.error) == ("pending", 1, "it said \ufffd and ?")


async def test_what_nobody_handles_is_done(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.bring("unheard", event="workflow_run")
        await desk.settle()
        assert (await desk.row("unheard")).state == "done"
        assert desk.worked == []


async def test_what_was_stored_before_a_crash_is_worked_after_it(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        await desk.bring("kept")
    async with open_desk(database_url) as desk:
        await desk.settle()
        assert desk.worked == ["kept"]


async def test_a_slow_issue_does_not_hold_up_its_own_cancel_and_what_came_later_waits_for_it(database_url: str) -> None:
    slow = asyncio.Event()

    async def work(word: str) -> None:
        if word == "slow":
            await slow.wait()

    async with open_desk(database_url, work) as desk:
        await desk.bring("slow")
        await desk.inbox.step(desk.context)
        await desk.bring("cancel", "octo/widgets#1/cancel")
        await desk.bring("later")
        await desk.inbox.step(desk.context)
        await until(lambda: desk.worked == ["slow", "cancel"])
        slow.set()
        await desk.settle()
        assert desk.worked == ["slow", "cancel", "later"]


@pytest.mark.slow
async def test_eight_slow_issues_do_not_hold_up_a_cancel(sqlite_url: str) -> None:
    slow = asyncio.Event()

    async def work(word: str) -> None:
        if word != "cancel":
            await slow.wait()

    async with open_desk(sqlite_url, work) as desk:
        for number in range(LANES_AT_ONCE + 1):
            await desk.bring(f"{number}", f"octo/widgets#{number}")
        await desk.inbox.step(desk.context)
        await desk.bring("cancel", "octo/widgets#99/cancel")
        await desk.inbox.step(desk.context)
        await until(lambda: len(desk.worked) == LANES_AT_ONCE + 1)  # The slow ones may begin after the cancel.
        assert "cancel" in desk.worked
        slow.set()
        await desk.settle()


async def test_a_cancel_that_came_too_early_is_worked_again_and_what_came_later_waits_for_it(sqlite_url: str) -> None:
    slow = asyncio.Event()

    async def work(word: str) -> None:
        if word == "slow":
            await slow.wait()
        if word == "cancel":
            async with desk.database.read() as connection:
                if await has_earlier(connection, "id-cancel"):
                    raise TooEarly

    async with open_desk(sqlite_url, work) as desk:
        await desk.bring("slow")
        await desk.bring("cancel", "octo/widgets#1/cancel")
        await desk.bring("later")
        await desk.inbox.step(desk.context)
        await until(lambda: len(desk.rings) == 1 and "slow" in desk.worked)
        row = await desk.row("cancel")
        assert (row.state, row.attempts) == ("pending", 0)
        await desk.inbox.step(desk.context)
        assert sorted(desk.worked) == ["cancel", "slow"], "it rests"
        await until(lambda: len(desk.rings) == 2)
        desk.clock.forward(60)
        slow.set()
        await desk.settle()
        assert desk.worked[2:] == ["cancel", "later"]


async def live_and_die(url: str, *deadly: str) -> list[str]:
    """A service that dies once each of these deliveries is in hand, or ends when nothing is due: what it began."""
    in_hand = set[str]()

    async def work(word: str) -> None:
        if word in deadly:
            in_hand.add(word)
            await asyncio.Event().wait()

    async with open_desk(url, work) as desk:
        await desk.inbox.begin()
        rings = -1
        while rings != len(desk.rings):
            rings = len(desk.rings)
            await desk.inbox.step(desk.context)
            stopping = asyncio.ensure_future(desk.inbox.stop())
            while not stopping.done() and (not deadly or in_hand != {*deadly}):
                await asyncio.sleep(0.01)
            if not stopping.done():
                await desk.inbox.abandon()
                break
        return desk.worked


@pytest.mark.slow
async def test_a_delivery_that_ends_the_service_each_time_is_set_aside_and_its_neighbours_are_worked(
    sqlite_url: str,
) -> None:
    words = [f"{number}" for number in range(4)]
    async with open_desk(sqlite_url) as desk:
        for word in words:
            await desk.bring(word, f"octo/widgets#{word}")
    for _ in range(SUSPECT_DEATHS):
        assert sorted(await live_and_die(sqlite_url, *words)) == words
    lives = [await live_and_die(sqlite_url, "2") for _ in range(4)]
    assert lives == [["0", "1", "2"], ["2"], ["2"], ["3"]], "it is worked alone three times, and then no more"
    async with open_desk(sqlite_url) as desk:
        rows = [await desk.row(word) for word in words]
        assert [row.state for row in rows] == ["done", "done", "failed", "done"]
        assert rows[2].error == "the service ended 3 times while it processed only this delivery"
        await desk.bring("2", lane=rows[2].lane, guid="id-copied")
        await desk.settle()
        assert desk.worked == [], "a copy would end it, too"


@pytest.mark.slow
async def test_the_lane_of_one_that_was_worked_alone_holds_nobody_up_later(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.bring("suspect")
    for _ in range(SUSPECT_DEATHS):
        await live_and_die(sqlite_url, "suspect")
    slow = asyncio.Event()

    async def work(word: str) -> None:
        if word == "slow":
            await slow.wait()

    async with open_desk(sqlite_url, work) as desk:
        await desk.inbox.begin()
        await desk.settle()
        await desk.bring("slow")
        await desk.inbox.step(desk.context)
        await until(lambda: desk.worked == ["suspect", "slow"])
        await desk.bring("quick", "octo/widgets#2")
        await desk.inbox.step(desk.context)
        await until(lambda: desk.worked == ["suspect", "slow", "quick"])
        slow.set()
        await desk.settle()


@pytest.mark.slow
async def test_whatever_else_ends_the_service_costs_a_delivery_nothing(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.bring("victim")
    for _ in range(SUSPECT_DEATHS + MAX_LONE_DEATHS - 1):
        assert await live_and_die(sqlite_url, "victim") == ["victim"]
    assert await live_and_die(sqlite_url) == ["victim"]
    async with open_desk(sqlite_url) as desk:
        row = await desk.row("victim")
        assert (row.state, row.attempts, row.begun, row.error) == ("done", 0, 0, None)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)
