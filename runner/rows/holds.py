"""Rows of people's holds on environments. Every function takes its caller's transaction.

While there is a hold, the job keeps its lease, and so its slot and its folder on the machine.
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
    """The person's SSH key, as a line like that in `id_ed25519.pub`."""
    begun_at: datetime
    expires_at: datetime
    admitted_at: datetime | None = None
    """When the machine began to accept the key. None if it does not accept the key yet."""
    trouble: str | None = None
    """Why the machine does not accept the key yet, as a clause for people."""
    waits_for_report: bool = False
    """Whether access waits for the job's report, which may be confidential, and for another check of the person's
    permission."""
    checked_at: datetime | None = None
    """When GitHub last confirmed the person's permission. None if the operator gave access."""

    def rests(self, now: datetime) -> bool:
        """Whether nothing has to be done for the hold now."""
        return self.admitted_at is not None and now < self.expires_at

    @property
    def mention(self) -> str:
        """The person's name in the history, with an `@` only for people on GitHub.

        The name of an account on the host may be a stranger's login on GitHub.
        """
        return f"@{self.person}" if self.checked_at else self.person


_ALL_HOLDS = select(holds).order_by(holds.c.begun_at)


async def fetch_holds(connection: AsyncConnection) -> list[Hold]:
    """All holds, oldest first."""
    return [Hold(**row._mapping) for row in await connection.execute(_ALL_HOLDS)]


async def fetch_hold(connection: AsyncConnection, job_id: str) -> Hold | None:
    """The hold on a job's environment. None if there is none."""
    row = (await connection.execute(select(holds).where(holds.c.job_id == job_id))).one_or_none()
    return Hold(**row._mapping) if row else None


async def save_hold(connection: AsyncConnection, hold: Hold) -> None:
    """Begin a hold, or replace the existing one."""
    await upsert(connection, holds, asdict(hold))


async def refuse_hold(connection: AsyncConnection, job_id: str) -> None:
    """End a hold that waits for the job's report, because the report is confidential."""
    await connection.execute(delete(holds).where(holds.c.job_id == job_id, holds.c.waits_for_report))


async def change_hold(connection: AsyncConnection, hold: Hold, **changes: Any) -> None:
    """Change a hold, unless it was replaced or has ended meanwhile."""
    await connection.execute(update(holds).where(*_is(hold)).values(**changes))


async def end_hold(connection: AsyncConnection, hold: Hold) -> bool:
    """End a hold. False if it was replaced or has ended meanwhile."""
    return (await connection.execute(delete(holds).where(*_is(hold)))).rowcount == 1


def _is(hold: Hold) -> tuple[Any, ...]:
    return holds.c.job_id == hold.job_id, holds.c.begun_at == hold.begun_at, holds.c.expires_at == hold.expires_at
