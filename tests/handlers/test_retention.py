from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from handlers.cases.retention import (
    BATCH,
    OldJob,
    Retention,
    are_logs_due,
    clean_database,
    clean_spool,
    is_delivery_due,
)
from runner.db.database import Database
from runner.db.schema import cases, deliveries, job_logs
from runner.model.job import FileChange, JobState, Report
from runner.model.jobd_answers import Worklog
from runner.model.usage import NOTHING
from runner.rows import job_rows
from runner.rows.calls import Account, Ledger, StoredUsage
from runner.rows.worklogs import fetch_worklog, save_worklog
from runner.steps.spool import Spool
from tests.support.calls import fetch_calls
from tests.support.jobs import NOON, make_job, open_database, store_report

RETENTION = Retention(deliveries_days=30, logs_days=180)
OLD = NOON - timedelta(days=181)


@pytest.mark.parametrize(
    ("state", "days", "due"),
    [
        ("done", 31, True),
        ("failed", 31, True),
        ("pending", 1000, False),
        ("done", 29, False),
        ("failed", 29, False),
        ("done", 30, False),
    ],
)
def test_a_delivery_goes_when_it_is_old_and_nobody_will_work_it(state: str, days: int, due: bool) -> None:
    assert is_delivery_due(state, NOON - timedelta(days=days), RETENTION, NOON) is due


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, True),
        ({"ended_at": None}, False),
        ({"ended_at": NOON - timedelta(days=179)}, False),
        ({"is_last": True}, False),
        ({"needed": frozenset({"one"})}, False),
        ({"needed": frozenset({"another"})}, True),
    ],
)
def test_logs_go_when_they_are_old_and_their_case_does_not_need_the_job(changes: dict[str, Any], due: bool) -> None:
    job = OldJob("one", OLD, is_last=False, needed=frozenset())
    assert are_logs_due(replace(job, **changes), RETENTION, NOON) is due


async def add_delivery(
    database: Database, name: str, state: str, received_at: datetime, body: bytes = b"private"
) -> None:
    row = {"id": name, "event": "issues", "lane": "octo/widgets#7", "body": body, "attempts": 0}
    async with database.write() as connection:
        await connection.execute(
            deliveries.insert().values(**row, state=state, received_at=received_at, next_attempt_at=received_at)
        )


async def test_beyond_a_bound_in_bytes_the_oldest_bodies_of_worked_deliveries_are_emptied(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        for number in range(BATCH + 5):
            await add_delivery(database, f"done {number}", "done", NOON, body=os.urandom(1000))
        await add_delivery(database, "failed", "failed", NOON, body=os.urandom(1000))
        for _ in range(2):
            await clean_database(database, RETENTION, lambda: NOON, max_bodies=3500)
            async with database.read() as connection:
                rows = (await connection.execute(select(deliveries.c.id, deliveries.c.body))).all()
            assert len(rows) == BATCH + 6
            kept = [f"done {number}" for number in range(BATCH + 2, BATCH + 5)]
            assert [row.id for row in rows if row.body] == [*kept, "failed"]


async def deliveries_left(database: Database) -> list[str]:
    async with database.read() as connection:
        return [*(await connection.execute(select(deliveries.c.id).order_by(deliveries.c.sequence))).scalars()]


async def test_old_deliveries_go_with_their_bodies_and_pending_ones_stay(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        for number in range(2 * BATCH):
            await add_delivery(database, f"old-{number}", "done" if number % 2 else "failed", OLD)
            if number == BATCH:
                await add_delivery(database, "waits", "pending", OLD)
        await add_delivery(database, "young", "done", NOON - timedelta(days=29))
        await clean_database(database, RETENTION, lambda: NOON)
        assert await deliveries_left(database) == ["waits", "young"]
        await clean_database(database, RETENTION, lambda: NOON + timedelta(days=2))
        assert await deliveries_left(database) == ["waits"]


async def add_job(database: Database, attempt: int, thread: int = 7, **changes: Any) -> str:
    """A job that ended long ago, with a log, a report and a changed file."""
    job_id = f"job-{thread}-{attempt}"
    ended = {"state": JobState.FAILED, "ended_at": OLD, "created_at": OLD, "changed_at": OLD}
    job = make_job(id=job_id, attempt=attempt, thread=thread, **{**ended, **changes})
    change = FileChange("a.py", "100644", b"new", "100644")
    async with database.write() as connection:
        assert await job_rows.insert_job(connection, job)
        await job_rows.save_log(connection, job_id, "agent", job_rows.compress_log(b"what it said"))
        await store_report(
            connection, Report(job_id, "It is fixed.", "", "", "", "the diff", digest="ab" * 32, changes=(change,))
        )
    return job_id


async def point(database: Database, issue_number: int, **jobs: str) -> None:
    row = {"key": f"octo/widgets#{issue_number}", "repository": "octo/widgets", "issue_number": issue_number}
    values = {**row, "title": "", "state": "reported", "created_at": OLD, "changed_at": OLD, **jobs}
    async with database.write() as connection:
        await connection.execute(cases.insert().values(**values))


async def test_only_logs_of_jobs_that_no_case_needs_go_and_every_report_stays(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        job_ids = [await add_job(database, attempt) for attempt in (1, 2, 3, 4)]
        await point(database, 7, standing_job_id=job_ids[1])
        other = await add_job(database, 1, thread=8)
        for job_id in (*job_ids, other):
            await Ledger(database).reserve(Account(make_job(id=job_id), {}, StoredUsage()), "m", NOTHING, OLD)
            async with database.write() as connection:
                await save_worklog(connection, job_id, Worklog("1", "looked", is_cut=False))
        await clean_database(database, RETENTION, lambda: NOON)
        assert {call.job_id for call in await fetch_calls(database)} == {job_ids[1], job_ids[3], other}
        async with database.read() as connection:
            logs = {one: await job_rows.fetch_log(connection, one, "agent") for one in (*job_ids, other)}
            worklogs = [await fetch_worklog(connection, one) is not None for one in (*job_ids, other)]
            reports = [await job_rows.fetch_report(connection, one) for one in (*job_ids, other)]
        kept = b"what it said"
        assert [*logs.values()] == [None, kept, None, kept, kept], "the standing one's, and each issue's last"
        assert worklogs == [log is not None for log in logs.values()]
        for report in reports:
            assert report is not None
            assert (report.patch, report.digest, report.changes[0].content) == ("the diff", "ab" * 32, b"new")


@pytest.mark.slow
async def test_many_jobs_are_gone_through_batch_by_batch(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        for attempt in range(1, 2 * BATCH + 3):
            await add_job(database, attempt)
        await clean_database(database, RETENTION, lambda: NOON)
        async with database.read() as connection:
            left = (await connection.execute(select(func.count()).select_from(job_logs))).scalar_one()
        assert left == 1


async def test_live_logs_of_jobs_that_are_not_under_way_go(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        spool = Spool(tmp_path / "spool")
        running = await add_job(database, 1, state=JobState.RUNNING, ended_at=None)
        ended = await add_job(database, 1, thread=8)
        for job_id in (running, ended, "unheard-of"):
            spool.append(job_id, "agent", b"some words")
        await clean_spool(database, spool)
        assert spool.list_jobs() == {running}
        assert spool.read(running, "agent") == b"some words"
