"""Rows of pauses. During a pause no new jobs start, everywhere or in one repository. Running jobs continue.

Every function takes its caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import pauses
from runner.db.sql import insert_new
from runner.model.job import Job

EVERYWHERE = ""
"""The repository of a pause for all repositories."""

OPERATOR = 0
"""The issue number of a pause from the command line."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of new jobs."""

    repository: str
    """In lower case, or `EVERYWHERE`."""
    issue_number: int
    """The issue whose label began the pause, or `OPERATOR`. The same issue ends the pause, or an operator ends all
    pauses of the repository. There may be several at the same time."""
    paused_by: str
    paused_at: datetime
    label_restored_at: datetime | None = None
    """When the label was last added again, because a person without the right to end the pause had removed it."""

    @property
    def origin(self) -> str:
        """The origin of the pause, for people: the operator, or an issue."""
        return "operator" if self.issue_number == OPERATOR else f"#{self.issue_number}"

    def describe(self) -> str:
        """Describe the pause in a clause for people, without the operator's name."""
        if self.issue_number == OPERATOR:
            return "the operator of this App has paused new jobs"
        return f"@{self.paused_by} has paused new jobs in this repository ({self.origin})"


async def begin_pause(connection: AsyncConnection, pause: Pause) -> bool:
    """Begin a pause. False if there is one with the same origin already."""
    return await insert_new(connection, pauses, asdict(pause))


async def end_pause(connection: AsyncConnection, repository: str, issue_number: int | None = None) -> int:
    """End the pause that one issue began, or all pauses of a repository. Returns the number of ended pauses."""
    which = [pauses.c.repository == repository.lower()]
    which += [] if issue_number is None else [pauses.c.issue_number == issue_number]
    return (await connection.execute(delete(pauses).where(*which))).rowcount


async def note_label_restored(connection: AsyncConnection, pause: Pause, now: datetime) -> None:
    """Store that the label of a pause was added again."""
    which = (pauses.c.repository == pause.repository, pauses.c.issue_number == pause.issue_number)
    await connection.execute(update(pauses).where(*which).values(label_restored_at=now))


async def fetch_pauses(connection: AsyncConnection) -> list[Pause]:
    """All pauses, oldest first."""
    return [Pause(**row._mapping) for row in await connection.execute(select(pauses).order_by(pauses.c.paused_at))]


def find_pause(known: Iterable[Pause], repository: str) -> Pause | None:
    """The pause that applies to a repository. None if none does. Pure."""
    return next((pause for pause in known if pause.repository in (EVERYWHERE, repository.lower())), None)


def find_pause_of(known: Iterable[Pause], job: Job) -> Pause | None:
    """The pause that applies to a job. None if none does, or if a person does the job's work. Pure."""
    return None if job.by_hand else find_pause(known, job.repository)
