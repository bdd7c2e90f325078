from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from string import ascii_letters
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError, StatementError

from runner.changes.artifacts import MAX_PATH
from runner.db.database import Database
from runner.db.schema import jobs
from runner.model.caps import DEFAULT_CAPS, Caps, Scope
from runner.model.job import FileChange, IllegalMove, Job, JobKind, JobRequest, JobState, Report, Topic, ask_again
from runner.model.machines import Lease
from runner.model.meter import Meter
from runner.model.usage import Usage
from runner.rows import job_rows
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.meters import make_meter


async def test_a_trigger_that_comes_twice_makes_one_job(database_url: str) -> None:
    async with open_database(database_url) as database:
        for expected in (True, False):
            async with database.write() as connection:
                assert await job_rows.insert_job(connection, make_job()) is expected


async def test_an_issue_has_at_most_one_active_job(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        assert await job_rows.insert_job(connection, make_job())
        assert not await job_rows.insert_job(connection, make_job(id="aaaaaaaaaa", attempt=2))
        await job_rows.move_job(connection, make_job(), JobState.CANCELLED, NOON)
        assert await job_rows.insert_job(connection, make_job(id="aaaaaaaaaa", attempt=2))


async def test_a_series_counts_its_own_attempts_and_has_at_most_one_active_job(database_url: str) -> None:
    def ask(job_id: str, series: int) -> JobRequest:
        return ask_again(make_job(kind=JobKind.TASK, series=series), id=job_id)

    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job(attempt=5))
        assert await job_rows.find_unused_series(connection, "octo/widgets") == 1
        first = await job_rows.create_job(connection, ask("a" * 10, 1), NOON)
        assert first
        assert (first.attempt, first.state) == (1, JobState.QUEUED)
        assert await job_rows.create_job(connection, ask("b" * 10, 1), NOON) is None
        assert await job_rows.find_unused_series(connection, "octo/widgets") == 2
        other = await job_rows.create_job(connection, ask("b" * 10, 2), NOON)
        await job_rows.move_job(connection, first, JobState.CANCELLED, NOON)
        second = await job_rows.create_job(connection, ask("c" * 10, 1), NOON)
        assert [job and job.attempt for job in (other, second)] == [1, 2]
        assert await job_rows.find_unused_series(connection, "octo/gadgets") == 1


@pytest.mark.parametrize(
    "job",
    [
        make_job(machine="gpu-1", cancel_requested_at=NOON, failure="no luck", exit_status=3),
        make_job(kind=JobKind.WORKTREE, series=3, name="wt"),
        make_job(preset="rebase", conflicts=("a.py",), skills=("review",)),
    ],
    ids=lambda job: job.kind,
)
async def test_a_job_comes_back_as_it_was_stored(database_url: str, job: Job) -> None:
    async with open_database(database_url) as database:
        async with database.write() as connection:
            await job_rows.insert_job(connection, job)
        async with database.read() as connection:
            assert await job_rows.fetch_job(connection, job.id) == job


async def test_a_move_from_a_state_that_the_row_has_left_changes_nothing(database_url: str) -> None:
    async with open_database(database_url) as database:
        async with database.write() as connection:
            await job_rows.insert_job(connection, make_job())
            await job_rows.move_job(connection, make_job(), JobState.PREPARING, NOON)
        with pytest.raises(IllegalMove):
            async with database.write() as connection:
                await job_rows.move_job(connection, make_job(), JobState.FAILED, NOON, "too late")
        async with database.read() as connection:
            job = await job_rows.fetch_job(connection, make_job().id)
            assert job is not None
            assert (job.state, job.failure) == (JobState.PREPARING, None)
            assert [what for _, what in await job_rows.fetch_events(connection, job.id)] == [
                "queued by @maintainer",
                "preparing",
            ]


async def test_a_cancel_that_comes_while_a_job_moves_is_kept(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job())
        assert await job_rows.request_cancel(connection, make_job().id, "maintainer", NOON)
        assert not await job_rows.request_cancel(connection, make_job().id, "other", NOON)
        await job_rows.move_job(connection, make_job(), JobState.PREPARING, NOON)
        job = await job_rows.fetch_job(connection, make_job().id)
        assert job is not None
        assert job.cancelled_by == "maintainer"


async def test_a_slot_is_leased_once(database_url: str) -> None:
    async with open_database(database_url) as database:
        async with database.write() as connection:
            await job_rows.insert_job(connection, make_job())
            await job_rows.insert_job(connection, make_job(id="aaaaaaaaaa", thread=8))
            await job_rows.insert_lease(connection, Lease("gpu-1", 0, "0123456789"), NOON)
        with pytest.raises(IntegrityError):
            async with database.write() as connection:
                await job_rows.insert_lease(connection, Lease("gpu-1", 0, "aaaaaaaaaa"), NOON)
        async with database.write() as connection:
            await job_rows.delete_lease(connection, "0123456789")
            assert await job_rows.fetch_leases(connection) == []


async def test_a_report_comes_back_with_the_longest_paths_of_linux_in_their_order(database_url: str) -> None:
    names = random.Random(1)  # Their letters come in no order, because PostgreSQL compresses what its indexes hold.
    folders = ("".join(names.choices(ascii_letters, k=254)) for _ in range(32))
    long = FileChange("/".join(folders)[:MAX_PATH], "100644", b"x", None)
    changes = (FileChange("Z.py", None, None, "100644"), long, FileChange("é.py", "100644", b"", None))
    report = Report("0123456789", "body", "", "", "", "patch", changes, None, (), ())
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job())
        await store_report(connection, replace(report, changes=changes[::-1]))
        assert await job_rows.fetch_report(connection, report.job_id) == report


async def test_a_report_comes_back_with_every_byte_and_mode(database_url: str) -> None:
    changes = (
        FileChange("a/link", "120000", b"../b", None),
        FileChange("b", None, None, "100644"),
        FileChange("c", "100755", b"\x00\xff", "100644"),
    )
    report = Report("0123456789", "body", "log", "title", "repro", "patch", changes, "ab" * 32, ("no",), ("hm",))
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job())
        await store_report(connection, report)
        assert await job_rows.fetch_report(connection, report.job_id) == report


async def test_a_log_is_kept_and_replaced(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job())
        assert await job_rows.fetch_log(connection, make_job().id, "agent") is None
        await job_rows.save_log(connection, make_job().id, "agent", job_rows.compress_log(b"one"))
        await job_rows.save_log(connection, make_job().id, "agent", job_rows.compress_log(b"two\xff"))
        assert await job_rows.fetch_log(connection, make_job().id, "agent") == b"two\xff"


async def test_jobs_that_wait_longer_are_counted(database_url: str) -> None:
    later = make_job(id="aaaaaaaaaa", thread=8, created_at=NOON + timedelta(seconds=1))
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job())
        await job_rows.insert_job(connection, later)
        assert await job_rows.count_queued_before(connection, later) == 1
        assert await job_rows.count_queued_before(connection, make_job()) == 0


async def test_many_writers_at_once_wait_for_each_other(database_url: str) -> None:
    async def read_then_write(database: Database, number: int) -> None:
        async with database.write() as connection:
            await job_rows.fetch_active_jobs(connection)
            await job_rows.insert_job(connection, make_job(id=f"{number:010x}", thread=number))

    async with open_database(database_url) as database:
        await asyncio.gather(*(read_then_write(database, number) for number in range(1, 20)))
        async with database.read() as connection:
            assert len(await job_rows.fetch_active_jobs(connection)) == 19


async def test_a_reader_does_not_wait_for_a_writer(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as writer:
        await job_rows.insert_job(writer, make_job())
        async with database.read() as reader:
            assert await job_rows.fetch_active_jobs(reader) == []


async def test_times_are_stored_in_utc_and_never_without_a_zone(database_url: str) -> None:
    tokyo = NOON.astimezone(timezone(timedelta(hours=9)))
    async with open_database(database_url) as database:
        async with database.write() as connection:
            await job_rows.insert_job(connection, make_job(created_at=tokyo))
            job = await job_rows.fetch_job(connection, make_job().id)
            assert job is not None
            assert (job.created_at, job.created_at.tzinfo) == (NOON, UTC)
        with pytest.raises(StatementError, match="without a zone"):
            async with database.write() as connection:
                await connection.execute(select(jobs).where(jobs.c.created_at == datetime(2026, 3, 1)))


async def test_the_secret_of_a_database_stays_the_same(database_url: str) -> None:
    async with open_database(database_url) as first:
        secret = first.secret
    async with open_database(database_url) as second:
        assert second.secret == secret
        assert len(secret) == 32


async def test_what_was_taken_is_summed_up_for_the_issue_the_person_and_the_repository(database_url: str) -> None:
    jobs_made = [
        make_job(id="a" * 10, thread=1, requested_by="ada"),
        make_job(id="b" * 10, thread=2, requested_by="ada"),
        make_job(id="c" * 10, thread=3, requested_by="ada", created_at=NOON - timedelta(days=40)),
        make_job(id="d" * 10, kind=JobKind.TASK, series=1, requested_by="bob", repository="octo/gadgets"),
        make_job(id="e" * 10, kind=JobKind.WORKTREE, series=2, requested_by="bob", repository="octo/gadgets"),
    ]
    async with open_database(database_url) as database:
        async with database.write() as connection:
            for job in jobs_made:
                await job_rows.insert_job(connection, job)
                meter = make_meter(job.id, turns=2, input_tokens=10, output_tokens=1, cost_usd=0.5, run_s=3.0)
                await job_rows.save_meter(connection, meter)
            await job_rows.save_meter(connection, make_meter("a" * 10, turns=3, run_s=4.0))
        async with database.read() as connection:
            spent, of_the_next_day = [
                await job_rows.fetch_spent(
                    connection, Topic(jobs_made[0].repository, 1), requested_by="ada", now=now, caps={}
                )
                for now in (NOON, NOON + timedelta(days=1))
            ]
            in_series = [
                await job_rows.fetch_spent(
                    connection,
                    Topic("octo/gadgets", None, series),
                    requested_by="bob",
                    now=NOON,
                    caps={},
                )
                for series in (1, 2, None)
            ]
    of_issue = Usage(jobs=1, turns=3, run_s=4.0, unpriced=1, unpriced_turns=3, unpriced_run_s=4.0)
    assert spent[Scope.ISSUE] == of_issue
    assert spent[Scope.USER_DAY] == of_issue + Usage(
        jobs=1, turns=2, input_tokens=10, output_tokens=1, known_usd=0.5, run_s=3.0
    )
    assert spent[Scope.REPOSITORY_MONTH] == spent[Scope.USER_DAY], "the third job was another month's"
    assert of_the_next_day[Scope.REPOSITORY_MONTH] == spent[Scope.REPOSITORY_MONTH]
    assert [of_the_next_day[scope].jobs for scope in (Scope.USER_DAY, Scope.REPOSITORY_DAY)] == [0, 0]
    assert [spent[Scope.ISSUE].jobs for spent in in_series] == [1, 0, 0], "a person's worktree is no run of an agent"


async def test_jobs_that_waited_until_after_midnight_share_the_caps_of_the_day_they_were_requested_on(
    database_url: str,
) -> None:
    midnight = NOON.replace(hour=0, day=1)
    late = [
        make_job(id=letter * 10, thread=number, created_at=midnight - timedelta(minutes=5))
        for number, letter in enumerate("ab")
    ]
    async with open_database(database_url) as database:
        async with database.write() as connection:
            for job in late:
                await job_rows.insert_job(connection, job)
                await job_rows.save_meter(connection, make_meter(job.id, turns=2, cost_usd=40.0))
        async with database.read() as connection:
            spent = await job_rows.fetch_spent_by_others(connection, late[0], {})
    assert [spent[scope].known_usd for scope in (Scope.USER_DAY, Scope.REPOSITORY_MONTH)] == [40.0, 40.0]


async def test_what_is_known_of_a_cost_counts_for_others_and_turns_that_an_agent_invents_do_not(
    database_url: str,
) -> None:
    job, known = make_job(), Usage(jobs=1, turns=5, known_usd=9.5, unpriced=1).as_one()
    spent: list[Usage] = []
    async with open_database(database_url) as database:
        async with database.write() as connection:
            await job_rows.insert_job(connection, job)
        for meter in (Meter(job.id, known), make_meter(job.id, turns=99_999, is_self_reported=True)):
            async with database.write() as connection:
                await job_rows.save_meter(connection, meter)
            async with database.read() as connection:
                assert await job_rows.fetch_meter(connection, job.id) == meter
                of: dict[str, Any] = {"now": NOON, "caps": DEFAULT_CAPS}
                read = await job_rows.fetch_spent(
                    connection, Topic(job.repository, None), requested_by=job.requested_by, **of
                )
            assert read[Scope.USER_DAY] == read[Scope.REPOSITORY_MONTH]
            spent.append(read[Scope.USER_DAY])
    assert spent[0] == known, "its cost is unknown, and most of it is known"
    assert (spent[1].turns, spent[1].unpriced_turns) == (300, 300), "one run may have no more"


async def test_what_an_agent_says_of_itself_alone_uses_up_no_cap_of_others(database_url: str) -> None:
    caps = {Scope.JOB: Caps(tokens=2_000), Scope.REPOSITORY_DAY: Caps(turns=100, tokens=10_000, cost_usd=5.0)}
    said: dict[str, Any] = {"turns": 10**6, "input_tokens": 1_500, "output_tokens": 10**9, "cost_usd": 9_999.0}
    cases: list[dict[str, Any]] = [
        {**said, "is_self_reported": True},
        {**said, "is_self_reported": False},
        {**said, "is_self_reported": True, "cost_usd": None},
    ]
    async with open_database(database_url) as database:
        for number, values in enumerate(cases):
            job = make_job(id=f"{number:010x}", thread=number)
            async with database.write() as connection:
                await job_rows.insert_job(connection, job)
                await job_rows.save_meter(connection, make_meter(job.id, **values))
        async with database.read() as connection:
            of: dict[str, Any] = {"requested_by": "nobody", "now": NOON, "caps": caps}
            name, nowhere = job.repository, Topic(job.repository, None)
            claimed, counted, unpriced = [
                (await job_rows.fetch_spent(connection, Topic(name, number), **of))[Scope.ISSUE] for number in range(3)
            ]
            day = (await job_rows.fetch_spent(connection, nowhere, **of))[Scope.REPOSITORY_DAY]
            rest = (await job_rows.fetch_spent(connection, nowhere, without=job.id, **of))[Scope.REPOSITORY_DAY]
    assert (claimed.input_tokens, claimed.output_tokens) == (1_500, 500)
    assert (counted.output_tokens, counted.known_usd) == (10**9, 9_999.0), "the gateway has counted it"
    assert (unpriced.known_usd, unpriced.unpriced) == (0.0, 1)
    assert (day.turns, day.jobs, rest.turns, rest.jobs) == (10**6 + 100, 3, 10**6 + 50, 2)
    assert day.known_usd == 9_999.0 + 2.5
