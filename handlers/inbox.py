"""The durable inbox: a delivery is a committed row before GitHub gets its answer, and is worked afterwards.

Deliveries of one lane (one issue) are worked one after the other in the order in which they came, lanes side by side.
A delivery that keeps failing is set aside with its error and blocks nobody else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from gidgethub import sansio
from gidgethub.routing import Router
from pydantic import ValidationError
from sqlalchemy import func, select, update

from handlers.context import Context
from handlers.ports import GitHubError, GitHubUnavailable
from runner.claims import ClaimLost
from runner.db import Database
from runner.schema import deliveries
from runner.sql import insert_new

log = structlog.get_logger()

LANES_AT_ONCE = 8
IDS_AT_ONCE = 500
"""In one query: databases limit their parameters."""

MAX_ATTEMPTS = 3
MAX_ATTEMPTS_WITHOUT_GITHUB = 18
"""With the back-off below, GitHub may be away for more than an hour."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What GitHub sent."""

    id: str
    event: str
    lane: str
    body: bytes
    attempts: int


class Inbox:
    """Takes deliveries in, and works them through the router."""

    def __init__(self, db: Database, router: Router, now: Callable[[], datetime]) -> None:
        self._db = db
        self._router = router
        self._now = now
        self._busy: dict[str, asyncio.Task[None]] = {}

    async def receive(self, delivery_id: str, event: str, lane: str, body: bytes) -> bool:
        """Commit a delivery; False when it is here already. Only after this may GitHub be answered."""
        now = self._now()
        values = {"id": delivery_id, "event": event, "lane": lane, "body": body, "received_at": now}
        row = {**values, "state": "pending", "attempts": 0, "next_attempt_at": now}
        async with self._db.write() as connection:
            return await insert_new(connection, deliveries, row)

    async def step(self, context: Context) -> None:
        """Begin work on the first delivery of every free lane."""
        for delivery in await self._take(LANES_AT_ONCE - len(self._busy)):
            task = asyncio.ensure_future(self._work(delivery, context))
            self._busy[delivery.lane] = task
            task.add_done_callback(partial(self._leave, delivery.lane, context.ring))

    async def stop(self) -> None:
        """Finish what is in hand."""
        await asyncio.gather(*self._busy.values(), return_exceptions=True)

    def _leave(self, lane: str, ring: Callable[[], None], task: asyncio.Task[None]) -> None:
        del self._busy[lane]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ClaimLost):
            # Nobody is rung: whoever has the claim by now looks anyway, and so do we at the next sweep.
            log.warning("delivery.passed_on", lane=lane, reason=str(error))
            return
        if error:
            log.error("delivery.not_recorded", lane=lane, error=repr(error))
        ring()

    async def _take(self, limit: int) -> list[Delivery]:
        """The oldest pending delivery of each lane that nobody works on, if its time has come."""
        if limit <= 0:
            return []
        first = (
            select(func.min(deliveries.c.sequence))
            .where(deliveries.c.state == "pending", deliveries.c.lane.not_in(self._busy))
            .group_by(deliveries.c.lane)
        )
        due = (deliveries.c.sequence.in_(first), deliveries.c.next_attempt_at <= self._now())
        query = select(deliveries).where(*due).order_by(deliveries.c.sequence).limit(limit)
        async with self._db.read() as connection:
            rows = (await connection.execute(query)).all()
        return [Delivery(row.id, row.event, row.lane, row.body, row.attempts) for row in rows]

    async def _work(self, delivery: Delivery, context: Context) -> None:
        with structlog.contextvars.bound_contextvars(delivery=delivery.id, event_name=delivery.event):
            try:
                await self._dispatch(delivery, context)
            except (GitHubUnavailable, GitHubError) as error:
                # A refusal may end as well: a suspended App, an organisation that asks for a new consent.
                asked_s = error.retry_after_s if isinstance(error, GitHubUnavailable) else 0.0
                wait_s = max(asked_s, min(2.0**delivery.attempts, 600.0))
                log.warning("delivery.waits_for_github", reason=str(error), wait_s=wait_s)
                await self._retry(delivery, str(error), wait_s, MAX_ATTEMPTS_WITHOUT_GITHUB)
            except ValidationError as error:
                # The same bytes will never parse better; field names say enough, values may be secret.
                fields = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors(include_input=False))
                log.error("delivery.malformed", fields=fields)
                await self._retry(delivery, f"the payload lacks or garbles: {fields}", 0, 0)
            except ClaimLost:
                raise  # No fault of the delivery: it was no attempt.
            except Exception as error:
                log.exception("delivery.failed", attempt=delivery.attempts + 1)
                await self._retry(delivery, repr(error), 2.0**delivery.attempts, MAX_ATTEMPTS)
            else:
                await self._record(delivery, state="done", finished_at=self._now())

    async def _dispatch(self, delivery: Delivery, context: Context) -> None:
        payload = json.loads(delivery.body)
        names = {"repository": delivery.lane.rpartition("#")[0], "case": delivery.lane}
        ids = {"installation": (payload.get("installation") or {}).get("id"), **names}
        with structlog.contextvars.bound_contextvars(**ids):
            event = sansio.Event(payload, event=delivery.event, delivery_id=delivery.id)
            await self._router.dispatch(event, context)

    async def _retry(self, delivery: Delivery, error: str, wait_s: float, attempts: int) -> None:
        """Try again after `wait_s` seconds, or set the delivery aside after that many attempts."""
        if delivery.attempts + 1 >= attempts:
            log.error("delivery.set_aside", reason=error, attempts=delivery.attempts + 1)
            await self._record(delivery, state="failed", error=error, finished_at=self._now())
        else:
            at = self._now() + timedelta(seconds=wait_s)
            await self._record(delivery, attempts=delivery.attempts + 1, error=error, next_attempt_at=at)

    async def _record(self, delivery: Delivery, **changes: Any) -> None:
        async with self._db.write() as connection:
            await connection.execute(update(deliveries).where(deliveries.c.id == delivery.id).values(**changes))


async def count_deliveries(db: Database, states: Collection[str]) -> dict[str, int]:
    """How many deliveries are in each of these states."""
    query = select(deliveries.c.state, func.count()).where(deliveries.c.state.in_(states)).group_by(deliveries.c.state)
    async with db.read() as connection:
        counted = {row[0]: row[1] for row in await connection.execute(query)}
    return {state: counted.get(state, 0) for state in states}


async def fetch_known(db: Database, delivery_ids: Collection[str]) -> set[str]:
    """Which of these deliveries have been received, whatever came of them."""
    ids, known = list(delivery_ids), set[str]()
    async with db.read() as connection:
        for start in range(0, len(ids), IDS_AT_ONCE):
            query = select(deliveries.c.id).where(deliveries.c.id.in_(ids[start : start + IDS_AT_ONCE]))
            known.update((await connection.execute(query)).scalars())
    return known


async def is_waiting(db: Database, lane: str) -> bool:
    """Whether a delivery of this lane is still to be worked."""
    query = select(func.count()).where(deliveries.c.lane == lane, deliveries.c.state == "pending")
    async with db.read() as connection:
        return (await connection.execute(query)).scalar_one() > 0
