"""Whether only the operator may see the result of a stored job. `runner.changes.concerns` decides it."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from runner.changes.concerns import is_withheld
from runner.rows import job_rows


async def fetch_withheld(connection: AsyncConnection, job_id: str) -> bool:
    """Whether a job's result must not be shown, given to another job, or opened to other people.

    By the rules of today: those that the report was stored with may have been less strict.
    """
    job = await job_rows.fetch_job(connection, job_id)
    return job is not None and is_withheld(job, await job_rows.fetch_report(connection, job_id))
