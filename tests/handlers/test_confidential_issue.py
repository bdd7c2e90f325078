"""After a confidential report, everything that further attempts on the issue find is for operators alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from bot.operations.jobs import NotDone, lift
from handlers.cases import casebook
from handlers.cases.case import Case, CaseState
from handlers.cases.known_repositories import SharedRepositories
from handlers.cases.withheld import fetch_withheld
from handlers.commands.rights import Person, Surface
from handlers.context import Context
from handlers.jobs.outcomes import report_jobs
from handlers.jobs.preconditions import find_known
from handlers.jobs.start import open_job, start_again
from handlers.notices.notifications import render_payload
from handlers.rules import VERIFY, RepositoryRules
from handlers.words.replies import render_confidential
from runner.agents import AgentSpec
from runner.checks.verification import Check, CheckKind, CheckRun, Side
from runner.db.database import Database
from runner.model.job import Job, JobState, Posts, ask_again
from runner.rows import job_rows
from runner.rows.check_rows import add_checks, save_runs
from runner.rows.notifications import NotificationKind, fetch_newest
from tests.handlers.test_report_comment import result
from tests.support.clock import Clock
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.model_github import ModelGitHub

CONCERN = "security concern\n\n## Summary\nAnyone may empty the till.\n"
FIXED = "fix staged\n\n## Summary\nNobody can empty the till any more.\n"
OPERATOR = Person("root", Surface.TERMINAL, is_operator=True)
AGENT = AgentSpec("mine", "command", ("true",))


@dataclass
class Issue:
    """An issue, and its attempts, one after the other."""

    db: Database
    context: Context
    clock: Clock

    async def begin(self, number: int, **changes: Any) -> Job:
        """A new attempt, as every way to start one begins it."""
        async with self.db.write() as connection:
            wanted = ask_again(make_job(**changes), id=f"{number:010}")
            return await open_job(connection, "", wanted, self.context.now())

    async def end(self, job: Job, body: str | None, state: JobState = JobState.SUCCEEDED) -> str:
        """Its end, with this report. Returns what the thread reads."""
        async with self.db.write() as connection:
            for step in (JobState.PREPARING, JobState.RUNNING, JobState.COLLECTING, state):
                job = await job_rows.move_job(connection, job, step, self.context.now())
            if body is not None:
                await store_report(connection, replace(result(), job_id=job.id, body=body))
        await report_jobs(self.context)
        async with self.db.read() as connection:
            reply = await casebook.fetch_job_reply(connection, job.id, "report")
        return reply.body if reply else ""

    async def attempt(self, number: int, body: str | None) -> str:
        """A whole attempt. Returns what the thread reads."""
        return await self.end(await self.begin(number), body)

    async def lift(self, number: int) -> None:
        async with self.db.write() as connection:
            job = await job_rows.fetch_job(connection, f"{number:010}")
            assert job
            await lift(connection, OPERATOR, job, NOON)

    async def case(self) -> Case:
        async with self.db.read() as connection:
            case = await casebook.fetch_case(connection, "octo/widgets#7")
            assert case
            return case

    async def heard(self) -> str:
        """What the operator is told last."""
        async with self.db.read() as connection:
            told = (await fetch_newest(connection, NotificationKind.CONCERN))["octo/widgets#7"]
        return str(render_payload(told, ())["text"])


@pytest.fixture
async def issue(database_url: str) -> AsyncIterator[Issue]:
    async with open_database(database_url) as database:
        clock = Clock()
        rules = RepositoryRules("octo/widgets", agent="mine")
        github = cast("Any", ModelGitHub(clock))
        yield Issue(database, Context(github, database, {rules.name: rules}, {}, "", (), clock, lambda: None), clock)


async def test_every_attempt_after_a_confidential_one_is_confidential_whatever_it_reports(issue: Issue) -> None:
    assert "Nobody" in await issue.attempt(1, FIXED)
    standing = (await issue.case()).standing_job_id
    for number, body in ((2, CONCERN), (3, FIXED), (4, ""), (5, None)):
        assert await issue.attempt(number, body) == render_confidential()
        async with issue.db.read() as connection:
            assert await fetch_withheld(connection, f"{number:010}")
    assert (await issue.case()).standing_job_id == standing, "no diff of theirs can be approved"


async def test_the_operator_hears_of_each_and_why_it_is_confidential(issue: Issue) -> None:
    await issue.attempt(1, CONCERN)
    assert await issue.heard() == "octo/widgets#7: an agent reports a security concern. Anyone may empty the till."
    issue.clock.forward(60)
    await issue.attempt(2, FIXED)
    assert await issue.heard() == (
        "octo/widgets#7: a run on this confidential issue has ended. Nobody can empty the till any more."
    )
    issue.clock.forward(60)
    await issue.attempt(3, None)
    assert await issue.heard() == "octo/widgets#7: a run on this confidential issue has ended."


async def test_an_issue_stays_confidential_when_its_repository_is_renamed_until_that_is_lifted(issue: Issue) -> None:
    names = SharedRepositories(issue.db, lambda: {"octo/widgets", "octo/gadgets", "octo/others"})
    for name, number in (("octo/widgets", 1), ("octo/gadgets", 1), ("octo/others", 2)):
        await names.note(name, number)
    await issue.attempt(1, CONCERN)
    assert not (await issue.begin(2, repository="octo/others")).confidential
    renamed = await issue.begin(3, repository="octo/Gadgets")
    assert renamed.confidential
    await issue.end(renamed, FIXED)
    await issue.lift(3)
    assert not (await issue.begin(4, repository="octo/Gadgets")).confidential


async def test_an_attempt_is_confidential_from_its_beginning(issue: Issue) -> None:
    await issue.attempt(1, CONCERN)
    context = replace(issue.context, public_logs=True)
    assert context.opens_log(make_job())
    job = await issue.begin(2)
    assert job.confidential
    assert not context.opens_log(job), "a log, and the heading of a worklog, are public otherwise"
    async with issue.db.read() as connection:
        assert await job_rows.fetch_withheld_among(connection, [job.id]) == {job.id}


async def test_no_text_of_a_confidential_attempt_is_carried_into_another(issue: Issue) -> None:
    await issue.attempt(1, FIXED)
    await issue.attempt(2, CONCERN)
    await issue.attempt(3, FIXED)
    await issue.lift(3)
    async with issue.db.read() as connection:
        known = await find_known(connection, issue.context, "octo/widgets", 7, private=False)
    assert known
    assert known.job.id == f"{1:010}"


async def test_the_replacement_of_a_lost_attempt_is_confidential_even_if_that_was_lifted_meanwhile(
    issue: Issue,
) -> None:
    await issue.attempt(1, CONCERN)
    lost = await issue.begin(2)
    await issue.lift(2)
    context = replace(issue.context, agents={"mine": AGENT})
    async with issue.db.write() as connection:
        case = await casebook.fetch_case(connection, lost.case_key)
        assert case
        await casebook.save_case(connection, replace(case, active_job_id=None, state=CaseState.IDLE))
        lost = await job_rows.move_job(connection, lost, JobState.PREPARING, NOON)
        lost = await job_rows.move_job(connection, lost, JobState.LOST, NOON)
        assert (await start_again(connection, context, lost)).confidential


async def test_an_operator_lifts_it_for_what_starts_from_then_on(issue: Issue) -> None:
    await issue.attempt(1, CONCERN)
    running = await issue.begin(2)
    await issue.lift(1)
    assert await issue.end(running, FIXED) == render_confidential(), "it began before"
    assert "Nobody" in await issue.attempt(3, FIXED)
    async with issue.db.read() as connection:
        assert [await fetch_withheld(connection, f"{number:010}") for number in (1, 2, 3)] == [True, True, False]
        events = [what for _, what in await job_rows.fetch_events(connection, f"{1:010}")]
    assert "confidentiality of the issue lifted by the operator" in events
    with pytest.raises(NotDone, match="octo/widgets#7 is not confidential"):
        await issue.lift(3)


async def test_a_new_concern_makes_the_issue_confidential_again(issue: Issue) -> None:
    await issue.attempt(1, CONCERN)
    running = await issue.begin(2)
    await issue.lift(1)
    await issue.end(running, CONCERN)
    assert await issue.attempt(3, FIXED) == render_confidential()


async def test_a_sweep_posts_nothing_on_a_confidential_issue(issue: Issue) -> None:
    await issue.attempt(1, CONCERN)
    job = await issue.begin(2, preset=VERIFY, posts=Posts.FINDING)
    async with issue.db.write() as connection:
        await add_checks(connection, job.id, [(CheckKind.ISSUE, "the issue", "raise SystemExit(1)")])
        runs = {Side.BASE: (CheckRun(1, timed_out=False, words=""),) * 3}
        await save_runs(connection, Check(job.id, 1, CheckKind.ISSUE, "", "", runs))
        job = await job_rows.move_job(connection, job, JobState.PREPARING, NOON)
        job = await job_rows.move_job(connection, job, JobState.VERIFYING, NOON)
        await job_rows.move_job(connection, job, JobState.SUCCEEDED, NOON)
    await report_jobs(issue.context)
    async with issue.db.read() as connection:
        assert await casebook.fetch_job_reply(connection, job.id, "report") is None
    assert (await issue.case()).active_job_id is None
