"""Rows with the last time that the service was alive, and the time since which each repository is configured.

Replicas share them. A stored time never goes back, so the newest time of all replicas counts. Every function takes its
caller's transaction.
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
"""When a replica last ran."""

LOOKED = "looked"
"""Deliveries before this time were compared with GitHub's record."""


@dataclass(frozen=True, slots=True)
class Enabled:
    """Since when labels of a repository count, and when missed labels were last searched for."""

    enabled_at: datetime
    looked_at: datetime


async def beat(connection: AsyncConnection, name: str, at: datetime) -> None:
    """Store a time, unless a later one is stored."""
    await insert_new(connection, heartbeats, {"name": name, "at": at})
    earlier = (heartbeats.c.name == name, heartbeats.c.at < at)
    await connection.execute(update(heartbeats).where(*earlier).values(at=at))


async def fetch_beat(connection: AsyncConnection, name: str) -> datetime | None:
    """The stored time. None if there is none."""
    query = select(heartbeats.c.at).where(heartbeats.c.name == name)
    return (await connection.execute(query)).scalar_one_or_none()


async def enable_repositories(connection: AsyncConnection, configured: Collection[str], now: datetime) -> None:
    """Store that labels of these repositories count from now on. Repositories that are stored already keep their time.

    The stored time is the start of this second, because GitHub's times are whole seconds. Repositories that are not
    configured any more are deleted, so that they can begin again.
    """
    now = now.replace(microsecond=0)
    keys = [name.lower() for name in configured]
    await connection.execute(delete(enabled_repositories).where(enabled_repositories.c.name.not_in(keys)))
    for key in keys:
        await insert_new(connection, enabled_repositories, {"name": key, "enabled_at": now, "looked_at": now})


async def fetch_enabled(connection: AsyncConnection) -> Mapping[str, Enabled]:
    """The stored repositories, by name in lower case."""
    rows = await connection.execute(select(enabled_repositories))
    return {row.name: Enabled(row.enabled_at, row.looked_at) for row in rows}


async def note_look(connection: AsyncConnection, name: str, at: datetime) -> None:
    """Record that all labels added in this repository before `at` are handled."""
    earlier = (enabled_repositories.c.name == name.lower(), enabled_repositories.c.looked_at < at)
    await connection.execute(update(enabled_repositories).where(*earlier).values(looked_at=at))
