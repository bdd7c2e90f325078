"""The durable inbox: a delivery is committed before GitHub gets its answer, and processed afterwards.

Deliveries of one lane (one issue) are processed one after the other in the order of arrival; lanes are independent. A
delivery that keeps failing is set aside with its error, and does not block others.

Ids are not signed, so only the content identifies a delivery. If the same content came before under another id, it is
not processed again.

A cancel has a separate lane, so that nothing slow delays it. It still keeps its place in the order. Later deliveries of
its issue wait for it. If earlier deliveries are not done yet, the cancel's handler may raise `TooEarly`, and is called
again later. So a cancel ends a running job at once, and also a job that an earlier delivery starts in the meantime.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from gidgethub import sansio
from gidgethub.routing import Router
from pydantic import ValidationError
from sqlalchemy import bindparam, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases.private_repositories import restrict_jobs
from handlers.context import Context
from handlers.events import CANCEL_LANE, find_private_repository, fits, is_routed
from handlers.inbox.copies import Copies
from handlers.inbox.lane_order import find_due
from handlers.inbox.namesakes import Namesake, refuse_namesake
from handlers.inbox.receiving import CONTENT, MAX_PENDING, Arrival, Receiver, find_digest, find_other_id, read_digest
from handlers.ports import GitHubError, GitHubUnavailable
from runner.db.batches import Batches
from runner.db.database import Database
from runner.db.schema import deliveries
from runner.model.back_off import BackOff
from runner.rows.claims import ClaimLost

log = structlog.get_logger()

LANES_AT_ONCE = 8
IDS_AT_ONCE = 500
"""The most ids in one query, because databases limit parameters."""

CANCELS_AT_ONCE = 4
"""The most lanes for cancels. They do not count as part of `LANES_AT_ONCE`, so slow issues cannot delay a cancel."""

MAX_ATTEMPTS = 3
MAX_ATTEMPTS_IN_OUTAGES = 18
"""With `WAITS`, this bridges an outage of more than an hour."""

WAITS = BackOff(1.0, 600.0)
"""The waits before a failed delivery is retried."""

SUSPECT_DEATHS, MAX_LONE_DEATHS = 2, 3
"""How often the service may crash, or lose its claim, during one delivery.

After `SUSPECT_DEATHS` times it processes that delivery alone, because another one may have been the cause. After
`MAX_LONE_DEATHS` more times it sets the delivery aside.
"""

POSTPONED = BackOff(0.5, 30.0)
"""The waits of a delivery that came too early."""


_FIELDS = ("sequence", "id", "event", "lane", "body", "digest", "attempts", "begun", "received_at")
_TAKEN = (
    select(*(deliveries.c[name] for name in _FIELDS))
    .where(deliveries.c.sequence.in_(bindparam("sequences", expanding=True)))
    .order_by(deliveries.c.sequence)
)


class TooEarly(Exception):  # noqa: N818 - not a failure
    """Raised by a handler whose delivery must be processed again after earlier ones of its issue."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What GitHub sent."""

    sequence: int
    id: str
    event: str
    lane: str
    body: bytes
    digest: str | None
    """The digest of the content. Copies with other ids have the same one. None until it is first needed."""
    attempts: int
    begun: int
    """How often its processing was started but not finished."""
    received_at: datetime

    @property
    def case(self) -> str:
        """The issue of the delivery: its lane without the mark of cancels."""
        return self.lane.removesuffix(CANCEL_LANE)


class Inbox:
    """Stores deliveries, and processes them through the router."""

    def __init__(
        self,
        db: Database,
        router: Router,
        now: Callable[[], datetime],
        notify: Callable[[], None] = lambda: None,
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._db = db
        self._router = router
        self._now = now
        self._notify = notify
        self._receiver = Receiver(db, now, max_pending)
        self._copies = Copies(self._receiver.receive)
        self._records = Batches(self._write_down, LANES_AT_ONCE + CANCELS_AT_ONCE)
        self._busy: dict[str, tuple[int, asyncio.Task[None]]] = {}
        """Lane -> sequence and task of the delivery in progress."""
        self._alone = ""
        """The lane of the delivery that must be processed alone. Empty if there is none."""
        self._last_before = 0
        """The sequence of the newest delivery that was stored before this process began."""

    async def begin(self) -> None:
        """Note which deliveries exist already, because any of them may have crashed the service."""
        async with self._db.read() as connection:
            newest = await connection.execute(select(func.max(deliveries.c.sequence)))
            self._last_before = newest.scalar_one() or 0

    async def receive(self, delivery_id: str, event: str, lane: str, body: bytes) -> bool:
        """Commit a delivery. Returns False if it exists already. GitHub may be answered only after this.

        Raises `handlers.inbox.receiving.NotStored`.
        """
        return await self._receiver.receive(Arrival(delivery_id, event, lane, body))

    async def receive_once(self, arrival: Arrival) -> bool:
        """Like `receive`, but also False if its content was received under another id."""
        return await self._copies.receive(arrival)

    def wants(self, event: str, payload: Mapping[str, Any]) -> bool:
        """Whether there is a handler for the delivery. A delivery without a handler is not stored."""
        return is_routed(self._router, event, payload.get("action")) and fits(event, payload)

    async def holds(self, delivery_id: str, event: str, body: bytes) -> bool:
        """Whether this delivery is stored with this content. The id alone proves nothing, because it is not signed."""
        digest = find_digest(event, body)
        ids = delivery_id, find_other_id(delivery_id, digest)
        async with self._db.read() as connection:
            rows = await connection.execute(CONTENT.where(deliveries.c.id.in_(ids)))
            return any(read_digest(row) == digest for row in rows)

    @property
    def calm_in_s(self) -> float:
        """For how many seconds less urgent work should still wait, because many deliveries are arriving."""
        return self._receiver.calm_in_s()

    async def step(self, context: Context) -> None:
        """Start the first delivery of every free lane. While many deliveries arrive, start only cancels."""
        await self._begin(context, CANCELS_AT_ONCE, cancels=True)
        if calm_in_s := self.calm_in_s:
            await asyncio.sleep(calm_in_s)
            self._notify()
        else:
            await self._begin(context, LANES_AT_ONCE, cancels=False)

    async def _begin(self, context: Context, at_once: int, *, cancels: bool) -> None:
        free = at_once - sum(lane.endswith(CANCEL_LANE) is cancels for lane in self._busy)
        for delivery in await self._take(free, cancels=cancels):
            task = asyncio.ensure_future(self._work(delivery, context))
            self._busy[delivery.lane] = delivery.sequence, task
            task.add_done_callback(partial(self._leave, delivery.lane))

    async def stop(self) -> None:
        """Wait for the deliveries in progress."""
        await asyncio.gather(*(task for _, task in self._busy.values()), return_exceptions=True)

    async def abandon(self) -> None:
        """Cancel the deliveries in progress. They stay pending, and are processed again."""
        for _, task in self._busy.values():
            task.cancel()
        await self._records.cancel()
        await self.stop()

    def _leave(self, lane: str, task: asyncio.Task[None]) -> None:
        del self._busy[lane]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ClaimLost):
            # No notification: the new holder of the claim looks anyway, and this replica does at its next pass.
            log.warning("delivery.passed_on", lane=lane, reason=str(error))
            return
        if error:
            log.error("delivery.not_recorded", lane=lane, error=repr(error))
        self._notify()

    async def _take(self, limit: int, *, cancels: bool) -> list[Delivery]:
        """The oldest pending delivery of each free lane, if it is due.

        If the service crashed `SUSPECT_DEATHS` times during one of them, that one is processed alone.
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
                delivery = await self._identify(delivery)
                if original := await self._find_original(delivery):
                    log.warning("delivery.copied", original=original)
                else:
                    await self._dispatch(delivery, context)
            except TooEarly:
                await self._postpone(delivery)
            except Namesake as error:
                # It is recorded as done, so that strangers can neither fill the disk nor raise alarms with them.
                log.warning("delivery.of_namesake", reason=str(error))
                await self._record(delivery, state="done", finished_at=self._now(), error=str(error))
            except (GitHubUnavailable, GitHubError) as error:
                # A refusal can be temporary, too: a suspended App, an organization that requires new consent.
                asked_s = error.retry_after_s if isinstance(error, GitHubUnavailable) else 0.0
                wait_s = WAITS.after(delivery.attempts + 1, asked_s=asked_s)
                log.warning("delivery.waits_for_github", reason=str(error), wait_s=wait_s)
                await self._retry(delivery, str(error), wait_s, MAX_ATTEMPTS_IN_OUTAGES)
            except ValidationError as error:
                # The same bytes will never be valid. Only field names are shown, because values may be secret.
                fields = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors(include_input=False))
                log.error("delivery.malformed", fields=fields)
                reason = f"missing or invalid fields in the payload: {fields}"
                await self._set_aside(delivery, reason, delivery.attempts + 1)
            except ClaimLost:
                raise  # Not a failure of the delivery: it does not count as an attempt.
            except Exception as error:
                log.exception("delivery.failed", attempt=delivery.attempts + 1)
                # Like an outage of GitHub, an outage of the database is not a failure of the delivery.
                attempts = MAX_ATTEMPTS_IN_OUTAGES if self._db.is_transient(error) else MAX_ATTEMPTS
                await self._retry(delivery, repr(error), WAITS.after(delivery.attempts + 1), attempts)
            else:
                await self._record(delivery, state="done", finished_at=self._now())

    async def _is_deadly(self, delivery: Delivery) -> bool:
        """Count a start of the delivery. If the service keeps crashing during it, set it aside and return True.

        After `SUSPECT_DEATHS` starts, `_take` makes sure that the delivery is processed alone. So `begun` is enough to
        count both kinds of starts.
        """
        if delivery.begun >= SUSPECT_DEATHS + MAX_LONE_DEATHS:
            reason = f"the service ended {MAX_LONE_DEATHS} times while it processed only this delivery"
            await self._set_aside(delivery, reason, delivery.attempts)
            return True
        if delivery.sequence <= self._last_before:  # Newer ones have not crashed the service: no commit is needed.
            await self._record(delivery, begun=delivery.begun + 1)
        return False

    async def _identify(self, delivery: Delivery) -> Delivery:
        """Compute the digest of a delivery if it is missing.

        If the service has crashed during this delivery before, the digest is committed first. So copies are recognised
        even if the delivery is set aside.
        """
        if delivery.digest is None:
            delivery = replace(delivery, digest=find_digest(delivery.event, delivery.body))
            if delivery.begun:
                await self._record(delivery, begun=delivery.begun + 1)
        return delivery

    async def _find_original(self, delivery: Delivery) -> str | None:
        """The id under which the same content came before, or None.

        Ids are not signed, so anybody who has seen a delivery can send it again under a new id. The same content gives
        the same lane, and a lane is processed in order. So the digest of the original is stored before this.
        """
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
            await refuse_namesake(context, payload)
            if private := find_private_repository(payload):
                await restrict_jobs(self._db, private)
            event = sansio.Event(payload, event=delivery.event, delivery_id=delivery.id)
            await self._router.dispatch(event, context)

    async def _postpone(self, delivery: Delivery) -> None:
        """Process the delivery again soon. The wait grows with the age of the delivery."""
        waited_s = (self._now() - delivery.received_at).total_seconds()
        wait_s = POSTPONED.since(waited_s / 8)
        await self._record(delivery, next_attempt_at=self._now() + timedelta(seconds=wait_s))
        asyncio.get_running_loop().call_later(wait_s, self._notify)

    async def _retry(self, delivery: Delivery, error: str, wait_s: float, attempts: int) -> None:
        """Retry after `wait_s` seconds, or set the delivery aside after `attempts` attempts."""
        if delivery.attempts + 1 >= attempts:
            await self._set_aside(delivery, error, delivery.attempts + 1)
        else:
            at = self._now() + timedelta(seconds=wait_s)
            await self._record(delivery, attempts=delivery.attempts + 1, error=error, next_attempt_at=at)

    async def _set_aside(self, delivery: Delivery, reason: str, attempts: int) -> None:
        log.error("delivery.set_aside", reason=reason, attempts=attempts)
        await self._record(delivery, state="failed", finished_at=self._now(), attempts=attempts, error=reason)

    async def _record(self, delivery: Delivery, **changes: Any) -> None:
        """Store changes of a delivery, and its digest. `begun` is reset to 0, unless the changes set it."""
        known = {} if delivery.digest is None else {"digest": delivery.digest}
        await self._records.add((delivery, {"begun": 0, **known, **changes}))

    async def _write_down(self, records: Sequence[tuple[Delivery, dict[str, Any]]]) -> Sequence[None]:
        async with self._db.write() as connection:
            for delivery, changes in records:
                this = deliveries.c.sequence == delivery.sequence
                await connection.execute(update(deliveries).where(this).values(**changes))
        return [None] * len(records)


async def has_earlier(connection: AsyncConnection, delivery_id: str) -> bool:
    """Whether an earlier delivery of the same issue is still pending."""
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
    """The number of deliveries in each of these states."""
    query = select(deliveries.c.state, func.count()).where(deliveries.c.state.in_(states)).group_by(deliveries.c.state)
    async with db.read() as connection:
        counted = {row[0]: row[1] for row in await connection.execute(query)}
    return {state: counted.get(state, 0) for state in states}


async def fetch_known(db: Database, delivery_ids: Collection[str]) -> dict[str, datetime]:
    """The time of arrival of each of these deliveries that was received, by id."""
    ids, known = list(delivery_ids), dict[str, datetime]()
    async with db.read() as connection:
        for start in range(0, len(ids), IDS_AT_ONCE):
            some = deliveries.c.id.in_(ids[start : start + IDS_AT_ONCE])
            rows = await connection.execute(select(deliveries.c.id, deliveries.c.received_at).where(some))
            known |= {row.id: row.received_at for row in rows}
    return known


async def fetch_doubtful(db: Database, events: Mapping[str, str]) -> set[str]:
    """The received deliveries whose ids somebody else may have used first.

    `events` has the true event of each id. A doubtful id has another event, or a content that exists twice. To find
    these, the digests of waiting deliveries are stored first.
    """
    if events:
        await _complete_digests(db)
    ids, doubtful, other = list(events), set[str](), deliveries.alias()
    is_twice = exists().where(other.c.digest == deliveries.c.digest, other.c.sequence != deliveries.c.sequence)
    async with db.read() as connection:
        for start in range(0, len(ids), IDS_AT_ONCE):
            some = deliveries.c.id.in_(ids[start : start + IDS_AT_ONCE])
            rows = await connection.execute(select(deliveries.c.id, deliveries.c.event, is_twice).where(some))
            doubtful |= {row[0] for row in rows if row[2] or row[1] != events[row[0]]}
    return doubtful


async def _complete_digests(db: Database) -> None:
    """Store the missing digests of deliveries. Only a few bodies are in memory at once, because they can be large."""
    missing = CONTENT.add_columns(deliveries.c.sequence).where(deliveries.c.digest.is_(None))
    after = 0
    while True:
        page = missing.where(deliveries.c.sequence > after).order_by(deliveries.c.sequence).limit(LANES_AT_ONCE)
        async with db.read() as connection:
            rows = (await connection.execute(page)).all()
        if not rows:
            return
        async with db.write() as connection:
            for row in rows:
                this = update(deliveries).where(deliveries.c.sequence == row.sequence)
                await connection.execute(this.values(digest=read_digest(row)))
        after = rows[-1].sequence


async def is_waiting(db: Database, lane: str) -> bool:
    """Whether a delivery of this lane is pending."""
    query = select(func.count()).where(deliveries.c.lane == lane, deliveries.c.state == "pending")
    async with db.read() as connection:
        return (await connection.execute(query)).scalar_one() > 0
