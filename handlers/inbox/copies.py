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

from handlers.inbox.receiving import Arrival

REMEMBERED = 20_000
"""How many of the newest contents are remembered. They take a few megabytes."""

Receive = Callable[[Arrival], Awaitable[bool]]


class Copies:
    """Receives each content under only one id."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._received: dict[tuple[str, str], None] = {}
        """Event and signature of each received content, oldest first."""
        self._under_way: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def receive(self, arrival: Arrival) -> bool:
        """Receive a delivery. Returns False if it or its content was received before. Raises `NotStored`."""
        content = arrival.event, arrival.signature
        async with self._under_way.setdefault(content, asyncio.Lock()):
            if content in self._received:
                return False
            is_new = await self._receive(arrival)
            self._received[content] = None
            if len(self._received) > REMEMBERED:
                del self._received[next(iter(self._received))]
            return is_new
