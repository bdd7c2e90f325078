"""What recovery asks GitHub about labels: how often, and since when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from sqlalchemy import select

from handlers.commands.rights import Person, Surface
from handlers.context import Context
from handlers.events import Issue, User
from handlers.inbox.inbox import Inbox
from handlers.ports import DeliveryAttempt, GitHub, Labelling, TooLong
from handlers.recovery.recovery import Recovery
from handlers.rules import RepositoryRules, Role
from handlers.triggers.labels import pause_repository
from handlers.triggers.router import ROUTER
from runner.db.schema import deliveries, replies
from runner.rows import job_rows
from runner.rows.pauses import fetch_pauses
from tests.handlers.asked import NAME, render_payload
from tests.support.clock import Clock
from tests.support.jobs import open_database
from tests.support.model_github import ModelGitHub

RULES = RepositoryRules(NAME, "mine", labels={"ptq": "fix"})


class LabelledIssue(ModelGitHub):
    """An issue whose label a stranger has added, and on which they comment all the time."""

    def __init__(self, now: Clock) -> None:
        super().__init__(now)
        self.labels[7] = {"ptq"}
        self.labellings[7] = [Labelling(User(login="stranger"), now())]
        self.timelines_read = 0
        self.missed = list[DeliveryAttempt]()

    async def list_deliveries(self, since: datetime) -> list[DeliveryAttempt]:
        return self.missed

    async def fetch_payload(self, attempt_id: int) -> Mapping[str, Any]:
        return render_payload(7, "stranger", self._now(), action="labeled", label={"name": "PTQ"})

    async def list_labelled_issues(self, repository: str, label: str, since: datetime) -> AsyncIterator[Issue]:
        if label == "ptq":
            yield self._show_issue(7)

    async def list_labellings(self, repository: str, issue_number: int, label: str) -> list[Labelling]:
        self.timelines_read += 1
        return await super().list_labellings(repository, issue_number, label)


async def test_the_timeline_of_a_decided_label_is_read_once_an_hour_or_for_a_missed_delivery(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        clock = Clock()
        github = LabelledIssue(clock)
        context = Context(cast(GitHub, github), database, {NAME: RULES}, {}, "https://ptq", (), clock, lambda: None)
        inbox = Inbox(database, ROUTER, clock)
        recovery = Recovery(context, inbox, ROUTER, sweep_max=5, in_flight_s=30, is_relayed=False)
        await recovery.begin()
        clock.forward(300)
        for _ in range(5):
            clock.forward(300)
            github.say(7, "stranger", "me too")
            await recovery.step()
        assert github.timelines_read == 1
        github.missed = [DeliveryAttempt(1, "guid", "issues", "labeled", clock(), succeeded=False)]
        await recovery.step()
        assert github.timelines_read == 2
        github.missed = []
        clock.forward(3601)
        github.labellings[7] = [Labelling(User(login="stranger"), clock() - timedelta(minutes=1))]
        await recovery.step()
        assert github.timelines_read == 3


class LongTimeline(LabelledIssue):
    """Beside issue 8 with a missed label, an issue with a label whose timeline is longer than what we read."""

    def __init__(self, now: Clock) -> None:
        super().__init__(now)
        self.labels[8] = {"ptq"}
        self.missed_label = Labelling(User(login="boss"), now() + timedelta(minutes=1))
        self.writers.add("boss")

    async def list_labelled_issues(self, repository: str, label: str, since: datetime) -> AsyncIterator[Issue]:
        if label == "ptq":
            yield self._show_issue(7)
            yield self._show_issue(8)

    async def list_labellings(self, repository: str, issue_number: int, label: str) -> list[Labelling]:
        if issue_number == 7:
            self.timelines_read += 1
            raise TooLong("the timeline", 100)
        return [self.missed_label]

    async def fetch_payload(self, attempt_id: int) -> Mapping[str, Any]:
        return render_payload(7, "boss", self._now(), action="labeled", label={"name": "ptq"})

    async def find_remover(self, repository: str, issue_number: int, label: str) -> User | None:
        self.timelines_read += 1
        raise TooLong("the timeline", 100)


@asynccontextmanager
async def open_recovery(
    tmp_path: Path,
) -> AsyncIterator[tuple[Context, LongTimeline, Recovery, Clock]]:
    async with open_database(tmp_path) as database:
        clock = Clock()
        github = LongTimeline(clock)
        context = Context(cast(GitHub, github), database, {NAME: RULES}, {}, "https://ptq", (), clock, lambda: None)
        inbox = Inbox(database, ROUTER, clock)
        recovery = Recovery(context, inbox, ROUTER, sweep_max=5, in_flight_s=30, is_relayed=False)
        await recovery.begin()
        yield context, github, recovery, clock


async def test_an_issue_with_a_timeline_that_is_too_long_keeps_no_label_of_another_issue_waiting(
    tmp_path: Path,
) -> None:
    async with open_recovery(tmp_path) as (context, github, recovery, clock):
        for _ in range(3):
            clock.forward(300)
            await recovery.step()
        assert github.timelines_read == 1
        assert await list_answered(context) == [8]
        github.missed = [DeliveryAttempt(1, "guid", "issues", "labeled", clock(), succeeded=False)]
        await recovery.step()
        async with context.db.read() as connection:
            assert (await connection.execute(select(deliveries.c.id))).scalars().all() == ["guid"]
        assert github.timelines_read == 1


async def test_a_pause_by_an_issue_with_a_timeline_that_is_too_long_keeps_no_label_waiting(tmp_path: Path) -> None:
    async with open_recovery(tmp_path) as (context, github, recovery, clock):
        boss = Person("boss", Surface.THREAD, RULES, Role.WRITE)
        await pause_repository(context, boss, 7, "the pause")
        for _ in range(3):
            clock.forward(300)
            await recovery.step()
        assert github.timelines_read == 1
        async with context.db.read() as connection:
            assert len(await fetch_pauses(connection)) == 1
        assert await list_answered(context) == [7, 8]


async def list_answered(context: Context) -> list[int]:
    async with context.db.read() as connection:
        rows = await connection.execute(select(replies.c.issue_number).order_by(replies.c.issue_number))
        return [*rows.scalars()]


async def test_labels_from_while_a_repository_was_not_configured_start_nothing(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        clock, repositories = Clock(), {NAME: RULES}
        github = LabelledIssue(clock)
        github.writers.add("stranger")
        context = Context(cast(GitHub, github), database, repositories, {}, "https://ptq", (), clock, lambda: None)
        inbox = Inbox(database, ROUTER, clock)
        recovery = Recovery(context, inbox, ROUTER, sweep_max=5, in_flight_s=30, is_relayed=False)
        await recovery.begin()
        repositories.clear()
        await recovery.step()
        clock.forward(300)
        github.labellings[7] = [Labelling(User(login="stranger"), clock())]
        clock.forward(60)
        repositories[NAME] = RULES
        for _ in range(2):
            await recovery.step()
            clock.forward(300)
        async with database.read() as connection:
            assert await job_rows.fetch_recent_jobs(connection, 1) == []
            assert (await connection.execute(select(replies.c.body))).all() == []
