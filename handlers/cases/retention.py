"""Deletes old deliveries, which hold private data, and old logs, which are large, but nothing that a case needs.

The stored bodies of processed deliveries also have a limit in bytes, because strangers can cause deliveries.

Reports, changes, pull requests, replies, meters and sessions are kept forever. Jobs that a case refers to, and the last
job of each issue, also keep their logs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Row, Select, and_, delete, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.database import Database
from runner.db.schema import cases, deliveries, job_logs, jobs, model_calls, worklogs
from runner.rows import job_rows
from runner.steps.spool import Spool

log = structlog.get_logger()

REDELIVERED_DAYS = 3
"""How many days GitHub can send a delivery again. During this time, the row shows that it was received.
https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks"""

MAX_BODIES = 1_000_000_000
"""The most bytes of all stored bodies of processed deliveries together. If there are more, the oldest bodies are
emptied. The rows stay, so that the same content is not processed again."""

EMPTIED = 20
"""The most bytes of a stored body that is empty."""

BATCH = 50
"""The most rows of one transaction, so that no transaction takes long."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The number of days that rows are kept."""

    deliveries_days: int = 30
    logs_days: int = 180


@dataclass(frozen=True, slots=True)
class OldJob:
    """A job, and the jobs that its case needs."""

    id: str
    ended_at: datetime | None
    """None while the job is active."""
    is_last: bool
    """Whether it is the last job of its issue."""
    needed: frozenset[str]
    """The jobs that its case refers to: the active one, and the one with the current report."""


def is_delivery_due(state: str, received_at: datetime, retention: Retention, now: datetime) -> bool:
    """Whether a delivery can be deleted: processed or set aside, and old. Pure."""
    return state != "pending" and received_at < now - timedelta(days=retention.deliveries_days)


def are_logs_due(job: OldJob, retention: Retention, now: datetime) -> bool:
    """Whether the logs of a job can be deleted. Pure."""
    if job.ended_at is None or job.is_last or job.id in job.needed:
        return False
    return job.ended_at < now - timedelta(days=retention.logs_days)


async def clean_database(
    db: Database, retention: Retention, now: Callable[[], datetime], max_bodies: int = MAX_BODIES
) -> None:
    """Delete everything that is due, in short transactions."""
    gone = await _clean_deliveries(db, retention, now()), await _clean_logs(db, retention, now())
    emptied = await _empty_bodies(db, max_bodies)
    if emptied or any(gone):
        log.info("retention.cleaned", deliveries=gone[0], jobs_without_logs=gone[1], emptied_bodies=emptied)


async def clean_spool(db: Database, spool: Spool) -> None:
    """Remove the live logs of ended jobs. A killed service leaves them behind."""
    # Listed before the jobs are read, because a job has its row before its log.
    listed = spool.list_jobs()
    async with db.read() as connection:
        active = {job.id for job in await job_rows.fetch_active_jobs(connection)}
    for job_id in listed - active:
        spool.drop(job_id)
        log.info("retention.spool_dropped", job=job_id)


async def _clean_deliveries(db: Database, retention: Retention, now: datetime) -> int:
    """Delete the deliveries that are due, oldest first. Returns their number."""
    last, gone = 0, 0
    columns = deliveries.c.sequence, deliveries.c.state, deliveries.c.received_at
    while True:
        query = select(*columns).where(deliveries.c.sequence > last).order_by(deliveries.c.sequence).limit(BATCH)
        async with db.write() as connection:
            rows = (await connection.execute(query)).all()
            due = [row.sequence for row in rows if is_delivery_due(row.state, row.received_at, retention, now)]
            await connection.execute(delete(deliveries).where(deliveries.c.sequence.in_(due)))
        gone += len(due)
        # The rows are in the order of arrival: after one that is too new, all are too new.
        if len(rows) < BATCH or not is_delivery_due("done", rows[-1].received_at, retention, now):
            return gone
        last = rows[-1].sequence


async def _empty_bodies(db: Database, most: int) -> int:
    """Empty the oldest bodies of processed deliveries beyond this many bytes. Returns the number of emptied bodies."""
    size = func.length(deliveries.c.body)
    filled = deliveries.c.state == "done", size > EMPTIED
    with_newer = func.sum(size).over(order_by=deliveries.c.sequence.desc()).label("with_newer")
    sized = select(deliveries.c.sequence, with_newer).where(*filled).subquery()
    async with db.read() as connection:
        last = await connection.scalar(select(func.max(sized.c.sequence)).where(sized.c.with_newer > most))
    begin, emptied = 0, 0
    while last is not None:
        some = select(deliveries.c.sequence).where(*filled, deliveries.c.sequence.between(begin, last))
        async with db.write() as connection:
            found = (await connection.execute(some.order_by(deliveries.c.sequence).limit(BATCH))).scalars().all()
            await connection.execute(update(deliveries).where(deliveries.c.sequence.in_(found)).values(body=b""))
        emptied += len(found)
        if len(found) < BATCH:
            break
        begin = found[-1]
    return emptied


async def _clean_logs(db: Database, retention: Retention, now: datetime) -> int:
    """Delete the logs and model calls of jobs that are due. Returns the number of jobs."""
    last, gone = "", 0
    while True:
        async with db.write() as connection:
            found = [_old_job(row) for row in await connection.execute(_select_logged_jobs(last))]
            due = [job.id for job in found if are_logs_due(job, retention, now)]
            await delete_logs(connection, due)
        gone += len(due)
        if len(found) < BATCH:
            return gone
        last = found[-1].id


async def delete_logs(connection: AsyncConnection, job_ids: Collection[str]) -> None:
    """Delete the logs and model calls of jobs, and the worklogs of jobs that have left no report."""
    for table in (job_logs, model_calls, worklogs):
        await connection.execute(delete(table).where(table.c.job_id.in_(job_ids)))


def _select_logged_jobs(after: str) -> Select[Any]:
    """The next jobs with logs, in the order of their ids."""
    later = jobs.alias("later")
    is_later = and_(later.c.repository == jobs.c.repository, later.c.attempt > jobs.c.attempt)
    in_thread = later.c.thread == jobs.c.thread
    in_series = and_(later.c.thread.is_(None), later.c.series == jobs.c.series)
    is_last = and_(~exists().where(is_later, in_thread), ~exists().where(is_later, in_series))
    of_case = and_(cases.c.repository == jobs.c.repository, cases.c.issue_number == jobs.c.thread)
    columns = jobs.c.id, jobs.c.ended_at, is_last.label("is_last"), cases.c.active_job_id, cases.c.standing_job_id
    has_logs = exists().where(job_logs.c.job_id == jobs.c.id)
    query = select(*columns).select_from(jobs.outerjoin(cases, of_case)).where(has_logs, jobs.c.id > after)
    return query.order_by(jobs.c.id).limit(BATCH)


def _old_job(row: Row[Any]) -> OldJob:
    needed = frozenset(job_id for job_id in (row.active_job_id, row.standing_job_id) if job_id)
    return OldJob(row.id, row.ended_at, bool(row.is_last), needed)
