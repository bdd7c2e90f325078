"""Asks an expensive question once for everybody who asks it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SingleFlight(Generic[Key, Value]):
    """The questions that are open, by key. Nothing is kept once there is an answer."""

    def __init__(self) -> None:
        self._flights: dict[Key, asyncio.Task[Value]] = {}

    def is_open(self, key: Key) -> bool:
        """Whether somebody has asked this and waits for the answer."""
        return key in self._flights

    async def join(self, key: Key, ask: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """The answer to the open question, or to a new one. Raises what `ask` raises, for each caller."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = asyncio.create_task(ask())
            flight.add_done_callback(lambda landed: self._land(key, landed))
        # Shielded: one caller that is cancelled must not take the answer from the others.
        return await asyncio.shield(flight)

    def _land(self, key: Key, flight: asyncio.Task[Value]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # Looked at, so that asyncio does not complain where every caller has gone.
