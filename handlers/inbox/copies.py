"""Rejects copies of a delivery with other ids, so that they cannot fill the inbox.

GitHub signs no delivery id, so anyone who has seen one signed body can send it again and again under new ids. What is
remembered is in memory: a restart or another replica costs one more copy of each content, which the inbox then tells
from the original before it is worked.
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
"""The number of newest contents in memory: a few megabytes."""

Receive = Callable[[Arrival], Awaitable[bool]]


class Copies:
    """Receives each content only under one id, unless that delivery was set aside."""

    def __init__(self, db: Database, receive: Receive) -> None:
        self._db = db
        self._receive = receive
        self._stored: dict[str, None] = {}
        """The digests of received contents, oldest first."""
        self._under_way: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def receive(self, arrival: Arrival) -> bool:
        """Receive a delivery; False if it or its content was received before. Raises `NotStored`."""
        content = arrival.digest
        lock = self._under_way.setdefault(content, asyncio.Lock())
        async with lock:
            if content in self._stored and await self._is_kept(content):
                return False
            is_new = await self._receive(arrival)
            if is_new:
                self._stored.pop(content, None)
                self._stored[content] = None
                if len(self._stored) > REMEMBERED:
                    del self._stored[next(iter(self._stored))]
            return is_new

    async def _is_kept(self, digest: str) -> bool:
        """Whether a content is pending or processed. One that was set aside does not reject later ones."""
        query = select(deliveries.c.id).where(deliveries.c.digest == digest, deliveries.c.state != "failed")
        async with self._db.read() as connection:
            return (await connection.execute(query.limit(1))).one_or_none() is not None
