"""Copies of a delivery that come under other ids: they are not taken in, so that they fill no inbox.

GitHub signs no delivery id, so anyone who has seen one signed body can send it again and again under new ids. What is
remembered is in memory: a restart or another replica costs one more copy of each content, which the inbox then tells
from the original before it is worked.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from sqlalchemy import select

from runner.db import Database
from runner.schema import deliveries

REMEMBERED = 20_000
"""Contents that are remembered, the latest: some megabytes."""

Receive = Callable[[str, str, str, bytes], Awaitable[bool]]


class Copies:
    """Receives each content under one id, for as long as its delivery is not set aside."""

    def __init__(self, db: Database, receive: Receive) -> None:
        self._db = db
        self._receive = receive
        self._ids: dict[bytes, str] = {}
        """The id under which a content came, by the digest of event and body, oldest first."""
        self._under_way: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    async def receive(self, delivery_id: str, event: str, lane: str, body: bytes) -> bool:
        """Receive a delivery; False where it or its content is here already. Raises `handlers.receiving.NotStored`."""
        digest = hashlib.sha256(event.encode() + b"\0")
        digest.update(body)
        content = digest.digest()
        lock = self._under_way.setdefault(content, asyncio.Lock())
        async with lock:
            first = self._ids.get(content)
            if first not in (None, delivery_id) and await self._is_kept(first):
                return False
            is_new = await self._receive(delivery_id, event, lane, body)
            if is_new:  # An id that is here already may have come with another content.
                self._ids.pop(content, None)
                self._ids[content] = delivery_id
                if len(self._ids) > REMEMBERED:
                    del self._ids[next(iter(self._ids))]
            return is_new

    async def _is_kept(self, delivery_id: str | None) -> bool:
        """Whether a delivery is to be worked, or was. One that was set aside keeps no later one out."""
        query = select(deliveries.c.id).where(deliveries.c.id == delivery_id, deliveries.c.state != "failed")
        async with self._db.read() as connection:
            return (await connection.execute(query)).one_or_none() is not None
