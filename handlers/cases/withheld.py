"""Whether only the operator may see what a stored job has found. `handlers.text.report` decides it."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.text.report import is_withheld
from runner.rows import job_rows


async def fetch_withheld(connection: AsyncConnection, job_id: str) -> bool:
    """Whether nothing that a job wrote may be shown, given to another job, or opened to anybody else."""
    return is_withheld(await job_rows.fetch_report(connection, job_id))
