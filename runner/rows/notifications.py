"""Rows of the operator's notifications, one for each occasion. Every function takes its caller's transaction.

The rows contain only facts. `handlers.notices.notifications` makes sentences of them, and `bot.observability.notify`
sends these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import notifications
from runner.db.sql import insert_new
from runner.rows.effect_rows import EffectRow

Facts = Mapping[str, Any]
"""The facts of a notification, as JSON values."""


class NotificationKind(StrEnum):
    """What a notification is about."""

    CONCERN = "concern"
    """A report is confidential, so only the operator may see it."""
    MACHINE = "machine"
    """A machine is out of service, or back."""
    BASE = "base"
    """A repository's base cannot be built on a machine."""
    CAP = "cap"
    """A cap for a day or a month is used up."""
    CAP_NEAR = "cap_near"
    """Such a cap is nearly used up."""
    HELD = "held"
    """So many labels were missed that none of them has started a job."""
    RECOVERY = "recovery"
    """The service was down, or it found events that it had missed."""
    NAMESAKE = "namesake"
    """Another repository has the name of a configured one."""


@dataclass(frozen=True, slots=True)
class Notification(EffectRow):
    """A message to the operator."""

    key: str
    """The name of the occasion. It is the same in every replica and after every restart."""
    kind: NotificationKind
    about: str
    """The machine, the repository, the issue or the person."""
    facts: Facts
    created_at: datetime
    delivered_at: datetime | None = None


def draft(kind: NotificationKind, about: str, occasion: str, facts: Facts, now: datetime) -> Notification:
    """A notification that is due now. Pure."""
    return Notification(f"{kind} {about} {occasion}"[:500], kind, about, facts, now, next_attempt_at=now)


def draft_broken_base(machine: str, repository: str, reason: str, now: datetime) -> Notification:
    """The notification that a base cannot be built, at most once a day for each machine and repository. Pure."""
    facts = {"machine": machine, "repository": repository, "reason": reason}
    return draft(NotificationKind.BASE, repository, f"{machine} {now:%F}", facts, now)


async def insert_notification(connection: AsyncConnection, notification: Notification) -> bool:
    """Store a notification. False if there is one for the same occasion already."""
    return await insert_new(connection, notifications, asdict(notification))


_WAITING = select(notifications).where(notifications.c.delivered_at.is_(None)).order_by(notifications.c.created_at)


async def fetch_waiting(connection: AsyncConnection) -> list[Notification]:
    """The notifications that have not been sent, oldest first."""
    return [_notification(row._mapping) for row in await connection.execute(_WAITING)]


async def fetch_newest(connection: AsyncConnection, kind: NotificationKind) -> dict[str, Notification]:
    """The newest notification of this kind about each machine, repository, issue or person, by its `about`."""
    of_kind = notifications.c.kind == kind
    newest = select(notifications.c.about, func.max(notifications.c.created_at).label("at")).where(of_kind)
    last = newest.group_by(notifications.c.about).subquery()
    is_last = (notifications.c.about == last.c.about) & (notifications.c.created_at == last.c.at)
    rows = await connection.execute(select(notifications).join(last, is_last).where(of_kind))
    return {row.about: _notification(row._mapping) for row in rows}


async def change_notification(connection: AsyncConnection, notification: Notification, **changes: Any) -> Notification:
    """Change a notification's row, and return the changed notification."""
    where = notifications.c.key == notification.key
    await connection.execute(update(notifications).where(where).values(**changes))
    return replace(notification, **changes)


async def drop_notification(connection: AsyncConnection, notification: Notification) -> None:
    """Delete a notification. Callers use it if an unsent one is no longer true."""
    await connection.execute(delete(notifications).where(notifications.c.key == notification.key))


def _notification(values: Mapping[Any, Any]) -> Notification:
    return Notification(**{**values, "kind": NotificationKind(values["kind"])})
