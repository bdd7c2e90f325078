"""Rows of agents' worklogs. Every function takes its caller's transaction.

A job's row is deleted when the job has a report, because the report contains the last version. A job that ends without
a report keeps its row.
"""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import worklogs
from runner.db.sql import upsert
from runner.model.jobd_answers import Worklog


async def save_worklog(connection: AsyncConnection, job_id: str, worklog: Worklog) -> None:
    """Store a worklog in place of its earlier version."""
    await upsert(connection, worklogs, {"job_id": job_id, **asdict(worklog)})


async def fetch_worklog_mark(connection: AsyncConnection, job_id: str) -> str:
    """The mark of the stored version. Empty if there is none."""
    query = select(worklogs.c.mark).where(worklogs.c.job_id == job_id)
    return (await connection.execute(query)).scalar_one_or_none() or ""


async def fetch_worklog(connection: AsyncConnection, job_id: str) -> Worklog | None:
    """The stored version. None if there is none."""
    row = (await connection.execute(select(worklogs).where(worklogs.c.job_id == job_id))).one_or_none()
    return Worklog(row.mark, row.text, row.is_cut) if row else None


async def delete_worklog(connection: AsyncConnection, job_id: str) -> None:
    """Delete a job's worklog, because the job's report contains the last version."""
    await connection.execute(delete(worklogs).where(worklogs.c.job_id == job_id))
