"""The names of worktrees and tasks, which people choose."""

from __future__ import annotations

import re

from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import jobs
from runner.rows import job_rows

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
"""The form of a name, also of a person's."""

AUTOMATIC = re.compile(r"task[0-9]+")
"""The form of the names that tasks get by themselves."""

JOB_ID = re.compile(r"[0-9a-f]{10}")
"""The form of a job's id, by which commands find a job, too."""


def find_form_fault(name: str, series: int | None = None) -> str | None:
    """Why nothing may have this name, as a sentence without its end; None if it may. `series` is its own. Pure."""
    if AUTOMATIC.fullmatch(name) and name != f"task{series}":
        return "ptq-bot gives tasks names such as task7 itself: choose another form"
    if not NAME.fullmatch(name) or JOB_ID.fullmatch(name):
        return "a name has 1 to 50 letters, digits, dots, dashes and underscores, and does not look like a job's id"
    return None


async def find_name_fault(
    connection: AsyncConnection, repository: str, name: str, series: int | None = None
) -> str | None:
    """Why a task, or a worktree that is renamed, cannot have this name, as a sentence without its end; None if it can.

    `series` is its own, if it has another name now.
    """
    if fault := find_form_fault(name, series):
        return fault
    others = (jobs.c.name == name, jobs.c.repository == repository, jobs.c.series.is_distinct_from(series))
    if found := await job_rows.fetch_recent_jobs(connection, 1, *others):
        return f"job {found[0].id} of {repository} already has this name: choose another"
    return None
