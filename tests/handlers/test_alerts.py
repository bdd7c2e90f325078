"""What an operator is told of by itself, over a real database: once for each occasion, and as things stand by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest

from handlers.context import Context
from handlers.notices.alerts import Alerts
from handlers.notices.notifications import clean_for_chat, render_payload
from handlers.rules import RepositoryRules
from runner.db.database import Database
from runner.model.caps import Caps, Scope
from runner.model.job import JobKind, JobState, Report
from runner.model.machines import Machine, Outage
from runner.rows import job_rows
from runner.rows.machine_states import drain, forget_outage, resume, save_outage
from runner.rows.notifications import change_notification, fetch_waiting
from tests.support.clock import Clock
from tests.support.jobs import NOON, SPELLED, make_job, open_database, store_report
from tests.support.meters import make_meter


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("see https://evil.example/x", "see https[:]//evil.example/x"),
        ("<https://evil.example|here>", "&lt;https[:]//evil.example|here&gt;"),
        ("www.evil.example mailto:a@b.example", "www[.]evil.example mailto[:]a@b.example"),
        ("[words](evil.example), ![](//evil.example)", "[words] (evil.example), ![] (//evil.example)"),
        ("[a]((b))[c](d) at x[0](y)", "[a] ((b))[c] (d) at x[0] (y)"),
        ("Why: it ends early.", "Why: it ends early."),
    ],
)
def test_an_address_in_others_words_is_no_link_in_a_chat(said: str, shown: str) -> None:
    assert clean_for_chat(said, ()) == shown


REST = timedelta(minutes=10)
CAPS = {
    Scope.USER_DAY: Caps(jobs=3),
    Scope.REPOSITORY_DAY: Caps(cost_usd=5.0),
    Scope.REPOSITORY_MONTH: Caps(tokens=10_000),
}


@dataclass
class Watch:
    db: Database
    clock: Clock
    alerts: Alerts

    def start_again(self, caps: Mapping[Scope, Caps] | None = None) -> None:
        rules = RepositoryRules(name="octo/widgets", agent="mine", caps=CAPS if caps is None else caps)
        context = Context(
            github=cast("Any", None),
            db=self.db,
            repositories={"octo/widgets": rules},
            agents={},
            public_url="https://ptq.example",
            secrets=(),
            now=self.clock,
            notify=lambda: None,
            machines={"gpu-1": Machine("gpu-1", "/srv/ptq")},
        )
        self.alerts = Alerts(context, REST)

    async def break_down(self, *, permanent: bool = False) -> None:
        now = self.clock()
        async with self.db.write() as connection:
            await save_outage(connection, "gpu-1", Outage("no route", permanent, now, now, now))

    async def repair(self) -> None:
        async with self.db.write() as connection:
            await forget_outage(connection, "gpu-1")

    async def hear(self, minutes: float = 1.0, *, delivered: bool = True) -> list[str]:
        """What is news after some minutes, and is told if it can be."""
        self.clock.forward(60 * minutes)
        await self.alerts.step()
        async with self.db.write() as connection:
            waiting = await fetch_waiting(connection)
            for notification in waiting if delivered else ():
                await change_notification(connection, notification, delivered_at=self.clock())
        return [render_payload(notification, ())["text"] for notification in waiting]


@asynccontextmanager
async def open_watch(url: str) -> AsyncIterator[Watch]:
    async with open_database(url) as database:
        watch = Watch(database, Clock(), cast("Any", None))
        watch.start_again()
        yield watch


DOWN = ["Machine gpu-1 is out of service: no route. It gets no jobs until it works again."]
BACK = ["Machine gpu-1 is back."]


async def test_a_machine_that_is_out_and_back_is_told_of_once_each_also_by_the_next_service(database_url: str) -> None:
    async with open_watch(database_url) as watch:
        assert await watch.hear() == []
        await watch.break_down()
        assert await watch.hear(0.6) == [], "a hiccup is nobody's business"
        assert await watch.hear() == DOWN
        watch.start_again()
        assert await watch.hear(60) == []
        await watch.repair()
        assert await watch.hear() == BACK
        watch.start_again()
        assert await watch.hear(60) == []
        await watch.break_down(permanent=True)
        assert await watch.hear() == ["Machine gpu-1 is out of service until it is fixed: no route."]


@pytest.mark.slow
async def test_a_machine_that_flaps_is_told_of_once_in_ten_minutes_and_as_it_is_by_then(sqlite_url: str) -> None:
    async with open_watch(sqlite_url) as watch:
        heard = []
        for _ in range(14):
            await watch.break_down(permanent=True)
            heard += await watch.hear()
            await watch.repair()
            heard += await watch.hear()
        assert len(heard) == 3, "28 minutes"
        assert (await watch.hear(20), await watch.hear(20)) in (([], []), (BACK, []))


async def test_what_nobody_could_be_told_and_is_so_no_more_is_not_told(sqlite_url: str) -> None:
    async with open_watch(sqlite_url) as watch:
        await watch.break_down(permanent=True)
        assert len(await watch.hear(delivered=False)) == 1
        await watch.repair()
        assert await watch.hear() == []
        assert await watch.hear(60) == []


async def test_what_an_operator_has_drained_is_in_their_hands(sqlite_url: str) -> None:
    async with open_watch(sqlite_url) as watch:
        async with watch.db.write() as connection:
            await drain(connection, "gpu-1", "me", NOON)
        await watch.break_down(permanent=True)
        assert await watch.hear() == []
        async with watch.db.write() as connection:
            await resume(connection, "gpu-1")
        assert await watch.hear() == []


async def run(watch: Watch, job_id: str, series: int | None = None, body: str = "", **taken: Any) -> None:
    """A job that has ended by now."""
    now = watch.clock()
    states: dict[str, Any] = {"state": JobState.SUCCEEDED, "created_at": now, "ended_at": now}
    if series is not None:
        states |= {"kind": JobKind.TASK, "series": series, "name": f"task{series}"}
    async with watch.db.write() as connection:
        await job_rows.insert_job(connection, make_job(id=job_id, **states))
        await job_rows.save_meter(connection, make_meter(job_id, **taken))
        if body:
            await store_report(connection, Report(job_id, body, "", "", "", "", (), None))


@pytest.mark.parametrize("body", SPELLED)
async def test_a_concern_in_any_spelling_reaches_the_operator(sqlite_url: str, body: str) -> None:
    async with open_watch(sqlite_url) as watch:
        await run(watch, "aaaaaaaaaa", 1, body)
        assert any("security concern" in words for words in await watch.hear())


async def test_each_cap_of_a_day_or_a_month_is_told_of_once_in_that_time(database_url: str) -> None:
    async with open_watch(database_url) as watch:
        await run(watch, "aaaaaaaaaa", cost_usd=3.99, input_tokens=7_999)
        assert await watch.hear() == []
        await run(watch, "bbbbbbbbbb", cost_usd=1.01, input_tokens=3_000)
        end, key = "is used up. No new jobs start.", "You can raise it: caps.{} in ptq.toml."
        assert await watch.hear() == [
            f"octo/widgets: the cap of $5.00 for this repository today {end} Running agents are stopped. "
            f"{key.format('repository_day.cost_usd')}",
            f"octo/widgets: the cap of 10,000 tokens for this repository this month {end} "
            f"Running agents are stopped. {key.format('repository_month.tokens')}",
        ]
        await run(watch, "cccccccccc")
        assert await watch.hear() == [
            f"maintainer: the cap of 3 jobs for what maintainer asked for today {end} {key.format('user_day.jobs')}"
        ]
        watch.start_again()
        assert await watch.hear() == []
        watch.start_again({Scope.REPOSITORY_DAY: Caps(cost_usd=4.0)})
        assert len(await watch.hear()) == 1, "another cap is another occasion"
        watch.start_again()
        assert await watch.hear(24 * 60) == [], "a new day, in which nothing was spent yet"


async def test_a_cap_of_a_day_or_a_month_that_is_near_is_told_of_once_in_that_time(sqlite_url: str) -> None:
    async with open_watch(sqlite_url) as watch:
        await run(watch, "aaaaaaaaaa", cost_usd=4.0, input_tokens=9_999)
        rest = "At 100 % no new jobs start, and running agents are stopped. You can raise it: caps"
        near = [
            f"octo/widgets: 80 % of the cap of $5.00 for this repository today is used. {rest}.repository_day.cost_usd"
            " in ptq.toml.",
            "octo/widgets: 99 % of the cap of 10,000 tokens for this repository this month is used. "
            f"{rest}.repository_month.tokens in ptq.toml.",
        ]
        beside = Watch(watch.db, watch.clock, watch.alerts)
        beside.start_again()
        await asyncio.gather(watch.alerts.step(), beside.alerts.step())  # Two replicas.
        assert await watch.hear() == near
        await run(watch, "bbbbbbbbbb", cost_usd=0.5)
        watch.start_again()
        assert await watch.hear() == [], "after a restart, with more of it used"
        watch.start_again({Scope.REPOSITORY_DAY: Caps(cost_usd=5.5)})
        assert len(await watch.hear()) == 1, "another cap is another occasion"
        watch.start_again()
        await run(watch, "cccccccccc", cost_usd=0.5)
        (of_day,) = [text for text in await watch.hear() if "$5.00" in text]
        assert "is used up" in of_day


async def test_a_security_concern_of_a_task_without_an_issue_reaches_the_operator_once(database_url: str) -> None:
    async with open_watch(database_url) as watch:
        watch.start_again({})
        await run(watch, "aaaaaaaaaa", 1, "security concern\n\n## Summary\nAnyone may <b>write</b>.\n")
        await run(watch, "bbbbbbbbbb", 2, "fix staged\n\n## Summary\nOf concern to nobody.\n")
        await run(watch, "cccccccccc", None, "security concern\n\n## Summary\nIts issue's reporter tells of it.\n")
        words = "octo/widgets~task1: an agent reports a security concern. Anyone may &lt;b&gt;write&lt;/b&gt;."
        assert await watch.hear() == [words]
        watch.start_again({})
        assert await watch.hear() == []
