"""The names of worktrees and tasks, which people choose."""

from __future__ import annotations

import re

from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import jobs
from runner.rows import job_rows

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
"""The form of a name, also of a person's."""

JOB_ID = re.compile(r"[0-9a-f]{10}")
"""The form of a job's id, by which commands find a job, too."""


async def find_name_fault(
    connection: AsyncConnection, repository: str, name: str, series: int | None = None
) -> str | None:
    """Why a worktree or a task cannot have this name, as a sentence without its end; None if it can.

    `series` is its own, if it has another name now.
    """
    if not NAME.fullmatch(name) or JOB_ID.fullmatch(name):
        return "a name has letters, digits, dots, dashes and underscores, 50 at most, and is no job's id"
    others = (jobs.c.name == name, jobs.c.repository == repository, jobs.c.series.is_distinct_from(series))
    if found := await job_rows.fetch_recent_jobs(connection, 1, *others):
        return f"job {found[0].id} of {repository} has that name"
    return None
