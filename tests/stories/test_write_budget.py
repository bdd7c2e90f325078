"""Fifty jobs that all have something to say at once, told by two replicas that keep one budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from bot.config.manifest import load_manifest
from bot.demo.repository import make_repository
from bot.github import AppGitHub, Timings
from github_standin import StandIn
from handlers.cases import casebook
from handlers.context import Context
from handlers.effects.drain import drain
from handlers.effects.outbox import Comments
from handlers.effects.rate_limit import Budget, SharedBudget
from handlers.ports import GitHubUnavailable, OverBudget, WritePriority
from runner.db.database import Database
from runner.rows import job_rows
from tests.support.jobs import make_job, open_database
from tests.support.scripted_github import FAST, app_key_pem, app_public_pem

pytestmark = pytest.mark.slow

NAME = "octo/widgets"
JOBS = 50
SPEED = 60
"""How much faster than real time the clock of these stories runs, so that GitHub's minute is a second of ours."""


class FastClock:
    def __init__(self) -> None:
        self._began = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self._began + (datetime.now(UTC) - self._began) * SPEED


@dataclass
class Office:
    """A stand-in that enforces its limits, and two replicas of the service that write to it."""

    github: StandIn
    clock: FastClock
    budget: Budget
    desks: list[Context]
    databases: list[Database]

    async def add(self, kind: str, body: str) -> None:
        now = self.clock()
        async with self.databases[0].write() as connection:
            for number in range(JOBS):
                job = make_job(id=f"job{number}", thread=number + 1)
                await job_rows.insert_job(connection, job)
                await casebook.insert_reply(connection, casebook.draft_reply(f"{kind}{number}", kind, job, body, now))

    async def change_statuses(self, body: str) -> None:
        async with self.databases[0].write() as connection:
            for status in await casebook.fetch_open_statuses(connection):
                await casebook.change_reply(connection, status, body=body, next_attempt_at=self.clock())

    def refused(self) -> list[int]:
        return [seen.status for seen in self.github.exchanges if seen.status in (403, 429)]

    def written(self) -> list[datetime]:
        return [
            seen.at for seen in self.github.exchanges if seen.method in ("POST", "PATCH") and "/issues" in seen.path
        ]

    def bodies(self) -> list[str]:
        """What was written, in the order in which GitHub took it."""
        writes = [seen for seen in self.github.exchanges if seen.method in ("POST", "PATCH") and "/issues" in seen.path]
        return [
            word
            for seen in writes
            for word in ("report", "status", "edit")
            if f"a {word}".encode() in seen.request_body
        ]

    def check_windows(self) -> None:
        for period_s, most in ((60, self.budget.per_minute), (3600, self.budget.per_hour)):
            times = self.written()
            for first, later in zip(times, times[most:], strict=False):
                assert (later - first).total_seconds() >= period_s, f"more than {most} in {period_s} s"


@asynccontextmanager
async def open_office(folder: Path, per_minute: int, per_hour: int) -> AsyncIterator[Office]:
    clock, manifest = FastClock(), load_manifest()
    github = StandIn(
        app_id="12345",
        app_slug="ptq-bot",
        app_public_key=app_public_pem(),
        webhook_secret="secret",
        app_permissions=manifest.permissions,
        app_events=manifest.events,
        clock=clock,
    )
    github.limits.content_per_minute, github.limits.content_per_hour = per_minute, per_hour
    make_repository(folder / "widgets.git")
    github.add_repository(NAME, folder / "widgets.git")
    for _ in range(JOBS):
        await github.open_issue(NAME, "Broken", "It is broken.", by="stranger")
    await github.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(github.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        timings = replace(FAST, writes_per_minute=per_minute, writes_per_hour=per_hour, max_wait_s=0.2)
        desks, databases = [], []
        for _ in range(2):
            database = await stack.enter_async_context(open_database(folder))
            client = make_client(session, github, timings, clock, SharedBudget(database, timings.budget(), clock))
            databases.append(database)
            desks.append(Context(client, database, {}, {}, "https://ptq.example", (), clock, lambda: None))
        yield Office(github, clock, timings.budget(), desks, databases)
    assert github.complaints == []


def make_client(
    session: aiohttp.ClientSession, github: StandIn, timings: Timings, clock: FastClock, budget: SharedBudget
) -> AppGitHub:
    return AppGitHub(
        session,
        api_url=github.api_url,
        app_id="12345",
        private_key=app_key_pem(),
        timings=timings,
        now=clock,
        budget=budget,
    )


async def test_fifty_jobs_at_once_are_told_within_githubs_limits_and_their_reports_first(tmp_path: Path) -> None:
    async with open_office(tmp_path, per_minute=40, per_hour=10_000) as office:
        await office.add("status", "a status")
        async with asyncio.timeout(60):
            while office.bodies().count("status") < JOBS:
                await drain(Comments(office.desks[0]))
                await asyncio.sleep(0.05)
        await office.change_statuses("a live edit")
        before = len(office.bodies())
        await office.add("report", "a report")
        async with asyncio.timeout(60):
            while office.bodies().count("report") < JOBS:
                await drain(Comments(office.desks[0]))
                await asyncio.sleep(0.05)
        assert office.refused() == []
        told = office.bodies()[before:]
        assert told.index("report") == 0
        assert "edit" not in told[: told.index("report") + JOBS // 2]
        assert told.count("report") == JOBS
        office.check_windows()


async def test_two_replicas_that_write_all_they_can_never_overspend_together(tmp_path: Path) -> None:
    async with open_office(tmp_path, per_minute=12, per_hour=30) as office:

        async def write(desk: Context) -> int:
            dropped = 0
            for number in range(120):
                priority = list(WritePriority)[number % len(WritePriority)]
                try:
                    await desk.github.create_comment(NAME, number % JOBS + 1, "a reply", priority)
                except OverBudget:
                    dropped += 1
                    await asyncio.sleep(0.04)
                except GitHubUnavailable as error:
                    raise AssertionError("the stand-in had to refuse") from error
            return dropped

        dropped = await asyncio.gather(*(write(desk) for desk in office.desks))
        assert min(dropped) > 0
        assert office.refused() == []
        assert len(office.written()) == 30
        office.check_windows()
