"""Rows of what an operator is to be told: each occasion once. Every function takes the transaction of its caller.

Facts alone: `handlers.notices.notifications` has the words, and `bot.observability.notify` says them.
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

Facts = Mapping[str, Any]
"""What the words are made of, as JSON has it."""


class NotificationKind(StrEnum):
    """What operators are told of."""

    CONCERN = "concern"
    """A report is for them alone."""
    MACHINE = "machine"
    """A machine is out, or back."""
    BASE = "base"
    """A repository's base cannot be made on a machine."""
    CAP = "cap"
    """What may be spent in a day or a month is spent."""
    CAP_NEAR = "cap_near"
    """Most of it is spent."""
    HELD = "held"
    """Labels that were missed are too many to be answered."""
    RECOVERY = "recovery"
    """The service, or GitHub, was away, and what was missed has been made up for."""
    NAMESAKE = "namesake"
    """Another repository has the name of a configured one."""


@dataclass(frozen=True, slots=True)
class Notification:
    """Something that the operator is to be told."""

    key: str
    """Names the occasion, alike for every replica and after every restart."""
    kind: NotificationKind
    about: str
    """The machine, the repository, the issue or the person."""
    facts: Facts
    created_at: datetime
    next_attempt_at: datetime
    attempts: int = 0
    refusals: int = 0
    absences: int = 0
    trouble: str | None = None
    """Why it waits, in words."""
    abandoned: str | None = None
    delivered_at: datetime | None = None


def draft(kind: NotificationKind, about: str, occasion: str, facts: Facts, now: datetime) -> Notification:
    """A notification that is to be told at once. Pure."""
    return Notification(f"{kind} {about} {occasion}"[:500], kind, about, facts, now, now)


def draft_broken_base(machine: str, repository: str, reason: str, now: datetime) -> Notification:
    """That a base cannot be made, which an operator hears at most once a day. Pure."""
    facts = {"machine": machine, "repository": repository, "reason": reason}
    return draft(NotificationKind.BASE, repository, f"{machine} {now:%F}", facts, now)


async def insert_notification(connection: AsyncConnection, notification: Notification) -> bool:
    """Write down what the operator is to be told. False where they are told of the same occasion already."""
    return await insert_new(connection, notifications, asdict(notification))


_WAITING = select(notifications).where(notifications.c.delivered_at.is_(None)).order_by(notifications.c.created_at)


async def fetch_waiting(connection: AsyncConnection) -> list[Notification]:
    """What the operator has not been told yet, oldest first."""
    return [_notification(row._mapping) for row in await connection.execute(_WAITING)]


async def fetch_newest(connection: AsyncConnection, kind: NotificationKind) -> dict[str, Notification]:
    """What was last written down of this kind, by what it is about."""
    of_kind = notifications.c.kind == kind
    newest = select(notifications.c.about, func.max(notifications.c.created_at).label("at")).where(of_kind)
    last = newest.group_by(notifications.c.about).subquery()
    is_last = (notifications.c.about == last.c.about) & (notifications.c.created_at == last.c.at)
    rows = await connection.execute(select(notifications).join(last, is_last).where(of_kind))
    return {row.about: _notification(row._mapping) for row in rows}


async def change_notification(connection: AsyncConnection, notification: Notification, **changes: Any) -> Notification:
    """Change a notification's row and return it as it now is."""
    where = notifications.c.key == notification.key
    await connection.execute(update(notifications).where(where).values(**changes))
    return replace(notification, **changes)


async def drop_notification(connection: AsyncConnection, notification: Notification) -> None:
    """Forget what nobody was told, and is so no more."""
    await connection.execute(delete(notifications).where(notifications.c.key == notification.key))


def _notification(values: Mapping[Any, Any]) -> Notification:
    return Notification(**{**values, "kind": NotificationKind(values["kind"])})
