"""What recovery asks GitHub about labels: how often, and since when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from sqlalchemy import select

from handlers.context import Context
from handlers.events import Issue, User
from handlers.inbox.inbox import Inbox
from handlers.ports import DeliveryAttempt, GitHub, Labelling
from handlers.recovery.recovery import Recovery
from handlers.rules import RepositoryRules
from handlers.triggers.router import ROUTER
from runner.db.schema import replies
from runner.rows import job_rows
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

    async def list_labelled_issues(self, repository: str, label: str, since: datetime) -> list[Issue]:
        return [self._show_issue(7)] if label == "ptq" else []

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
