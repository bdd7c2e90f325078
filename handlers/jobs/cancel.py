"""Ends jobs early: a person cancels a job, or withdraws a request before its job has begun.

Each function takes the transaction of its caller.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.commands.rights import Operation, Person
from handlers.jobs.start import was_requested_before
from runner.model.job import Job, JobState
from runner.rows import job_rows


async def cancel(connection: AsyncConnection, person: Person, job: Job, now: datetime) -> bool:
    """Ask an active job to end, or forbid the automatic restart of a lost job that is not reported yet.

    Returns False if the job has already ended for good. Raises `NotPermitted`.
    """
    person.require(Operation.CANCEL, job.repository)
    job = await job_rows.fetch_job(connection, job.id) or job
    if not job.active:
        may_start_again = job.id in await casebook.fetch_unreported_job_ids(connection)
        if job.state is not JobState.LOST or not may_start_again:
            return False
    await job_rows.request_cancel(connection, job.id, person.signature, now)
    return True


async def withdraw(
    connection: AsyncConnection, person: Person, number: int, at: datetime, now: datetime, preset: str | None = None
) -> Job | None:
    """Cancel the queued job of an issue, if it was not requested after `at`, and has the `preset` if one is given.

    Returns the cancelled job, or None. Raises `NotPermitted`.
    """
    person.require(Operation.WITHDRAW)
    job = await casebook.fetch_queued_job(connection, f"{person.rules.name}#{number}")
    if job is None or preset not in (None, job.preset) or not was_requested_before(job, at):
        return None
    await job_rows.request_cancel(connection, job.id, person.signature, now)
    return job
