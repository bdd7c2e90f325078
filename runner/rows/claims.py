"""Claims: which replica may act on a job, or run a loop of the service.

A claim is a row with a fence, which is new for each holder, and an expiry time on the database's clock. Its holder
renews it. After it has expired, any replica can take it. Two checks stop a former holder. Every transaction first locks
the claim's row, and fails if the fence has changed (`Database.write`). Every request to the outside first checks that
the claim lasts until the answer (`require_claim`). So a replica that was suspended until its claims expired writes
nothing when it continues.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass

import structlog
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.database import BEFORE_WRITE, Database
from runner.db.schema import claims
from runner.db.sql import db_clock, upsert

log = structlog.get_logger()

LASTS_S = 60.0
"""How many seconds a claim lasts without a renewal. Even just before a renewal, it lasts longer than any request."""

RENEWALS = 4
"""How often a claim is renewed within `LASTS_S`."""


# Built once, because every write runs the first one.
_LOCK = select(claims.c.name).where(claims.c.name == bindparam("name"), claims.c.fence == bindparam("fence"))
_LOCK = _LOCK.with_for_update()
_CLAIMED = select(claims.c.name).where(claims.c.expires_at >= db_clock())


class ClaimLost(Exception):  # noqa: N818 - a fact about a replica, not a fault of the program
    """Another replica may have the claim now, so this one must not act."""


@dataclass(eq=False, slots=True)
class Held:
    """A claim of this replica."""

    name: str
    fence: str
    until: float
    """When the claim may expire, on this process's monotonic clock. It is computed from the time before the claim was
    taken or renewed."""

    def require(self, for_s: float) -> None:
        """Raise `ClaimLost` unless the claim lasts for at least that many seconds."""
        if time.monotonic() + for_s > self.until:
            raise ClaimLost(f"the claim on {self.name} may have expired")

    async def lock(self, connection: AsyncConnection) -> None:
        """Lock the claim until this transaction ends. Raises `ClaimLost` if another replica has taken it."""
        if (await connection.execute(_LOCK, {"name": self.name, "fence": self.fence})).one_or_none() is None:
            raise ClaimLost(f"another replica has taken the claim on {self.name}")


_current: ContextVar[Held | None] = ContextVar("claim", default=None)


def require_claim(for_s: float) -> None:
    """Raise `ClaimLost` unless the claim of this task, if any, lasts for at least that many seconds."""
    if held := _current.get():
        held.require(for_s)


@contextmanager
def _acting_under(held: Held) -> Iterator[None]:
    current, guard = _current.set(held), BEFORE_WRITE.set(held.lock)
    try:
        yield
    finally:
        _current.reset(current)
        BEFORE_WRITE.reset(guard)


class Claims:
    """The claims of one replica. `run` renews them; `close` releases them."""

    def __init__(self, db: Database, lasts_s: float = LASTS_S) -> None:
        self._db = db
        self._lasts_s = lasts_s
        self._held: dict[str, Held] = {}

    def has(self, name: str) -> bool:
        """Whether this replica has the claim, as far as it knows."""
        return name in self._held

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[bool]:
        """Take a claim for the context, and release it. Yields False if another replica or another task here has it."""
        held = await self._take(name)
        if held is None:
            yield False
            return
        try:
            with _acting_under(held):
                yield True
        finally:
            await self._give_back(held)

    @asynccontextmanager
    async def keep(self, name: str) -> AsyncIterator[bool]:
        """Take a claim, and keep it after the context for the next time. Yields False if another replica has it."""
        held = self._held.get(name)
        if held is None or time.monotonic() > held.until:
            held = await self._take(name)
        if held is None:
            yield False
            return
        with _acting_under(held):
            yield True

    def keeping(self, name: str, step: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Wrap a step so that only one replica at a time does it."""

        async def step_or_not() -> None:
            async with self.keep(name) as mine:
                if mine:
                    with suppress(ClaimLost):
                        await step()

        return step_or_not

    async def run(self) -> None:
        """Renew the claims until cancelled."""
        while True:
            await asyncio.sleep(self._lasts_s / RENEWALS)
            try:
                await self._renew()
            except (SQLAlchemyError, OSError) as error:
                log.warning("claims.not_renewed", reason=repr(error))

    async def clear(self) -> None:
        """Delete every claim. Only safe if no other replica is running."""
        async with self._db.write(checks_claim=False) as connection:
            await connection.execute(delete(claims))

    async def close(self) -> None:
        """Release all claims, so that other replicas need not wait."""
        for held in [*self._held.values()]:
            await self._give_back(held)

    async def _take(self, name: str) -> Held | None:
        asked_at = time.monotonic()
        held = Held(name, secrets.token_hex(8), asked_at + self._lasts_s)
        row = {"name": name, "fence": held.fence, "expires_at": db_clock(self._lasts_s)}
        async with self._db.write(checks_claim=False) as connection:
            if not await upsert(connection, claims, row, where=claims.c.expires_at < db_clock()):
                return None
        self._held[name] = held
        return held

    async def _renew(self) -> None:
        """Renew the claims, including expired ones: if no other replica has taken a claim, none has acted under it."""
        asked_at = time.monotonic()
        fences = {held.fence: held for held in self._held.values()}
        async with self._db.write(checks_claim=False) as connection:
            statement = update(claims).where(claims.c.fence.in_(fences)).values(expires_at=db_clock(self._lasts_s))
            renewed = {row.fence for row in await connection.execute(statement.returning(claims.c.fence))}
        for fence, held in fences.items():
            if fence in renewed:
                held.until = asked_at + self._lasts_s
            elif self._held.get(held.name) is held:
                log.warning("claim.lost", claim=held.name)
                del self._held[held.name]

    async def _give_back(self, held: Held) -> None:
        if self._held.get(held.name) is held:
            del self._held[held.name]
        with suppress(SQLAlchemyError, OSError):  # If this fails, the claim expires.
            async with self._db.write(checks_claim=False) as connection:
                await connection.execute(delete(claims).where(claims.c.name == held.name, claims.c.fence == held.fence))


async def fetch_claimed(connection: AsyncConnection) -> set[str]:
    """The names of all current claims."""
    return set((await connection.execute(_CLAIMED)).scalars())
