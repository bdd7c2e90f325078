"""Lists webhook deliveries, and replays one, for operators at a terminal or on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.settings import Settings
from bot.operations.context import find_operator, read_database, write_database
from bot.operations.reports import render_json, render_table
from handlers.commands.rights import Operation, Person
from handlers.events import CANCEL_LANE
from handlers.text.sanitize import redact
from runner.characters import show_for_terminal
from runner.db.schema import deliveries

LISTED = 100
"""The most deliveries in a list."""

SHOWN_ERROR = 200
"""The most characters of an error in a list."""


class NotReplayed(Exception):  # noqa: N818
    """The delivery is not changed; the message says why."""


@dataclass(frozen=True, slots=True)
class ListedDelivery:
    """A delivery without its body, which contains private data."""

    id: str
    event: str
    lane: str
    state: str
    attempts: int
    received_at: datetime
    error: str


async def read_deliveries(settings: Settings, *, failed: bool, as_json: bool = False) -> str:
    """The newest deliveries, or the newest failed ones, as a table or as JSON. Raises `DatabaseError`."""
    async with read_database(settings) as connection:
        rows = await fetch_deliveries(connection, failed=failed)
    if as_json:
        return render_json(rows, settings.secret_values())
    return redact(render_deliveries(rows), settings.secret_values(), shapes=())


async def fetch_deliveries(connection: AsyncConnection, *, failed: bool) -> list[ListedDelivery]:
    """The newest deliveries, or the newest failed ones, newest first."""
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
    """Replay a delivery. Returns the text for the operator. Raises `NotReplayed` and `DatabaseError`."""
    async with write_database(settings) as connection:
        await replay(connection, find_operator(), delivery_id, force=force)
    return f"Delivery {delivery_id} will be worked again within seconds, where a service is running.\n"


async def replay(connection: AsyncConnection, person: Person, delivery_id: str, *, force: bool) -> None:
    """Put a delivery back in the queue. Raises `NotPermitted` and `NotReplayed`."""
    person.require(Operation.REPLAY)
    query = select(deliveries.c.state, deliveries.c.lane, deliveries.c.body).where(deliveries.c.id == delivery_id)
    found = (await connection.execute(query)).one_or_none()
    has_body = bool(found and found.body)
    if refusal := find_refusal(found and found.state, found and found.lane, has_body=has_body, force=force):
        raise NotReplayed(f"delivery {show_for_terminal(delivery_id)} {refusal}")
    again = {"state": "pending", "attempts": 0, "error": None, "finished_at": None}
    statement = update(deliveries).where(deliveries.c.id == delivery_id)
    await connection.execute(statement.values(**again, next_attempt_at=deliveries.c.received_at))


def find_refusal(state: str | None, lane: str | None, *, has_body: bool = True, force: bool) -> str | None:
    """Why a delivery cannot be replayed, as the end of a sentence; None if it can. Pure.

    A replay creates no second job or reply, because their ids are derived from the request. A cancel cannot be
    replayed, because it could end a later job.
    """
    if state is None or lane is None:
        return "is not here: it never came, or is older than [retention] deliveries_days"
    if state == "pending":
        return "waits to be worked already"
    if lane.endswith(CANCEL_LANE):
        return "asks to cancel: it might end a job that came later, so comment /ptq cancel again instead"
    if state == "done" and not force:
        return "was worked already; --force works it again, which does nothing twice"
    if not has_body:
        return "was worked already, and its body is gone: the oldest are deleted if all of them need too much space"
    return None
