"""The kill switch, as rows: whether new work begins, everywhere or in one repository. What is under way goes on.

Every function takes the transaction that its caller opened. It refuses to know what a label is.
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
"""In place of a repository."""

OPERATOR = "operator"
"""The origin of a pause from the command line."""


@dataclass(frozen=True, slots=True)
class Pause:
    """That nothing new begins."""

    repository: str
    """In lower case, or `EVERYWHERE`."""
    origin: str
    """What says so, and has to take it back: several may at once."""
    paused_by: str
    paused_at: datetime

    def describe(self) -> str:
        """It as a clause for people. An operator's name is nobody's business in a thread."""
        if self.origin == OPERATOR:
            return "the operator of this App has paused new jobs"
        return f"@{self.paused_by} has paused new jobs in this repository ({self.origin})"


async def begin_pause(connection: AsyncConnection, pause: Pause) -> bool:
    """Let nothing new begin; False when the same origin had said so before."""
    return await insert_new(connection, pauses, asdict(pause))


async def end_pause(connection: AsyncConnection, repository: str, origin: str | None = None) -> int:
    """Take back what one origin said, or all of them. How many had."""
    which = [pauses.c.repository == repository.lower()]
    which += [pauses.c.origin == origin] if origin else []
    return (await connection.execute(delete(pauses).where(*which))).rowcount


async def fetch_pauses(connection: AsyncConnection) -> list[Pause]:
    """Every pause, the oldest first."""
    return [Pause(**row._mapping) for row in await connection.execute(select(pauses).order_by(pauses.c.paused_at))]


def find_pause(known: Iterable[Pause], repository: str) -> Pause | None:
    """What keeps new jobs of a repository from beginning. Pure."""
    return next((pause for pause in known if pause.repository in (EVERYWHERE, repository.lower())), None)


def find_pause_of(known: Iterable[Pause], job: Job) -> Pause | None:
    """The same for a job; what a person does by hand is no agent's work. Pure."""
    return None if job.by_hand else find_pause(known, job.repository)
