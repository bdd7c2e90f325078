"""The names of worktrees and tasks, which people choose."""

from __future__ import annotations

import re

from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import jobs
from runner.rows import job_rows

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
"""The form of a name of a worktree or a task. A person's name at the terminal has the same form."""

AUTOMATIC = re.compile(r"task[0-9]+")
"""The form of the names that ptq-bot gives to tasks."""

JOB_ID = re.compile(r"[0-9a-f]{10}")
"""The form of a job's id. No name looks like an id, because commands find a job by its name or by its id."""


def find_form_fault(name: str, series: int | None = None) -> str | None:
    """Why no worktree or task can have this name, as a sentence without its period. None if one can. Pure.

    `series` is the number of the one that gets the name, if it has a number already.
    """
    if AUTOMATIC.fullmatch(name) and name != f"task{series}":
        return "ptq-bot gives tasks names such as task7 itself: choose another form"
    if not NAME.fullmatch(name) or JOB_ID.fullmatch(name):
        return "a name has 1 to 50 letters, digits, dots, dashes and underscores, and does not look like a job's id"
    return None


async def find_name_fault(
    connection: AsyncConnection, repository: str, name: str, series: int | None = None
) -> str | None:
    """Why a new task, or a task or worktree that is renamed, cannot have this name. None if it can.

    The reason is a sentence without its period. `series` is the number of the one that is renamed.
    """
    if fault := find_form_fault(name, series):
        return fault
    others = (jobs.c.name == name, jobs.c.repository == repository, jobs.c.series.is_distinct_from(series))
    if found := await job_rows.fetch_recent_jobs(connection, 1, *others):
        return f"job {found[0].id} of {repository} already has this name: choose another"
    return None
