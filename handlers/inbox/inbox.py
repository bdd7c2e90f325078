"""The durable inbox: a delivery is a committed row before GitHub gets its answer, and is worked afterwards.

Deliveries of one lane (one issue) are worked one after the other in the order in which they came, lanes side by side.
A delivery that keeps failing is set aside with its error and blocks nobody else.

What came before under another id is not worked again: ids are not signed, so only the content tells what a delivery is.

A cancel has a lane beside its issue's, so that nothing slow delays it, and yet keeps its place in the order: what came
after it on its issue waits for it, and as long as something that came before it is not done, its handler may say
`TooEarly` to be called again. So it ends what runs at once, and also what an earlier delivery starts meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from gidgethub import sansio
from gidgethub.routing import Router
from pydantic import ValidationError
from sqlalchemy import bindparam, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.context import Context
from handlers.events import CANCEL_LANE, fits, is_routed
from handlers.inbox.copies import Copies
from handlers.inbox.lane_order import find_due
from handlers.inbox.receiving import MAX_PENDING, Arrival, Receiver
from handlers.ports import GitHubError, GitHubUnavailable
from runner.db.batches import Batches
from runner.db.database import Database
from runner.db.schema import deliveries
from runner.model.back_off import BackOff
from runner.rows.claims import ClaimLost

log = structlog.get_logger()

LANES_AT_ONCE = 8
IDS_AT_ONCE = 500
"""In one query: databases limit their parameters."""

CANCELS_AT_ONCE = 4
"""Lanes for cancels are no part of the others: eight slow issues must not delay one."""

MAX_ATTEMPTS = 3
MAX_ATTEMPTS_IN_OUTAGES = 18
"""With `WAITS`, GitHub or the database may be away for more than an hour."""

WAITS = BackOff(1.0, 600.0)
"""Before a delivery that failed is worked again."""

SUSPECT_DEATHS, MAX_LONE_DEATHS = 2, 3
"""The service dies, or loses its claim, while it works a delivery. After this many deaths it works the delivery alone:
another one in hand may have been the cause. After this many more it sets the delivery aside: no other was in hand."""

POSTPONED = BackOff(0.5, 30.0)
"""How long a delivery that came too early waits before it is worked again."""


_FIELDS = ("sequence", "id", "event", "lane", "body", "digest", "attempts", "begun", "received_at")
_TAKEN = (
    select(*(deliveries.c[name] for name in _FIELDS))
    .where(deliveries.c.sequence.in_(bindparam("sequences", expanding=True)))
    .order_by(deliveries.c.sequence)
)


class TooEarly(Exception):  # noqa: N818 - what is the case
    """Raised by a handler whose delivery has to be worked again, after those that came before it on its issue."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What GitHub sent."""

    sequence: int
    id: str
    event: str
    lane: str
    body: bytes
    digest: str | None
    """The same for copies under other ids; None for a delivery from before an upgrade."""
    attempts: int
    begun: int
    """How often its work was begun, and nobody has seen the end of it."""
    received_at: datetime

    @property
    def case(self) -> str:
        """The issue that it is about."""
        return self.lane.removesuffix(CANCEL_LANE)


class Inbox:
    """Takes deliveries in, and works them through the router."""

    def __init__(
        self,
        db: Database,
        router: Router,
        now: Callable[[], datetime],
        ring: Callable[[], None] = lambda: None,
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._db = db
        self._router = router
        self._now = now
        self._ring = ring
        self._receiver = Receiver(db, now, max_pending)
        self._copies = Copies(db, self._receiver.receive)
        self._records = Batches(self._write_down, LANES_AT_ONCE + CANCELS_AT_ONCE)
        self._busy: dict[str, tuple[int, asyncio.Task[None]]] = {}
        """The lanes in which a delivery is being worked, with its sequence."""
        self._alone = ""
        """The lane of a delivery that is to be worked while no other is; empty when there is none."""
        self._last_before = 0
        """The newest delivery that was there before us."""

    async def begin(self) -> None:
        """Take notice of what is there already: any of it may have ended the service that worked it."""
        async with self._db.read() as connection:
            newest = await connection.execute(select(func.max(deliveries.c.sequence)))
            self._last_before = newest.scalar_one() or 0

    async def receive(self, delivery_id: str, event: str, lane: str, body: bytes) -> bool:
        """Commit a delivery; False when it is here already. Only after this may GitHub be answered.

        Raises `handlers.inbox.receiving.NotStored`.
        """
        return await self._receiver.receive(Arrival(delivery_id, event, lane, body))

    async def receive_once(self, delivery_id: str, event: str, lane: str, body: bytes) -> bool:
        """As `receive`, for what anyone may send again under another id: False also where its content is here."""
        return await self._copies.receive(Arrival(delivery_id, event, lane, body))

    def wants(self, event: str, payload: Mapping[str, Any]) -> bool:
        """Whether a handler works such a delivery. No other delivery is stored."""
        return is_routed(self._router, event, payload.get("action")) and fits(event, payload)

    async def holds(self, delivery_id: str, event: str, body: bytes) -> bool:
        """Whether this delivery is here with this content. An id alone says nothing, for no signature covers it."""
        arrival = Arrival(delivery_id, event, "", body)
        query = select(deliveries.c.digest).where(deliveries.c.id.in_((delivery_id, arrival.other_id)))
        async with self._db.read() as connection:
            digests = (await connection.execute(query)).scalars()
            return any(digest in (None, arrival.digest) for digest in digests)

    @property
    def calm_in_s(self) -> float:
        """For how many seconds more whatever can wait should: deliveries come in a crowd."""
        return self._receiver.calm_in_s()

    async def step(self, context: Context) -> None:
        """Begin work on the first delivery of every free lane, and in a crowd on cancels alone."""
        await self._begin(context, CANCELS_AT_ONCE, cancels=True)
        if calm_in_s := self.calm_in_s:
            await asyncio.sleep(calm_in_s)
            self._ring()
        else:
            await self._begin(context, LANES_AT_ONCE, cancels=False)

    async def _begin(self, context: Context, at_once: int, *, cancels: bool) -> None:
        free = at_once - sum(lane.endswith(CANCEL_LANE) is cancels for lane in self._busy)
        for delivery in await self._take(free, cancels=cancels):
            task = asyncio.ensure_future(self._work(delivery, context))
            self._busy[delivery.lane] = delivery.sequence, task
            task.add_done_callback(partial(self._leave, delivery.lane))

    async def stop(self) -> None:
        """Finish what is in hand."""
        await asyncio.gather(*(task for _, task in self._busy.values()), return_exceptions=True)

    async def abandon(self) -> None:
        """Let go of what is in hand: it stays pending, and is worked again."""
        for _, task in self._busy.values():
            task.cancel()
        await self._records.cancel()
        await self.stop()

    def _leave(self, lane: str, task: asyncio.Task[None]) -> None:
        del self._busy[lane]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ClaimLost):
            # Nobody is rung: whoever has the claim by now looks anyway, and so do we at the next sweep.
            log.warning("delivery.passed_on", lane=lane, reason=str(error))
            return
        if error:
            log.error("delivery.not_recorded", lane=lane, error=repr(error))
        self._ring()

    async def _take(self, limit: int, *, cancels: bool) -> list[Delivery]:
        """The oldest pending delivery of each lane that nobody works on, if its time has come.

        One amid which the service has died more than once is worked alone: no other is to be blamed for its next death.
        """
        if limit <= 0 or self._alone in self._busy:
            return []
        busy = {lane: sequence for lane, (sequence, _) in self._busy.items()}
        async with self._db.read() as connection:
            due = await find_due(connection, busy, self._now(), cancels=cancels, most=limit)
            if not due:
                return []
            rows = await connection.execute(_TAKEN, {"sequences": due})
            taken = [Delivery(**row._mapping) for row in rows]
        suspects = [delivery for delivery in taken if delivery.begun >= SUSPECT_DEATHS]
        self._alone = suspects[0].lane if suspects else ""
        if suspects:
            return [] if self._busy else suspects[:1]
        return taken

    async def _work(self, delivery: Delivery, context: Context) -> None:
        with structlog.contextvars.bound_contextvars(delivery=delivery.id, event_name=delivery.event):
            try:
                if await self._is_deadly(delivery):
                    return
                if original := await self._find_original(delivery):
                    log.warning("delivery.copied", original=original)
                else:
                    await self._dispatch(delivery, context)
            except TooEarly:
                await self._postpone(delivery)
            except (GitHubUnavailable, GitHubError) as error:
                # A refusal may end as well: a suspended App, an organisation that asks for a new consent.
                asked_s = error.retry_after_s if isinstance(error, GitHubUnavailable) else 0.0
                wait_s = WAITS.after(delivery.attempts + 1, asked_s=asked_s)
                log.warning("delivery.waits_for_github", reason=str(error), wait_s=wait_s)
                await self._retry(delivery, str(error), wait_s, MAX_ATTEMPTS_IN_OUTAGES)
            except ValidationError as error:
                # The same bytes will never parse better; field names say enough, values may be secret.
                fields = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors(include_input=False))
                log.error("delivery.malformed", fields=fields)
                await self._retry(delivery, f"the payload lacks or garbles: {fields}", 0, 0)
            except ClaimLost:
                raise  # No fault of the delivery: it was no attempt.
            except Exception as error:
                log.exception("delivery.failed", attempt=delivery.attempts + 1)
                # An outage of the database is no more a fault of the delivery than one of GitHub.
                attempts = MAX_ATTEMPTS_IN_OUTAGES if self._db.is_transient(error) else MAX_ATTEMPTS
                await self._retry(delivery, repr(error), WAITS.after(delivery.attempts + 1), attempts)
            else:
                await self._record(delivery, state="done", finished_at=self._now())

    async def _is_deadly(self, delivery: Delivery) -> bool:
        """Set a delivery aside if the service keeps dying while it works this one alone; count that its work begins.

        `_take` sees to it that a delivery is alone from its third death on, so one number tells both counts.
        """
        if delivery.begun >= SUSPECT_DEATHS + MAX_LONE_DEATHS:
            reason = f"the service ended {MAX_LONE_DEATHS} times while this was the only delivery being worked"
            log.error("delivery.set_aside", reason=reason, attempts=delivery.attempts)
            await self._record(delivery, state="failed", finished_at=self._now(), error=reason)
            return True
        if delivery.sequence <= self._last_before:  # What came later has not ended us, and needs no other commit.
            await self._record(delivery, begun=delivery.begun + 1)
        return False

    async def _find_original(self, delivery: Delivery) -> str | None:
        """The id under which the same event came before. GitHub signs no ids, so anyone who has read a delivery can
        send it again under a new one."""
        if delivery.digest is None:
            return None
        before = select(deliveries.c.id).where(
            deliveries.c.digest == delivery.digest, deliveries.c.sequence < delivery.sequence
        )
        async with self._db.read() as connection:
            return (await connection.execute(before.limit(1))).scalar_one_or_none()

    async def _dispatch(self, delivery: Delivery, context: Context) -> None:
        payload = json.loads(delivery.body)
        names = {"repository": delivery.case.rpartition("#")[0], "case": delivery.case}
        ids = {"installation": (payload.get("installation") or {}).get("id"), **names}
        with structlog.contextvars.bound_contextvars(**ids):
            event = sansio.Event(payload, event=delivery.event, delivery_id=delivery.id)
            await self._router.dispatch(event, context)

    async def _postpone(self, delivery: Delivery) -> None:
        """Work it again soon: the less soon, the longer it waits already."""
        waited_s = (self._now() - delivery.received_at).total_seconds()
        wait_s = POSTPONED.since(waited_s / 8)
        await self._record(delivery, next_attempt_at=self._now() + timedelta(seconds=wait_s))
        asyncio.get_running_loop().call_later(wait_s, self._ring)

    async def _retry(self, delivery: Delivery, error: str, wait_s: float, attempts: int) -> None:
        """Try again after `wait_s` seconds, or set the delivery aside after that many attempts."""
        if delivery.attempts + 1 >= attempts:
            log.error("delivery.set_aside", reason=error, attempts=delivery.attempts + 1)
            counted = {"attempts": delivery.attempts + 1, "error": error}
            await self._record(delivery, state="failed", finished_at=self._now(), **counted)
        else:
            at = self._now() + timedelta(seconds=wait_s)
            await self._record(delivery, attempts=delivery.attempts + 1, error=error, next_attempt_at=at)

    async def _record(self, delivery: Delivery, **changes: Any) -> None:
        """Write down how it stands: that its work has come to an end, unless that it begins."""
        await self._records.add((delivery, {"begun": 0, **changes}))

    async def _write_down(self, records: Sequence[tuple[Delivery, dict[str, Any]]]) -> Sequence[None]:
        async with self._db.write() as connection:
            for delivery, changes in records:
                this = deliveries.c.sequence == delivery.sequence
                await connection.execute(update(deliveries).where(this).values(**changes))
        return [None] * len(records)


async def has_earlier(connection: AsyncConnection, delivery_id: str) -> bool:
    """Whether something that came before this delivery, on the same issue, is still to be worked."""
    query = select(deliveries.c.sequence, deliveries.c.lane).where(deliveries.c.id == delivery_id)
    this = (await connection.execute(query)).one_or_none()
    if this is None:
        return False
    lane = this.lane.removesuffix(CANCEL_LANE)
    earlier = select(deliveries.c.id).where(
        deliveries.c.state == "pending", deliveries.c.sequence < this.sequence, deliveries.c.lane == lane
    )
    return (await connection.execute(earlier.limit(1))).one_or_none() is not None


async def count_deliveries(db: Database, states: Collection[str]) -> dict[str, int]:
    """How many deliveries are in each of these states."""
    query = select(deliveries.c.state, func.count()).where(deliveries.c.state.in_(states)).group_by(deliveries.c.state)
    async with db.read() as connection:
        counted = {row[0]: row[1] for row in await connection.execute(query)}
    return {state: counted.get(state, 0) for state in states}


async def fetch_known(db: Database, delivery_ids: Collection[str]) -> dict[str, datetime]:
    """Which of these deliveries have been received, whatever came of them, and when."""
    ids, known = list(delivery_ids), dict[str, datetime]()
    async with db.read() as connection:
        for start in range(0, len(ids), IDS_AT_ONCE):
            some = deliveries.c.id.in_(ids[start : start + IDS_AT_ONCE])
            rows = await connection.execute(select(deliveries.c.id, deliveries.c.received_at).where(some))
            known |= {row.id: row.received_at for row in rows}
    return known


async def fetch_doubtful(db: Database, events: Mapping[str, str]) -> set[str]:
    """Of deliveries that have been received, those whose ids somebody else may have used first.

    `events` has the true event of each id. Such an id holds another event, or a content that is here twice.
    """
    ids, doubtful, other = list(events), set[str](), deliveries.alias()
    is_twice = exists().where(other.c.digest == deliveries.c.digest, other.c.sequence != deliveries.c.sequence)
    async with db.read() as connection:
        for start in range(0, len(ids), IDS_AT_ONCE):
            some = deliveries.c.id.in_(ids[start : start + IDS_AT_ONCE])
            rows = await connection.execute(select(deliveries.c.id, deliveries.c.event, is_twice).where(some))
            doubtful |= {row[0] for row in rows if row[2] or row[1] != events[row[0]]}
    return doubtful


async def is_waiting(db: Database, lane: str) -> bool:
    """Whether a delivery of this lane is still to be worked."""
    query = select(func.count()).where(deliveries.c.lane == lane, deliveries.c.state == "pending")
    async with db.read() as connection:
        return (await connection.execute(query)).scalar_one() > 0
