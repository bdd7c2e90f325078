"""Stores deliveries with group commits: all deliveries that arrive during one commit share the next one.

A commit to the disk takes as long for a hundred rows as for one. A request is answered only after the commit of its
delivery.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import structlog
from sqlalchemy import func, select

from runner.db.batches import Batches, Stopped
from runner.db.database import Database
from runner.db.schema import deliveries

log = structlog.get_logger()

MAX_PENDING = 10_000
"""The default limit of pending deliveries. Further deliveries are refused."""

MAX_BATCH = 200
"""The most deliveries in one commit."""

ID_KEPT, DIGEST_KEPT = 83, 16
"""How many characters of an id and of a digest form another id. It fits into the column."""

RECOUNT_S = 1.0
"""How many seconds a count of pending deliveries is used. New deliveries are added to it, but none are subtracted."""


CROWD = 8
"""With this many deliveries in one commit, less urgent work waits."""

CALM_S, MAX_CALM_S = 0.25, 2.0
"""The seconds after a crowd until other work continues, and the longest wait for that."""


class NotStored(Exception):  # noqa: N818 - what is the case
    """The delivery is not in the database, so GitHub must not get a positive answer. The message is one line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A received delivery."""

    id: str
    """`X-GitHub-Delivery`. A redelivery has the same id. The id is not signed, so a copy may have another one."""
    event: str
    lane: str
    body: bytes
    """The raw bytes that were signed."""
    signature: str = ""
    """The checked signature of the body. Empty if the delivery came from GitHub's API."""


def find_other_id(delivery_id: str, digest: str) -> str:
    """The id to use if a delivery's own id already has another content. The webhook accepts no id with a `+`."""
    return f"{delivery_id[:ID_KEPT]}+{digest[:DIGEST_KEPT]}"


def find_digest(event: str, body: bytes) -> str:
    """A hash of event and payload. It does not depend on the order of keys or on whitespace.

    The answer to a new delivery does not need it, so the inbox stores it when it processes the delivery.
    """
    try:
        content = msgspec.json.encode(msgspec.json.decode(body), order="sorted")
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        content = body
    return hashlib.sha256(event.encode() + b"\0" + content).hexdigest()


CONTENT = select(deliveries.c.event, deliveries.c.body, deliveries.c.digest)
"""The query for what `read_digest` reads."""


def read_digest(row: Any) -> str:
    """The digest of a stored delivery. It is stored if the delivery was processed, even after its body was emptied."""
    return row.digest or find_digest(row.event, row.body)


@dataclass
class Crowd:
    """Detects that many deliveries arrive at the same time. All times are seconds of one clock."""

    began_at: float = -math.inf
    ends_at: float = -math.inf

    def note(self, at: float, stored: int) -> None:
        """Record a commit of this many deliveries."""
        if stored >= CROWD:
            self.began_at = at if at > self.ends_at else self.began_at
            self.ends_at = at + CALM_S

    def calm_in_s(self, at: float) -> float:
        """The seconds until other work continues; 0 if it can continue now."""
        return max(0.0, min(self.ends_at, self.began_at + MAX_CALM_S) - at)


class Receiver:
    """Commits each arrival once. It has no start and no stop, because it writes only while a caller waits."""

    def __init__(self, db: Database, now: Callable[[], datetime], max_pending: int = MAX_PENDING) -> None:
        self._db = db
        self._now = now
        self._max_pending = max_pending
        self._batches = Batches(self._write, MAX_BATCH)
        self._room = 0
        self._counted_at = -RECOUNT_S
        self._crowd = Crowd()

    async def receive(self, arrival: Arrival) -> bool:
        """Commit a delivery. Returns False if it is stored already. Raises `NotStored`."""
        try:
            return await self._batches.add(arrival)
        except Stopped:
            raise NotStored("the service is stopping: send it again later") from None

    def calm_in_s(self) -> float:
        """The seconds for which other work should still wait, because GitHub waits for answers."""
        return self._crowd.calm_in_s(time.monotonic())

    async def _write(self, batch: Sequence[Arrival]) -> Sequence[bool | Exception]:
        try:
            return await self._store(batch)
        except Exception as error:
            log.exception("deliveries.not_stored", count=len(batch))
            reason = f"the database could not store the delivery ({type(error).__name__}): send it again later"
            raise NotStored(reason) from error

    async def _store(self, batch: Sequence[Arrival]) -> list[bool | Exception]:
        """Store a batch in one transaction. If the inbox becomes full, the rest of the batch is refused."""
        now = self._now()
        common = {"received_at": now, "state": "pending", "attempts": 0, "next_attempt_at": now}
        room = await self._find_room()
        ids = [arrival.id for arrival in batch[:room]]
        received = await self._append(batch[:room], ids, common)
        for number, arrival in enumerate(batch[:room]):
            if not received[number] and (free_id := await self._find_free_id(arrival)):
                ids[number] = free_id
                received[number] = (await self._append([arrival], [free_id], common))[0]
        stored = [delivery_id for delivery_id, is_new in zip(ids, received, strict=True) if is_new]
        self._room -= len(stored)
        self._crowd.note(time.monotonic(), len(stored))
        # One log line for the whole batch, because a line for each delivery would cost as much as storing it.
        log.info("deliveries.stored", deliveries=" ".join(stored))
        full = f"the inbox is full: {self._max_pending} deliveries wait already; send it again later"
        return [*received, *(NotStored(full) for _ in batch[room:])]

    async def _append(self, batch: Sequence[Arrival], ids: Sequence[str], common: Mapping[str, Any]) -> list[bool]:
        """Store arrivals under these ids. Returns for each arrival whether its id was new."""
        rows = [
            {"id": delivery_id, "event": one.event, "lane": one.lane, "body": one.body}
            for one, delivery_id in zip(batch, ids, strict=True)
        ]
        return await self._db.group_commit.insert(deliveries, rows, "id", common) if rows else []

    async def _find_free_id(self, arrival: Arrival) -> str | None:
        """Another id for an arrival whose own id already has another content. None if it has the same content.

        Ids are not signed, so somebody else may have used this one first.
        """
        async with self._db.read() as connection:
            row = (await connection.execute(CONTENT.where(deliveries.c.id == arrival.id))).one_or_none()
        digest = find_digest(arrival.event, arrival.body)
        if row is None or read_digest(row) == digest:
            return None
        other_id = find_other_id(arrival.id, digest)
        log.warning("delivery.id_was_taken", delivery=arrival.id, stored_as=other_id)
        return other_id

    async def _find_room(self) -> int:
        """How many more deliveries can be stored.

        The pending ones are counted regularly, because other replicas also store and process deliveries.
        """
        if self._room < MAX_BATCH or time.monotonic() - self._counted_at > RECOUNT_S:
            query = select(func.count()).where(deliveries.c.state == "pending")
            async with self._db.read() as connection:
                self._room = self._max_pending - (await connection.execute(query)).scalar_one()
            self._counted_at = time.monotonic()
        return max(self._room, 0)
