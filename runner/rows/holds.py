"""People's holds on the environments of jobs, as rows. Every function takes the transaction that its caller opened.

As long as there is a hold, the job's lease stays, and so its slot and its folder on the machine.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import holds
from runner.db.sql import upsert


@dataclass(frozen=True, slots=True)
class Hold:
    """A person's hold on a job's environment. Times are the service's."""

    job_id: str
    person: str
    public_key: str
    """A line as in `id_ed25519.pub`; whoever has the other half may enter."""
    begun_at: datetime
    expires_at: datetime
    admitted_at: datetime | None = None
    """Since when the job's machine lets the key in; None while it does not yet."""
    trouble: str | None = None
    """Why it does not, as a clause for people."""
    waits_for_report: bool = False
    """Whether nobody is let in before somebody has seen that the job's report is not for the operator alone, and that
    the person still may."""
    checked_at: datetime | None = None
    """When GitHub last said that the person may hold it; None where the operator let them in."""

    def rests(self, now: datetime) -> bool:
        """Whether there is nothing to do about it just now."""
        return self.admitted_at is not None and now < self.expires_at


async def fetch_holds(connection: AsyncConnection) -> list[Hold]:
    """Every hold, the oldest first."""
    return [Hold(**row._mapping) for row in await connection.execute(select(holds).order_by(holds.c.begun_at))]


async def fetch_hold(connection: AsyncConnection, job_id: str) -> Hold | None:
    """The hold on a job's environment."""
    row = (await connection.execute(select(holds).where(holds.c.job_id == job_id))).one_or_none()
    return Hold(**row._mapping) if row else None


async def save_hold(connection: AsyncConnection, hold: Hold) -> None:
    """Begin a hold, or replace the one that is there."""
    await upsert(connection, holds, asdict(hold))


async def refuse_hold(connection: AsyncConnection, job_id: str) -> None:
    """The job's report is for the operator alone: whoever waits for it is not let in."""
    await connection.execute(delete(holds).where(holds.c.job_id == job_id, holds.c.waits_for_report))


async def change_hold(connection: AsyncConnection, hold: Hold, **changes: Any) -> None:
    """Change a hold, unless it was replaced meanwhile, or has ended."""
    await connection.execute(update(holds).where(*_is(hold)).values(**changes))


async def end_hold(connection: AsyncConnection, hold: Hold) -> bool:
    """End a hold; False when it was replaced meanwhile, or has ended."""
    return (await connection.execute(delete(holds).where(*_is(hold)))).rowcount == 1


def _is(hold: Hold) -> tuple[Any, ...]:
    return holds.c.job_id == hold.job_id, holds.c.begun_at == hold.begun_at, holds.c.expires_at == hold.expires_at
