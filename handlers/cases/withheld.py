"""Whether only the operator may see the result of a stored job. It is decided when the report is stored."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from runner.rows import job_rows


async def fetch_withheld(connection: AsyncConnection, job_id: str) -> bool:
    """Whether a job's result must not be shown, given to another job, or opened to other people."""
    return bool(await job_rows.fetch_withheld_among(connection, [job_id]))
