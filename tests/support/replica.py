"""One replica of the service that a test can stop between any two of its steps, for a while or for good.

Its steps are its transactions and its requests to machines: whatever happens to it happens between those. While a test
holds it still the rest of the world goes on, so that it comes back as a zombie.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.database import Database
from runner.db.schema import claims
from runner.rows.claims import Claims, _current

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class Stops:
    """Where a replica can be stopped, and when nothing of it moves any more."""

    def __init__(self) -> None:
        self.is_dead = False
        self.trespasses = list[str]()
        """Claims under which something was written although another replica had taken them."""
        self.steps_left: int | None = None
        """After so many more steps it stops; None lets it go on."""
        self._passed = 0
        self._busy = 0
        self._at_rest = asyncio.Event()
        self._awake = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        return self.steps_left == 0

    def wake(self) -> None:
        """Let it go on from where it was stopped."""
        self.steps_left = None
        self._awake.set()
        self._awake = asyncio.Event()

    async def gate(self) -> None:
        """Between two steps."""
        self._passed += 1
        while self.is_stopped and not self.is_dead:
            await self._awake.wait()
        if self.is_dead:
            raise asyncio.CancelledError
        if self.steps_left is not None:
            self.steps_left -= 1

    @asynccontextmanager
    async def step(self, work: AbstractAsyncContextManager[AsyncConnection]) -> AsyncIterator[AsyncConnection]:
        """A transaction: nothing can be stopped in its middle."""
        await self.gate()
        self._busy += 1
        try:
            async with work as connection:
                yield connection
        finally:
            self._busy -= 1
            if not self._busy:
                self._at_rest.set()
        await self.gate()

    async def settle(self) -> None:
        """Return once nothing moves: all that is left waits for a notification, for a claim, or to be woken."""
        while True:
            self._at_rest.clear()
            if self._busy:
                await self._at_rest.wait()
            passed = self._passed
            for _ in range(20):
                await asyncio.sleep(0)
            if not self._busy and passed == self._passed:
                return


class StoppableDatabase(Database):
    """The real database, whose transactions are the steps of a replica."""

    def __init__(self, url: str, stops: Stops) -> None:
        super().__init__(url)
        self._stops = stops

    @asynccontextmanager
    async def write(self, *, checks_claim: bool = True, **options: Any) -> AsyncIterator[AsyncConnection]:
        async with self._stops.step(super().write(checks_claim=checks_claim, **options)) as connection:
            yield connection
            held = _current.get() if checks_claim else None
            if held and not (await connection.execute(select(claims).where(claims.c.fence == held.fence))).all():
                self._stops.trespasses.append(held.name)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        async with self._stops.step(super().read()) as connection:
            yield connection


class Process:
    """One life of a replica: passes of its loops, its claims, and its end."""

    def __init__(self, url: str) -> None:
        self.stops = Stops()
        self.db = StoppableDatabase(url, self.stops)
        self.claims = Claims(self.db)
        self._passes = dict[str, asyncio.Task[None]]()

    async def work(self, loop: str, step: Callable[[], Awaitable[None]], steps: int | None) -> None:
        """One pass of a loop, if none is under way, as far as it comes; after so many steps the replica stops."""
        if self.stops.is_stopped:
            return
        self.stops.steps_left = steps
        if loop not in self._passes or self._passes[loop].done():
            self._passes[loop] = asyncio.ensure_future(step())
        await self.settle()
        if not self.stops.is_stopped:
            self.stops.steps_left = None

    async def settle(self) -> None:
        await self.stops.settle()
        for task in [*self._passes.values()]:
            if task.done():
                task.result()

    async def wake(self) -> None:
        self.stops.wake()
        await self.settle()

    async def expire(self, db: Database) -> None:
        """More time passes than its claims last."""
        await expire_claims(db, claims.c.fence.in_(self.fences()))
        for held in self.claims._held.values():
            held.until = time.monotonic() - 1

    def fences(self) -> list[str]:
        """Of the claims that it knows to be its own."""
        return [held.fence for held in self.claims._held.values()]

    async def die(self, stop: Callable[[], Awaitable[None]]) -> None:
        """End as a kill does: what is under way is not cleaned up."""
        self.stops.is_dead = True
        self.stops.wake()
        await stop()
        for task in self._passes.values():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.db.close()


async def expire_claims(db: Database, which: ColumnElement[bool]) -> None:
    """On the database's clock, which is the one that counts."""
    async with db.write() as connection:
        await connection.execute(update(claims).where(which).values(expires_at=LONG_AGO))
