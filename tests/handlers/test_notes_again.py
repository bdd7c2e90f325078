"""A note that comes again, and a diff that comes again: one answer, and one pull request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from gidgethub.sansio import Event
from sqlalchemy import select

from handlers.cases import casebook
from handlers.cases.case import Case, CaseState
from handlers.context import Context
from handlers.effects.drain import drain
from handlers.effects.outbox import Comments
from handlers.jobs.outcomes import report_jobs
from handlers.ports import Comment, GitHub
from handlers.pulls.pulls import Pulls
from handlers.rules import RepositoryRules
from handlers.triggers.router import ROUTER
from handlers.words.replies import render_issue_gone, render_private_before
from runner.agents import AgentSpec
from runner.db.database import Database
from runner.db.schema import replies
from runner.model.job import JobState, Report, Topic, digest_of
from runner.rows import job_rows
from tests.handlers.asked import render_commented
from tests.support.clock import Clock
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.model_github import ModelGitHub
from tests.support.model_machine import BASE, CHANGE
from tests.support.patches import render_patch

NAME, ISSUE = "octo/widgets", 7
DIGEST = digest_of(BASE, [CHANGE], b"secret")
NOTE = f"/ptq pr {DIGEST[:12]}\n\nI read the loop with care, and its last row was indeed left out until now."


@dataclass
class Thread:
    """The words in which these tests are told."""

    db: Database
    github: ModelGitHub
    context: Context
    clock: Clock

    async def stand(self, job_id: str, attempt: int, **changes: Any) -> None:
        """The diff of an attempt waits for a note."""
        await self.end(job_id, attempt, CaseState.AWAITING_NOTE, **changes)

    async def end(
        self,
        job_id: str,
        attempt: int,
        state: CaseState = CaseState.ACTIVE,
        title: str = "Fix it",
        **changes: Any,
    ) -> None:
        """An attempt has ended with the diff. While its case is active, it has no report yet."""
        job = make_job(id=job_id, attempt=attempt, thread=ISSUE, state=JobState.SUCCEEDED, base_commit=BASE, **changes)
        case = Case(job.case_key, NAME, ISSUE, job.issue_title, state, NOON, NOON)
        if state is CaseState.ACTIVE:
            case = replace(case, active_job_id=job_id, pull_number=2)
        else:
            case = replace(case, standing_job_id=job_id)
        texts = ("fix staged\n\n## Summary\nFixed.\n", "looked", title, "", render_patch([CHANGE]))
        async with self.db.write() as connection:
            await job_rows.insert_job(connection, job)
            await store_report(connection, Report(job_id, *texts, (CHANGE,), DIGEST))
            await casebook.save_case(connection, case)

    def note(self) -> Comment:
        return self.github.say(ISSUE, "boss", NOTE)

    async def work(self, comment: Comment) -> None:
        payload = render_commented(ISSUE, comment)
        await ROUTER.dispatch(Event(payload, event="issue_comment", delivery_id="guid"), self.context)

    async def answers(self) -> list[str]:
        async with self.db.read() as connection:
            return list((await connection.execute(select(replies.c.body).order_by(replies.c.created_at))).scalars())


@asynccontextmanager
async def open_thread(url: str | Path) -> AsyncIterator[Thread]:
    async with open_database(url) as database:
        clock = Clock()
        github = ModelGitHub(clock)
        github.writers.add("boss")
        rules = {NAME: RepositoryRules(NAME, "mine")}
        context = Context(cast(GitHub, github), database, rules, {}, "https://ptq", (), clock, lambda: None)
        yield Thread(database, github, context, clock)


async def test_a_command_on_the_pull_request_of_an_issue_that_was_transferred_starts_nothing(tmp_path: Path) -> None:
    async with open_thread(tmp_path) as thread:
        await thread.end("00000000a1", 1)
        pull = casebook.Pull(
            "00000000a1", DIGEST, NOTE, "boss", "https://github/1", "b", NOON, next_attempt_at=NOON, number=2
        )
        async with thread.db.write() as connection:
            await casebook.save_pull(connection, pull)
        thread.github.moved.add(ISSUE)
        payload = render_commented(2, thread.github.say(2, "boss", "/ptq fix"))
        payload["issue"]["pull_request"] = {"url": "x"}
        await ROUTER.dispatch(Event(payload, event="issue_comment", delivery_id="guid"), thread.context)
        assert await thread.answers() == [render_issue_gone(ISSUE)]


@pytest.mark.slow
async def test_two_attempts_with_one_diff_have_one_pull_request(database_url: str) -> None:
    async with open_thread(database_url) as thread:
        await thread.stand("0000000001", 1)
        await thread.work(thread.note())
        await drain(Pulls(thread.context))
        await thread.stand("0000000002", 2)
        await thread.work(thread.note())
        await drain(Pulls(thread.context))
        (opened,) = thread.github.opened
        assert f"Pull request #{opened.pull.number} already contains this diff." in await thread.answers()


async def test_a_note_for_a_diff_that_is_on_its_way_in_another_attempt_waits_with_it(sqlite_url: str) -> None:
    async with open_thread(sqlite_url) as thread:
        await thread.stand("0000000001", 1)
        await thread.work(thread.note())
        await thread.stand("0000000002", 2)
        await thread.work(thread.note())
        await drain(Pulls(thread.context))
        assert len(thread.github.opened) == 1
        assert any("An earlier note for this diff" in answer for answer in await thread.answers())


async def test_a_report_with_a_diff_that_a_pull_request_has_asks_for_no_note(sqlite_url: str) -> None:
    async with open_thread(sqlite_url) as thread:
        await thread.stand("0000000001", 1)
        await thread.work(thread.note())
        await drain(Pulls(thread.context))
        await thread.end("0000000002", 2)
        await report_jobs(thread.context)
        async with thread.db.read() as connection:
            case = await casebook.fetch_case(connection, f"{NAME}#{ISSUE}")
            reply = await casebook.fetch_job_reply(connection, "0000000002", "report")
        assert case
        assert reply
        assert (case.state, case.standing_job_id) == (CaseState.PULL_OPEN, None)
        report = reply.body
        (opened,) = thread.github.opened
        assert f"**Next step.** Pull request #{opened.pull.number} already contains this diff." in report
        assert "/ptq pr" not in report
        assert "**Pull request:**" not in report


@pytest.mark.slow
async def test_a_pull_request_has_the_title_that_its_report_shows_whatever_the_issue_is_called_later(
    sqlite_url: str,
) -> None:
    async with open_thread(sqlite_url) as thread:
        await thread.end("0000000001", 1, title="")
        await report_jobs(thread.context)
        async with thread.db.write() as connection:
            reply = await casebook.fetch_job_reply(connection, "0000000001", "report")
            case = await casebook.fetch_case(connection, f"{NAME}#{ISSUE}")
            assert case
            await casebook.save_case(connection, replace(case, title="Ship malware"))
        await drain(Comments(thread.context))
        await thread.work(thread.note())
        await drain(Pulls(thread.context))
        (opened,) = thread.github.opened
        assert reply
        assert f"**Pull request:** `{opened.title}`" in reply.body
        assert opened.title == "Fix: It breaks"


async def test_the_commit_of_a_note_that_was_withdrawn_is_not_used_for_another_persons_note(tmp_path: Path) -> None:
    async with open_thread(tmp_path) as thread:
        await thread.stand("0000000001", 1)
        text = "I read the loop with care, and its last row was indeed left out until now."
        thread.github.writers |= {"mallory"}
        first = thread.github.say(ISSUE, "mallory", f"/ptq pr {DIGEST[:12]} --title 'Revert all of it'\n\n{text}")
        await thread.work(first)
        thread.github.delete(first)
        await drain(Pulls(thread.context))
        await thread.work(thread.note())
        await drain(Pulls(thread.context))
        assert len(thread.github.opened) == 1
        first_message, message = thread.github.messages
        assert ("Revert" in first_message, "Revert" in message) == (True, False)


async def test_a_diff_from_when_the_repository_was_private_is_not_proposed_once_it_is_public(tmp_path: Path) -> None:
    async with open_thread(tmp_path) as thread:
        await thread.stand("0000000001", 1, private=True)
        await thread.work(thread.note())
        await drain(Pulls(thread.context))
        (answer,) = await thread.answers()
        assert answer == render_private_before()
        assert thread.github.opened == []


@pytest.mark.parametrize("is_private", [True, False])
async def test_an_old_delivery_does_not_say_that_a_repository_is_still_private(
    tmp_path: Path, is_private: bool
) -> None:
    async with open_thread(tmp_path) as thread:
        thread.github.is_private = is_private
        await thread.end("0000000001", 1, CaseState.AWAITING_NOTE, private=True)
        async with thread.db.write() as connection:
            job = await job_rows.fetch_job(connection, "0000000001")
            assert job
            told = casebook.draft_reply("report", "report", job, "Fixed.", NOON)
            await casebook.insert_reply(connection, told)
        await drain(Comments(thread.context))
        payload = render_commented(ISSUE, thread.github.say(ISSUE, "boss", "/ptq results"))
        payload["repository"]["private"] = True
        await ROUTER.dispatch(Event(payload, event="issue_comment", delivery_id="guid"), thread.context)
        assert (render_private_before() in await thread.answers()) is not is_private


async def test_a_job_of_an_old_delivery_is_of_the_repository_as_it_is_now(tmp_path: Path) -> None:
    async with open_thread(tmp_path) as thread:
        context = replace(thread.context, agents={"mine": AgentSpec("mine", "command", ("true",))})
        payload = render_commented(ISSUE, thread.github.say(ISSUE, "boss", "/ptq diagnose"))
        payload["repository"]["private"] = True
        await ROUTER.dispatch(Event(payload, event="issue_comment", delivery_id="guid"), context)
        async with thread.db.read() as connection:
            job = await job_rows.fetch_last_job(connection, Topic(NAME, ISSUE))
        assert job
        assert not job.private


async def test_a_comment_does_not_command_in_the_name_of_another_sender(tmp_path: Path) -> None:
    async with open_thread(tmp_path) as thread:
        await thread.stand("0000000001", 1)
        payload = render_commented(ISSUE, thread.note())
        payload["comment"]["user"] = {"login": "mallory"}
        await ROUTER.dispatch(Event(payload, event="issue_comment", delivery_id="guid"), thread.context)
        await drain(Pulls(thread.context))
        assert (await thread.answers(), thread.github.opened) == ([], [])


@pytest.mark.slow
async def test_an_accepted_note_that_is_worked_again_has_one_answer(database_url: str) -> None:
    async with open_thread(database_url) as thread:
        await thread.stand("0000000001", 1)
        note = thread.note()
        await thread.work(note)
        await drain(Pulls(thread.context))
        await thread.work(note)
        (answer,) = await thread.answers()
        assert answer.startswith("Draft pull request #")


async def test_a_refused_note_that_is_worked_again_stays_refused(sqlite_url: str) -> None:
    async with open_thread(sqlite_url) as thread:
        note = thread.note()
        await thread.work(note)
        await thread.stand("0000000001", 1)
        await thread.work(note)
        await drain(Pulls(thread.context))
        (answer,) = await thread.answers()
        assert answer.startswith("There's no diff")
        assert thread.github.opened == []
