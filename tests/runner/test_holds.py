"""Rows of people's holds, and what a person is told of the job that they hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from handlers.holds.manual_jobs import AT_LEAST, HoldRefused, start_collecting
from runner.model.environment import Profile
from runner.model.job import Job, JobState, Report
from runner.model.machines import Lease
from runner.rows import job_rows
from runner.rows.holds import Hold, change_hold, end_hold, fetch_hold, fetch_holds, save_hold
from runner.steps.holding import describe_context
from tests.support.jobs import NOON, make_job, open_database

HELD = make_job(state=JobState.SUCCEEDED, machine="gpu-1", base_commit="ab" * 20, may_change=False)
HOLD = Hold(HELD.id, "casey", "ssh-ed25519 AAAA", NOON, NOON + timedelta(hours=8))


def test_a_hold_rests_from_admission_to_expiry() -> None:
    admitted = replace(HOLD, admitted_at=NOON)
    assert not HOLD.rests(NOON)
    assert admitted.rests(HOLD.expires_at - timedelta(seconds=1))
    assert not admitted.rests(HOLD.expires_at)


async def test_a_hold_that_was_replaced_is_neither_changed_nor_ended_by_who_knew_the_earlier_one(
    tmp_path: Path,
) -> None:
    later = replace(HOLD, expires_at=HOLD.expires_at + timedelta(hours=1))
    async with open_database(tmp_path) as database, database.write() as connection:
        await job_rows.insert_job(connection, HELD)
        await save_hold(connection, HOLD)
        await save_hold(connection, later)
        await change_hold(connection, HOLD, admitted_at=NOON)
        assert not await end_hold(connection, HOLD)
        assert await fetch_holds(connection) == [later]
        await change_hold(connection, later, trouble="it is away")
        assert await fetch_hold(connection, HELD.id) == replace(later, trouble="it is away")
        assert await end_hold(connection, later)
        assert await fetch_holds(connection) == []


async def test_a_release_hands_slot_and_environment_to_a_job_that_only_collects(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        await job_rows.insert_job(connection, HELD)
        await job_rows.insert_lease(connection, Lease("gpu-1", 1, HELD.id), NOON)
        await save_hold(connection, HOLD)
        job = await start_collecting(connection, HELD, HOLD, secret=b"x", public_url="https://x", now=NOON)
        assert (job.state, job.adopts, job.follows, job.attempt) == (JobState.PREPARING, HELD.id, HELD.id, 2)
        assert (job.machine, job.base_commit, job.may_change) == ("gpu-1", HELD.base_commit, True)
        assert await job_rows.fetch_job(connection, job.id) == job
        assert await job_rows.fetch_leases(connection) == [Lease("gpu-1", 1, job.id)]
        (hold,) = await fetch_holds(connection)
        assert (hold.job_id, hold.person, hold.admitted_at) == (job.id, HOLD.person, None), "until the result is stored"
        assert hold.expires_at == NOON + AT_LEAST


async def test_a_release_waits_for_the_issues_other_job_and_changes_nothing(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        async with database.write() as connection:
            await job_rows.insert_job(connection, HELD)
            await job_rows.insert_lease(connection, Lease("gpu-1", 1, HELD.id), NOON)
            await save_hold(connection, HOLD)
            first = await start_collecting(connection, HELD, HOLD, secret=b"x", public_url="https://x", now=NOON)
            passed_on = await fetch_hold(connection, first.id)
            await save_hold(connection, HOLD)
        with pytest.raises(HoldRefused, match="another job on this issue is running"):
            async with database.write() as connection:
                await start_collecting(connection, HELD, HOLD, secret=b"y", public_url="https://x", now=NOON)
        async with database.read() as connection:
            assert {hold.job_id: hold for hold in await fetch_holds(connection)} == {HELD.id: HOLD, first.id: passed_on}
            assert [job.id for job in await job_rows.fetch_active_jobs(connection)] == [first.id]


def test_the_context_tells_all_and_moves_no_cursor() -> None:
    job: Job = replace(HELD, failure="cut \x1b[2J short", prompt="The issue \x9b31m says so.")
    report = Report(job.id, "fix staged\x07", "looked \u202e", "", "", "", (), None)
    profile = Profile("octo/widgets", setup=("pip install -e .\nmake",), lint=("ruff check",), smoke_test=("true",))
    text = describe_context(job, report, profile)
    for words in (
        "# Job 0123456789",
        "ab" * 20,
        "    pip install -e .\n    make",
        "ruff check",
        "fix staged",
        "says so",
    ):
        assert words in text
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*text}
    assert describe_context(job, None, None).startswith("# Job ")
