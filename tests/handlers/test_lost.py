"""A job that was lost is started again once, by itself, in the transaction that reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from handlers.cases import casebook
from handlers.cases.case import CaseState
from handlers.context import Context
from handlers.jobs.outcomes import report_jobs
from handlers.rules import RepositoryRules
from runner.agents import AgentSpec
from runner.model.caps import Caps, Scope
from runner.model.job import Job, JobKind, JobState, Posts
from runner.rows import job_rows
from runner.rows.tellings import fetch_tellings, insert_telling
from tests.handlers.test_notes_again import ISSUE, open_thread
from tests.handlers.test_outcomes import Desk, open_desk, running
from tests.support.jobs import NOON, make_telling

RULES = {"octo/widgets": RepositoryRules("octo/widgets", "mine")}
AGENTS = {"mine": AgentSpec("mine", "command", ("true",), models=("small",))}
ASKED_FOR = {
    **{"attempt": 3, "preset": "diagnose", "may_change": False, "model": "small", "requested_by": "somebody"},
    **{"prompt": "Look at it, please.", "base_branch": "stable", "private": True},
}


def lost(**changes: Any) -> Job:
    failure = "machine gpu-1 can no longer be reached: it did not answer"
    return running(**{"state": JobState.LOST, "ended_at": NOON, "failure": failure, **ASKED_FOR, **changes})


async def jobs_of(desk: Desk) -> list[Job]:
    async with desk.db.read() as connection:
        return sorted(await job_rows.fetch_recent_jobs(connection, 10), key=lambda job: job.attempt)


def set_up(context: Context, caps: Mapping[Scope, Caps] | None = None) -> Context:
    rules = {name: replace(one, caps=caps or {}) for name, one in RULES.items()}
    return replace(context, repositories=rules, agents=AGENTS)


async def test_a_lost_job_is_started_again_as_it_was_asked_for(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        desk.context = set_up(desk.context)
        await desk.add(lost(exit_status=1, base_commit="ab" * 20))
        before, again = await jobs_of(desk)
        kept = {name: getattr(again, name) for name in ASKED_FOR} | {"attempt": again.attempt - 1}
        assert kept == ASKED_FOR
        assert (again.state, again.replaces, again.machine, again.base_commit) == ("queued", before.id, None, None)
        case = await desk.case()
        assert (case.state, case.active_job_id) == (CaseState.ACTIVE, again.id)
        report = (await desk.reply("report")).body
        assert "**Why:** machine gpu-1 can no longer be reached: it did not answer" in report
        assert "Restarted automatically as attempt 4, on another machine" in report, "a private job has no page to link"
        assert "/ptq retry" not in report
        async with desk.db.read() as connection:
            rows = await connection.exec_driver_sql("SELECT kind, job_id FROM replies ORDER BY kind, job_id")
            assert set(rows) == {("report", before.id), ("status", before.id), ("status", again.id)}


@pytest.mark.slow
async def test_what_its_agent_was_told_the_agent_of_the_next_job_is_told_too(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        desk.context, job = set_up(desk.context), running(**ASKED_FOR)
        await desk.add(job)
        async with desk.db.write() as connection:
            await insert_telling(connection, make_telling(given_at=NOON))
            await job_rows.move_job(connection, job, JobState.LOST, NOON)
        await report_jobs(desk.context)
        _, again = await jobs_of(desk)
        async with desk.db.read() as connection:
            (told,) = await fetch_tellings(connection, again.id)
        assert (told.words, told.told_by, told.given_at) == ("Look at the loop.", "maintainer", None)


@pytest.mark.slow
async def test_of_a_silent_job_nobody_hears_that_it_was_lost_and_started_again(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        desk.context = set_up(desk.context)
        await desk.add(lost(posts=Posts.NOTHING))
        for _ in range(3):
            await report_jobs(desk.context)
        before, again = await jobs_of(desk)
        assert (again.replaces, again.posts) == (before.id, Posts.NOTHING)
        assert (await desk.case()).active_job_id == again.id
        async with desk.db.read() as connection:
            found = await job_rows.fetch_with_successors(connection, [before.id])
            assert (found[before.id], found[again.id]) == (again, again)
            rows = await connection.exec_driver_sql("SELECT kind, job_id FROM replies WHERE kind = 'report'")
            assert [*rows] == []


async def test_it_is_started_again_once_however_often_it_is_looked_at(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        desk.context = set_up(desk.context)
        await desk.add(lost())
        for _ in range(3):
            await report_jobs(desk.context)
        assert len(await jobs_of(desk)) == 2


@pytest.mark.slow
async def test_a_second_loss_starts_nothing_and_says_what_to_do(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        desk.context = set_up(desk.context)
        await desk.add(lost())
        _, again = await jobs_of(desk)
        async with desk.db.write() as connection:
            again = await job_rows.move_job(connection, again, JobState.PREPARING, NOON, machine="gpu-2")
            await job_rows.move_job(connection, again, JobState.LOST, NOON, "machine gpu-2 can no longer be reached")
        await report_jobs(desk.context)
        assert len(await jobs_of(desk)) == 2
        async with desk.db.read() as connection:
            reply = await casebook.fetch_job_reply(connection, again.id, "report")
        report = reply.body if reply else ""
        assert "Lost twice in a row, so it is not restarted" in report
        assert "check machine `gpu-2` first" in report
        assert "`/ptq retry`" in report
        assert (await desk.case()).state is CaseState.IDLE


STARTED = {Scope.ISSUE: Caps(jobs=1)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "caps", "words"),
    [
        ({"cancel_requested_at": NOON, "cancelled_by": "boss"}, {}, "@boss had cancelled it"),
        (
            {},
            STARTED,
            "the cap of 1 job for all attempts together is used up. Only the operator of this App can raise it: "
            "`caps.issue.jobs` in `ptq.toml`.",
        ),
        ({}, {Scope.USER_DAY: Caps(jobs=1)}, "the cap of 1 job for what somebody asked for today is used up"),
        ({"agent": "gone"}, {}, "no longer available here"),
        ({"model": "gone"}, {}, "no longer available here"),
        ({"repository": "octo/gone"}, {}, "no longer available here"),
    ],
)
async def test_what_stands_in_the_way_of_another_attempt_is_said(
    sqlite_url: str, changes: Mapping[str, Any], caps: Mapping[Scope, Caps], words: str
) -> None:
    async with open_desk(sqlite_url) as desk:
        desk.context = set_up(desk.context, caps)
        await desk.add(lost(**changes))
        assert len(await jobs_of(desk)) == 1
        report = (await desk.reply("report")).body
        assert "Not restarted: " in report
        assert words in report
        assert "`/ptq retry`" in report


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.SUCCEEDED])
async def test_no_other_end_starts_anything(sqlite_url: str, state: JobState) -> None:
    async with open_desk(sqlite_url) as desk:
        desk.context = set_up(desk.context)
        await desk.add(lost(state=state))
        assert len(await jobs_of(desk)) == 1
        assert "started again" not in (await desk.reply("report")).body


async def test_a_cancel_before_a_lost_job_is_started_again_is_heard(sqlite_url: str) -> None:
    async with open_thread(sqlite_url) as thread:
        thread.context = replace(thread.context, agents=AGENTS)
        async with thread.db.write() as connection:
            await job_rows.insert_job(connection, lost(thread=ISSUE))
        await thread.work(thread.github.say(ISSUE, "boss", "/ptq cancel"))
        await report_jobs(thread.context)
        (heard, report) = await thread.answers()
        assert "Cancelling" in heard
        assert "@boss had cancelled it" in report


async def test_a_cancel_after_a_lost_job_was_reported_finds_nothing(sqlite_url: str) -> None:
    async with open_thread(sqlite_url) as thread:
        thread.context = replace(thread.context, agents=AGENTS)
        async with thread.db.write() as connection:
            await job_rows.insert_job(connection, lost(thread=ISSUE))
        await report_jobs(thread.context)
        await thread.work(thread.github.say(ISSUE, "boss", "/ptq cancel"))
        (_, answer) = await thread.answers()
        assert "No job is running" in answer


async def test_a_lost_collection_of_what_a_person_edited_is_not_started_again(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        desk.context = set_up(desk.context)
        async with desk.db.write() as connection:
            await job_rows.insert_job(connection, lost(id="aaaaaaaaaa", attempt=2, state=JobState.FAILED))
        await desk.add(lost(adopts="aaaaaaaaaa", kind=JobKind.RELEASE))
        assert len(await jobs_of(desk)) == 2
        assert "Not restarted: it only collected a person's edits" in (await desk.reply("report")).body
