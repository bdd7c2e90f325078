"""Reads whether only the operator may see the result of a job. `runner.changes.concerns` decides it."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from runner.changes.concerns import is_withheld
from runner.rows import job_rows


async def fetch_withheld(connection: AsyncConnection, job_id: str) -> bool:
    """Whether a job's result must not be shown, given to another job, or opened to other people.

    Today's rules count. The rules of the time when the report was stored may have been less strict.
    """
    job = await job_rows.fetch_job(connection, job_id)
    return job is not None and is_withheld(job, await job_rows.fetch_report(connection, job_id))
