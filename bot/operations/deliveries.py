"""What the operator sees of deliveries, and sets to work again, on the service's own machine and beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.settings import Settings
from bot.operations.context import find_operator
from bot.operations.reports import render_table
from handlers.commands.rights import Operation, Person
from handlers.events import CANCEL_LANE
from handlers.text.sanitize import redact
from runner.characters import show_for_terminal
from runner.db.database import open_existing_database
from runner.db.schema import deliveries

LISTED = 100
"""Deliveries that are listed, the newest."""

SHOWN_ERROR = 200
"""Characters of an error that are listed."""


class NotReplayed(Exception):  # noqa: N818 - what is the case
    """The delivery stays as it is; the message says why."""


@dataclass(frozen=True, slots=True)
class ListedDelivery:
    """A delivery as the operator sees it; never its body, which holds private data."""

    id: str
    event: str
    lane: str
    state: str
    attempts: int
    received_at: datetime
    error: str


async def read_deliveries(settings: Settings, *, failed: bool) -> str:
    """The newest deliveries as a table, or of these the failed ones. Raises `DatabaseError`."""
    async with open_existing_database(settings.server.database_url) as database, database.read() as connection:
        rows = await fetch_deliveries(connection, failed=failed)
    return redact(render_deliveries(rows), settings.secret_values(), shapes=())


async def fetch_deliveries(connection: AsyncConnection, *, failed: bool) -> list[ListedDelivery]:
    """The newest deliveries, newest first; with `failed`, those of them that were set aside."""
    columns = [deliveries.c[name] for name in ListedDelivery.__dataclass_fields__]
    query = select(*columns).order_by(deliveries.c.sequence.desc()).limit(LISTED)
    found = await connection.execute(query.where(deliveries.c.state == "failed") if failed else query)
    return [ListedDelivery(**{**row._mapping, "error": row.error or ""}) for row in found]


def render_deliveries(rows: Sequence[ListedDelivery]) -> str:
    """Deliveries as a table for a terminal, oldest first. Pure."""
    if not rows:
        return "There are none.\n"
    head = ("delivery", "received (UTC)", "state", "tries", "event", "about", "error")
    return render_table([head, *(_cells(row) for row in reversed(rows))])


def _cells(row: ListedDelivery) -> tuple[str, ...]:
    error = show_for_terminal(row.error.replace("\n", " "))[:SHOWN_ERROR]
    about = show_for_terminal(row.lane.removesuffix(CANCEL_LANE))
    return row.id, f"{row.received_at:%Y-%m-%d %H:%M:%S}", row.state, str(row.attempts), row.event, about, error


async def replay_delivery(settings: Settings, delivery_id: str, *, force: bool) -> str:
    """Let a delivery be worked again. What to tell the operator. Raises `NotReplayed` and `DatabaseError`."""
    async with open_existing_database(settings.server.database_url) as database, database.write() as connection:
        await replay(connection, find_operator(), delivery_id, force=force)
    return f"Delivery {delivery_id} will be worked again within seconds, where a service is running.\n"


async def replay(connection: AsyncConnection, person: Person, delivery_id: str, *, force: bool) -> None:
    """Put a delivery among those that wait. Raises `NotPermitted` and `NotReplayed`."""
    person.require(Operation.REPLAY)
    query = select(deliveries.c.state, deliveries.c.lane).where(deliveries.c.id == delivery_id)
    found = (await connection.execute(query)).one_or_none()
    if refusal := find_refusal(found and found.state, found and found.lane, force=force):
        raise NotReplayed(f"delivery {show_for_terminal(delivery_id)} {refusal}")
    again = {"state": "pending", "attempts": 0, "error": None, "finished_at": None}
    statement = update(deliveries).where(deliveries.c.id == delivery_id)
    await connection.execute(statement.values(**again, next_attempt_at=deliveries.c.received_at))


def find_refusal(state: str | None, lane: str | None, *, force: bool) -> str | None:
    """Why a delivery is not replayed, as the end of a sentence; None when it may be. Pure.

    What makes a job or a reply is harmless a second time, for their ids come from what asked for them. A cancel is not:
    it ends whatever runs now.
    """
    if state is None or lane is None:
        return "is not here: it never came, or is older than [retention] deliveries_days"
    if state == "pending":
        return "waits to be worked already"
    if lane.endswith(CANCEL_LANE):
        return "asks to cancel: it might end a job that came later, so comment /ptq cancel again instead"
    if state == "done" and not force:
        return "was worked already; --force works it again, which does nothing twice"
    return None
