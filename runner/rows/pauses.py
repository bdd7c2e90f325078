"""Rows of pauses, the kill switch: no new jobs start, everywhere or in one repository. Running jobs continue.

Every function takes its caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import pauses
from runner.db.sql import insert_new
from runner.model.job import Job

EVERYWHERE = ""
"""The value for all repositories."""

OPERATOR = "operator"
"""The origin of a pause from the command line."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of new jobs."""

    repository: str
    """In lower case, or `EVERYWHERE`."""
    origin: str
    """Who or what paused, and has to end the pause. There may be several at the same time."""
    paused_by: str
    paused_at: datetime

    def describe(self) -> str:
        """A clause for people, without the operator's name."""
        if self.origin == OPERATOR:
            return "the operator of this App has paused new jobs"
        return f"@{self.paused_by} has paused new jobs in this repository ({self.origin})"


async def begin_pause(connection: AsyncConnection, pause: Pause) -> bool:
    """Begin a pause; False if the same origin has already paused."""
    return await insert_new(connection, pauses, asdict(pause))


async def end_pause(connection: AsyncConnection, repository: str, origin: str | None = None) -> int:
    """End the pause of one origin, or all pauses. Returns their number."""
    which = [pauses.c.repository == repository.lower()]
    which += [pauses.c.origin == origin] if origin else []
    return (await connection.execute(delete(pauses).where(*which))).rowcount


async def fetch_pauses(connection: AsyncConnection) -> list[Pause]:
    """All pauses, oldest first."""
    return [Pause(**row._mapping) for row in await connection.execute(select(pauses).order_by(pauses.c.paused_at))]


def find_pause(known: Iterable[Pause], repository: str) -> Pause | None:
    """The pause that applies to a repository. Pure."""
    return next((pause for pause in known if pause.repository in (EVERYWHERE, repository.lower())), None)


def find_pause_of(known: Iterable[Pause], job: Job) -> Pause | None:
    """The pause that applies to a job. Work by people is not paused. Pure."""
    return None if job.by_hand else find_pause(known, job.repository)
