"""Whether only the operator may see what a stored job has found. `handlers.report` decides it."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.report import is_withheld
from runner import store


async def fetch_withheld(connection: AsyncConnection, job_id: str) -> bool:
    """Whether nothing that a job wrote may be shown, given to another job, or opened to anybody else."""
    return is_withheld(await store.fetch_report(connection, job_id))
