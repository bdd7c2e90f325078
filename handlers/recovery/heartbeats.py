"""Until when the service was alive, and since when it answers for each repository: rows that replicas share.

No time in them goes back, so the newest of all replicas counts. A transaction is always the one that the caller opened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import enabled_repositories, heartbeats
from runner.db.sql import insert_new

ALIVE = "alive"
"""When some replica last ran."""

LOOKED = "looked"
"""Every delivery before this was looked for in GitHub's record."""


@dataclass(frozen=True, slots=True)
class Enabled:
    """Since when labels of a repository count, and when it was last looked for those that nobody told us of."""

    enabled_at: datetime
    looked_at: datetime


async def beat(connection: AsyncConnection, name: str, at: datetime) -> None:
    """Note a time, unless a later one stands there."""
    await insert_new(connection, heartbeats, {"name": name, "at": at})
    earlier = (heartbeats.c.name == name, heartbeats.c.at < at)
    await connection.execute(update(heartbeats).where(*earlier).values(at=at))


async def fetch_beat(connection: AsyncConnection, name: str) -> datetime | None:
    """The latest time that was noted; None when there was none."""
    query = select(heartbeats.c.at).where(heartbeats.c.name == name)
    return (await connection.execute(query)).scalar_one_or_none()


async def enable_repositories(connection: AsyncConnection, names: Collection[str], now: datetime) -> None:
    """Let the repositories that were not configured before begin now; one that no longer is may begin again later.

    GitHub's times are whole seconds: what happens later in this second is told as having happened at its start.
    """
    now = now.replace(microsecond=0)
    keys = [name.lower() for name in names]
    await connection.execute(delete(enabled_repositories).where(enabled_repositories.c.name.not_in(keys)))
    for key in keys:
        row = {"name": key, "enabled_at": now, "looked_at": now}
        await insert_new(connection, enabled_repositories, row)


async def fetch_enabled(connection: AsyncConnection) -> Mapping[str, Enabled]:
    """Every repository that counts, by its name in lower case."""
    rows = await connection.execute(select(enabled_repositories))
    return {row.name: Enabled(row.enabled_at, row.looked_at) for row in rows}


async def note_look(connection: AsyncConnection, name: str, at: datetime) -> None:
    """Every label that was put on in this repository before `at` has been seen to."""
    earlier = (enabled_repositories.c.name == name.lower(), enabled_repositories.c.looked_at < at)
    await connection.execute(update(enabled_repositories).where(*earlier).values(looked_at=at))
