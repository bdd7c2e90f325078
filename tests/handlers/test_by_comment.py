"""What somebody takes over by a comment, and which of their keys let them in."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import select

from handlers.commands.rights import Person, Surface
from handlers.context import Context
from handlers.holds import hold_replies
from handlers.holds.by_comment import LASTS, choose_keys, find_newest, take_over
from handlers.holds.by_comment import release as release_by_comment
from handlers.holds.held import check_holds
from handlers.holds.manual_jobs import HoldRefused, KeyHolder
from handlers.holds.takeover import release
from handlers.holds.takeover import take_over as take_over_anyhow
from handlers.jobs.outcomes import report_jobs
from handlers.ports import GitHubUnavailable
from handlers.rules import VERIFY, RepositoryRules, Role
from runner.db.database import Database
from runner.db.schema import replies
from runner.jobd.access.admission import MAX_KEYS, read_keys
from runner.model.job import JobKind, JobState
from runner.model.machines import Lease
from runner.rows import job_rows
from runner.rows.holds import Hold, fetch_hold, save_hold
from tests.handlers.test_report_comment import result
from tests.runner.test_admission import BAD_KEYS, KEY, KEYS, OTHER
from tests.support.clock import Clock
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.model_github import ModelGitHub


def test_what_machines_do_not_take_is_left_out() -> None:
    assert choose_keys([*BAD_KEYS, f"{OTHER} me@home", KEY, OTHER]) == [OTHER, KEY]
    assert choose_keys(BAD_KEYS) == []


def test_of_many_keys_the_first_are_taken_and_a_machine_takes_them_all() -> None:
    many = [f"ssh-ed25519 {KEYS['ed25519'][:-2]}{letter}K" for letter in "AEIMQUYcgkosw"]
    chosen = choose_keys(many)
    assert len(set(chosen)) == MAX_KEYS
    assert read_keys("\n".join(chosen)) == chosen


async def test_a_job_in_which_nobody_worked_hides_none_in_which_somebody_did(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:

        async def find() -> str | None:
            newest = await find_newest(connection, "octo/widgets", 7)
            return newest.id if newest else None

        assert await find() is None
        looked = make_job(id="2" * 10, preset=VERIFY, attempt=2, state=JobState.SUCCEEDED)
        await job_rows.insert_job(connection, looked)
        assert await find() == looked.id
        worked = make_job(id="1" * 10, state=JobState.SUCCEEDED)
        await job_rows.insert_job(connection, worked)
        await store_report(connection, replace(result(), job_id=worked.id))
        assert await find() == worked.id
        await job_rows.insert_job(connection, make_job(id="3" * 10, preset=VERIFY, attempt=3))
        assert await find() == "3" * 10, "what is under way is what they mean"


RULES = RepositoryRules("octo/widgets", "mine", takeover=True)
BOSS = Person("boss", Surface.THREAD, RULES, Role.WRITE)
OPERATOR = Person("root", Surface.TERMINAL)


async def test_a_run_whose_report_names_a_concern_is_opened_to_nobody_by_a_comment(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database, database.write() as connection:
        context = Context(cast("Any", None), database, {}, {}, "", (), lambda: NOON, lambda: None)
        job = make_job(state=JobState.LOST, machine="gpu-1")
        await job_rows.insert_job(connection, job)
        person = Person("maintainer", Surface.THREAD, RULES, Role.WRITE)
        ask = (connection, context, person, job.issue_number, [KEY], NOON)
        assert await take_over(*ask) != hold_replies.render_takeover_refused()
        await store_report(connection, replace(result(), job_id=job.id, body="security concern"))
        assert await take_over(*ask) == hold_replies.render_takeover_refused()


@pytest.mark.parametrize(("written_s", "is_late"), [(-7200, True), (60, False)])
async def test_a_late_comment_takes_over_and_releases_nothing_that_began_after_it(
    tmp_path: Path, written_s: int, is_late: bool
) -> None:
    written_at = NOON + timedelta(seconds=written_s)
    async with open_database(tmp_path) as database, database.write() as connection:
        context = Context(cast("Any", None), database, {}, {}, "", (), lambda: NOON, lambda: None)
        job = make_job(state=JobState.LOST, machine="gpu-1", requested_at=NOON - timedelta(hours=1))
        await job_rows.insert_job(connection, job)
        ask = (connection, context, BOSS, job.issue_number)
        assert (await take_over(*ask, [KEY], written_at) == hold_replies.render_too_late()) is is_late
        hold = Hold(job.id, "casey", KEY, NOON, NOON + timedelta(hours=8), admitted_at=NOON)
        await save_hold(connection, hold)
        written_at -= timedelta(minutes=30) * is_late
        assert (
            await release_by_comment(*ask, "drop", written_at, private=False) == hold_replies.render_too_late()
        ) is is_late
        ended = await fetch_hold(connection, job.id)
        assert ended is not None
        assert (ended.expires_at > NOON) is is_late


@pytest.mark.parametrize(
    ("private_before", "private", "how", "is_released"),
    [
        (True, False, "", False),
        (True, False, "drop", True),
        (True, True, "", True),
        (False, False, "", True),
    ],
)
async def test_edits_from_when_a_repository_was_private_are_not_published_once_it_is_public(
    tmp_path: Path, private_before: bool, private: bool, how: str, is_released: bool
) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        context = Context(cast("Any", None), database, {}, {}, "", (), lambda: NOON, lambda: None)
        job = make_job(state=JobState.CANCELLED, private=private_before, machine="gpu-1")
        await job_rows.insert_job(connection, job)
        await job_rows.insert_lease(connection, Lease("gpu-1", 0, job.id, ()), NOON)
        hold = Hold(job.id, "casey", KEY, NOON, NOON + timedelta(hours=8), admitted_at=NOON)
        await save_hold(connection, hold)
        ask = (connection, context, BOSS, job.issue_number, how, NOON)
        answer = await release_by_comment(*ask, private=private)
        assert answer.startswith("Released" if is_released else "Not released")
        assert (await fetch_hold(connection, job.id) == hold) is not is_released
        assert len(await job_rows.fetch_recent_jobs(connection, 10)) == 1 + (is_released and not how)


async def test_a_concern_is_not_made_anew_to_be_published(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database, database.write() as connection:
        job = make_job(state=JobState.FAILED, machine="gpu-1")
        await job_rows.insert_job(connection, job)
        await store_report(connection, replace(result(), job_id=job.id, body="security concern"))
        guest = KeyHolder("casey", KEY, LASTS)
        with pytest.raises(HoldRefused, match="its report is confidential"):
            await take_over_anyhow(connection, OPERATOR, job, guest, agent="mine", secret=b"", now=NOON)


@pytest.mark.parametrize("withheld", [True, False])
async def test_who_waits_for_a_report_is_let_in_unless_it_names_a_concern(sqlite_url: str, withheld: bool) -> None:
    async with open_database(sqlite_url) as database:
        context = make_context(database, Clock(), "maintainer")
        job = make_job(state=JobState.FAILED, machine="gpu-1", started_at=NOON, ended_at=NOON)
        async with database.write() as connection:
            await job_rows.insert_job(connection, job)
            if withheld:
                await store_report(connection, replace(result(), job_id=job.id, body="security concern"))
            hold = Hold(job.id, "maintainer", KEY, NOON, NOON + timedelta(hours=8), waits_for_report=True)
            await save_hold(connection, hold)
        await report_jobs(context)
        await check_holds(context)
        async with database.read() as connection:
            let_in = replace(hold, waits_for_report=False, checked_at=NOON)
            assert await fetch_hold(connection, job.id) == (None if withheld else let_in)


def make_context(database: Database, clock: Clock, *writers: str) -> Context:
    github = ModelGitHub(clock)
    github.writers |= {*writers}
    return Context(cast("Any", github), database, {RULES.name: RULES}, {}, "", (), clock, lambda: None)


async def fetch_answer(database: Database) -> str:
    async with database.read() as connection:
        found = await connection.execute(select(replies.c.body).where(replies.c.kind == "reply"))
        return str(found.scalar_one())


async def test_who_lost_the_right_since_the_command_is_not_let_in_and_the_thread_reads_why(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database:
        context = make_context(database, Clock())
        job = make_job(state=JobState.CANCELLED, machine="gpu-1", started_at=NOON, ended_at=NOON)
        hold = Hold(job.id, "maintainer", KEY, NOON, NOON + timedelta(hours=8), waits_for_report=True, checked_at=NOON)
        async with database.write() as connection:
            await job_rows.insert_job(connection, job)
            await save_hold(connection, hold)
        await report_jobs(context)
        await check_holds(context)
        async with database.read() as connection:
            assert await fetch_hold(connection, job.id) is None
        assert await fetch_answer(database) == hold_replies.render_no_longer_allowed(hold)


@pytest.mark.parametrize("by_comment", [True, False])
async def test_who_loses_the_right_while_they_hold_it_is_let_out_within_minutes(
    database_url: str, by_comment: bool
) -> None:
    clock = Clock()
    async with open_database(database_url) as database:
        context = make_context(database, clock, "maintainer")
        job = make_job(state=JobState.CANCELLED, machine="gpu-1", started_at=NOON, ended_at=NOON)
        hold = Hold(job.id, "maintainer", KEY, NOON, NOON + timedelta(hours=8), admitted_at=NOON)
        hold = replace(hold, checked_at=NOON if by_comment else None)
        async with database.write() as connection:
            await job_rows.insert_job(connection, job)
            await save_hold(connection, hold)

        async def look_after(minutes: int) -> Hold | None:
            clock.forward(60 * minutes)
            await report_jobs(context)
            await check_holds(context)
            async with database.read() as connection:
                return await fetch_hold(connection, job.id)

        still = await look_after(5)
        assert still is not None
        assert still.expires_at == hold.expires_at, "they may, so they stay"
        cast("ModelGitHub", context.github).writers.clear()
        assert await look_after(4) == still, "GitHub is not asked all the time"
        ended = await look_after(1)
        assert ended is not None
        if by_comment:
            assert ended.expires_at == clock()
            assert "can no longer open pull requests here" in await fetch_answer(database)
        else:
            assert ended == hold, "the operator's guests need not be people of GitHub"


async def test_where_github_does_not_answer_nobody_is_let_in_and_nobody_is_let_out(sqlite_url: str) -> None:
    class Away(ModelGitHub):
        async def fetch_role(self, repository: str, login: str) -> Role:
            raise GitHubUnavailable("it is away")

    clock = Clock()
    async with open_database(sqlite_url) as database:
        context = replace(make_context(database, clock), github=cast("Any", Away(clock)))
        inside, waiting = (
            make_job(id=letter * 10, thread=place, state=JobState.CANCELLED, machine="gpu-1", ended_at=NOON)
            for place, letter in enumerate("ab", 7)
        )
        holds = [Hold(inside.id, "maintainer", KEY, NOON, NOON + timedelta(hours=8), NOON, checked_at=NOON)]
        holds += [Hold(waiting.id, "maintainer", KEY, NOON, NOON + timedelta(hours=8), waits_for_report=True)]
        async with database.write() as connection:
            for job, hold in zip((inside, waiting), holds, strict=True):
                await job_rows.insert_job(connection, job)
                await save_hold(connection, hold)
        clock.forward(600)
        await report_jobs(context)
        await check_holds(context)
        async with database.read() as connection:
            assert [await fetch_hold(connection, hold.job_id) for hold in holds] == holds


@pytest.mark.parametrize(("person", "is_checked"), [(BOSS, True), (OPERATOR, False)])
async def test_only_the_operators_guest_enters_before_the_report_is_known(
    database_url: str, person: Person, is_checked: bool
) -> None:
    job = make_job(state=JobState.RUNNING, machine="gpu-1")
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, job)
        guest = KeyHolder("casey", KEY, LASTS)
        taken = await take_over_anyhow(connection, person, job, guest, agent="mine", secret=b"", now=NOON)
        assert (taken.hold.waits_for_report, taken.hold.checked_at) == (is_checked, NOON if is_checked else None)
        assert await fetch_hold(connection, job.id) == taken.hold
        ended = await job_rows.fetch_job(connection, job.id)
    assert ended
    assert ended.cancelled_by == ("casey" if is_checked else "the operator"), "who takes a job over ends it"


@pytest.mark.parametrize(("person", "by"), [(BOSS, "@boss"), (OPERATOR, "the operator")])
@pytest.mark.parametrize("drop", [True, False])
async def test_a_release_says_in_the_history_who_asked_for_it(
    database_url: str, person: Person, by: str, drop: bool
) -> None:
    held = make_job(state=JobState.SUCCEEDED, machine="gpu-1", ended_at=NOON)
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, held)
        await job_rows.insert_lease(connection, Lease("gpu-1", 0, held.id), NOON)
        await save_hold(connection, Hold(held.id, "casey", KEY, NOON, NOON + LASTS))
        job = await release(connection, person, held, drop=drop, secret=b"", public_url="", now=NOON)
        assert (job and job.kind) == (None if drop else JobKind.RELEASE)
        hold = await fetch_hold(connection, held.id)
        assert (hold and hold.expires_at) == (NOON if drop else None), "it is over, or goes with the environment"
        events = [what for _, what in await job_rows.fetch_events(connection, held.id)]
    assert events[-1] == f"released by {by}"
