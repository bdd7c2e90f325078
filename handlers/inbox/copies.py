"""Rejects copies of a delivery with other ids, so that they cannot fill the inbox.

GitHub does not sign the delivery id, so anyone who has seen a signed body can send it again and again under new ids.
Without the secret, nobody can make a second signature for a body. So the signature identifies the content. The
signatures of received contents are remembered in memory. So after a restart, or in another replica, one more copy of
each content is stored. The inbox recognises it as a copy before it is processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from sqlalchemy import select

from handlers.inbox.receiving import Arrival
from runner.db.database import Database
from runner.db.schema import deliveries

REMEMBERED = 20_000
"""How many of the newest contents are remembered. They take a few megabytes."""

Receive = Callable[[Arrival], Awaitable[str | None]]


class Copies:
    """Receives each content under only one id, unless the delivery with that id was set aside."""

    def __init__(self, db: Database, receive: Receive) -> None:
        self._db = db
        self._receive = receive
        self._stored: dict[tuple[str, str], str] = {}
        """Event and signature of each received content, oldest first, with the id of its row."""
        self._under_way: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def receive(self, arrival: Arrival) -> bool:
        """Receive a delivery. Returns False if it or its content was received before. Raises `NotStored`."""
        content = arrival.event, arrival.signature
        lock = self._under_way.setdefault(content, asyncio.Lock())
        async with lock:
            before = self._stored.get(content)
            if before is not None and await self._is_kept(before):
                return False
            delivery_id = await self._receive(arrival)
            if delivery_id is not None:
                self._stored.pop(content, None)
                self._stored[content] = delivery_id
                if len(self._stored) > REMEMBERED:
                    del self._stored[next(iter(self._stored))]
            return delivery_id is not None

    async def _is_kept(self, delivery_id: str) -> bool:
        """Whether a delivery is pending or processed. Copies of a delivery that was set aside are not rejected."""
        query = select(deliveries.c.id).where(deliveries.c.id == delivery_id, deliveries.c.state != "failed")
        async with self._db.read() as connection:
            return (await connection.execute(query)).one_or_none() is not None
