"""Comments of earlier attempts are folded when a newer report is on GitHub; nothing depends on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from handlers.cases import casebook
from handlers.cases.case import Case, CaseState
from handlers.cases.casebook import Pull
from handlers.context import Context
from handlers.effects.drain import drain
from handlers.effects.outbox import Comments
from handlers.effects.outdated_comments import PATIENCE, OutdatedComments
from handlers.ports import GitHub, GitHubError, GitHubUnavailable, OverBudget
from runner.db.database import Database
from runner.model.job import Job, JobState
from runner.rows import job_rows
from tests.handlers.test_report_comment import result
from tests.support.clock import Clock
from tests.support.jobs import make_job, open_database, store_report
from tests.support.model_github import ModelGitHub

NAME, ISSUE = "octo/widgets", 7
KEY = f"{NAME}#{ISSUE}"


class FoldingGitHub(ModelGitHub):
    """It also notes which comments are folded, and refuses that as a test says."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.folded = list[int]()
        self.refusals = list[Exception]()

    async def minimize_comment(self, repository: str, comment_id: int) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.folded.append(comment_id)


@dataclass
class Issue:
    """An issue with a case, and its attempts."""

    db: Database
    github: FoldingGitHub
    clock: Clock
    jobs: list[Job] = field(default_factory=list)

    async def attempt(self, state: JobState = JobState.SUCCEEDED, body: str = "fix staged", **changes: Any) -> Job:
        """An ended attempt whose status and report are posted."""
        number = len(self.jobs) + 1
        job = make_job(id=f"{number:010}", attempt=number, thread=ISSUE, state=state, **changes)
        self.jobs.append(job)
        async with self.db.write() as connection:
            await job_rows.insert_job(connection, job)
            await store_report(connection, replace(result(), job_id=job.id, body=body))
            for kind in ("status", "report"):
                reply = casebook.draft_reply(f"{kind}{number}", kind, job, f"{kind} {number}", self.clock())
                await casebook.insert_reply(connection, reply)
        await drain(Comments(self.context))
        return job

    @property
    def context(self) -> Context:
        return Context(cast(GitHub, self.github), self.db, {}, {}, "https://ptq", (), self.clock, lambda: None)

    async def fold(self, passes: int = 1) -> list[str]:
        """Passes of the loop, some hours one after the other. Returns the texts of all folded comments."""
        for _ in range(passes):
            await drain(OutdatedComments(self.context))
            self.clock.forward(7200)
        texts = {comment.id: comment.body.split("\n")[1] for comment in self.github.threads[ISSUE]}
        return sorted(texts[number] for number in self.github.folded)


@pytest.fixture
async def issue(database_url: str) -> AsyncIterator[Issue]:
    async with open_database(database_url) as database:
        clock = Clock()
        yield Issue(database, FoldingGitHub(clock), clock)


async def test_a_newer_report_folds_the_comments_of_an_earlier_attempt_once(issue: Issue) -> None:
    first = await issue.attempt()
    assert await issue.fold() == []
    await issue.attempt(follows=first.id)
    assert await issue.fold(3) == ["report 1", "status 1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("earlier", "newer", "folds"),
    [
        ({"preset": "fix"}, {"preset": "fix"}, True),
        ({"preset": "repro"}, {"preset": "fix"}, False),
        ({"preset": "fix"}, {"preset": "rebase", "follows": "0000000001"}, True),
        ({"preset": "fix"}, {"preset": "verify", "follows": "0000000001"}, False),
        ({"preset": "verify"}, {"preset": "verify"}, True),
        ({"preset": "fix"}, {"preset": "fix", "state": JobState.FAILED}, False),
        ({"preset": "fix", "state": JobState.FAILED}, {"preset": "fix"}, True),
    ],
)
async def test_only_what_a_newer_report_replaces_is_folded(
    issue: Issue, earlier: dict[str, Any], newer: dict[str, Any], folds: bool
) -> None:
    await issue.attempt(**earlier)
    await issue.attempt(**newer)
    assert await issue.fold() == (["report 1", "status 1"] if folds else [])


@pytest.mark.parametrize(("body", "folds"), [("fix staged", True), ("security concern", False)])
async def test_a_withheld_report_folds_nothing_for_that_would_tell_how_its_run_ended(
    issue: Issue, body: str, folds: bool
) -> None:
    await issue.attempt()
    await issue.attempt(body=body)
    assert await issue.fold() == (["report 1", "status 1"] if folds else [])


@pytest.mark.slow
async def test_what_a_note_can_still_approve_or_has_approved_stays(issue: Issue) -> None:
    first = await issue.attempt()
    now = issue.clock()
    async with issue.db.write() as connection:
        awaiting = Case(KEY, NAME, ISSUE, "It breaks", CaseState.AWAITING_NOTE, now, now, None, first.id)
        await casebook.save_case(connection, awaiting)
    second = await issue.attempt()
    assert await issue.fold() == []
    pull = Pull(second.id, "d" * 64, "note", "maintainer", "https://note", "ptq/issue-7", now, next_attempt_at=now)
    async with issue.db.write() as connection:
        await casebook.save_pull(connection, pull)
    await issue.attempt()
    assert await issue.fold() == []
    async with issue.db.write() as connection:
        await casebook.save_pull(connection, replace(pull, abandoned="the branch is protected"))
    await issue.attempt()
    assert await issue.fold() == ["report 2", "report 3", "status 2", "status 3"]


async def test_a_server_that_refuses_is_asked_a_few_times(issue: Issue) -> None:
    issue.github.refusals += [GitHubError(403, "Resource not accessible by integration")] * 100
    await issue.attempt()
    await issue.attempt()
    assert await issue.fold(10) == []
    assert len(issue.github.refusals) == 100 - 2 * PATIENCE


@pytest.mark.slow
@pytest.mark.parametrize("mishap", [GitHubUnavailable("502"), OverBudget(30)])
async def test_an_outage_or_a_full_budget_delays_it(issue: Issue, mishap: Exception) -> None:
    issue.github.refusals += [mishap] * 12
    await issue.attempt()
    await issue.attempt()
    assert await issue.fold(10) == ["report 1", "status 1"]
