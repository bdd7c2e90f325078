"""The database: how it is opened, and how a transaction is. What is in it stands in `runner.db.schema`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, make_url, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db import sqlite, versions
from runner.db.appending import Appender
from runner.db.errors import DatabaseError, UnavailableDatabase
from runner.db.schema import installation
from runner.db.sql import insert_all_new

if TYPE_CHECKING:
    from runner.db.postgresql import Wire

GUARD: ContextVar[Callable[[AsyncConnection], Awaitable[None]] | None] = ContextVar("guard", default=None)
"""What must be so for a transaction of this task to write anything; `runner.rows.claims` sets it."""

NOTHING: Mapping[str, Any] = MappingProxyType({})

SYNC_AFTER_S = 0.1
"""How long what need not wait for the disk stays off it, for more of it to come."""


class Database:
    """The one way to the database. `write` is a transaction that commits when its block ends without an exception.

    The URL begins with `sqlite+aiosqlite:///` or `postgresql+asyncpg://`.
    """

    def __init__(self, url: str, migrations: Path = versions.MIGRATIONS) -> None:
        self.secret = b""
        """Drawn once for a database, known after `open`."""
        self.url = make_url(url)
        self._migrations = migrations
        self.is_embedded = self.url.get_backend_name() == "sqlite"
        """Whether it is a file of this machine, which one service has for itself."""
        self._kind = sqlite if self.is_embedded else _postgresql()
        self.engine = self._kind.make_engine(self.url)
        # SQLite's own queue of writers sleeps between its looks, and is not fair; and a process that stands still must
        # not have many places in PostgreSQL's.
        self._turn = asyncio.Lock()
        self._appenders = {
            durable: Appender(partial(sqlite.connect, self.file, durable=durable), self.engine.dialect, durable=durable)
            for durable in (True, False)
        }
        """SQLite's; none opens anything before it is asked to."""
        self._syncing: asyncio.Task[None] | None = None
        self._wire: Wire | None = None if self.is_embedded else self._kind.Wire(self.engine)

    @property
    def name(self) -> str:
        """Where it is, without a password: for messages."""
        return self.url.set(query={}).render_as_string(hide_password=True)

    @property
    def file(self) -> Path:
        """Where SQLite keeps it."""
        return Path(self.url.database or "")

    async def open(self) -> None:
        """Create the tables in a new database.

        Raises `OldDatabase` where an upgrade is needed, `UnavailableDatabase` where it is blocked or out of reach just
        now, and another `DatabaseError` for one that cannot be used.
        """
        with self.explaining():
            await self._probe(must_exist=False)
            async with self.write() as connection:
                if await connection.run_sync(versions.read_version) == versions.EMPTY:
                    await connection.run_sync(_upgrades().create)
                await self._recognise(connection)

    async def open_existing(self) -> None:
        """Use the database of a service, which may be running, to read. Raises `DatabaseError` where there is none."""
        with self.explaining():
            await self._probe(must_exist=True)
            async with self.read() as connection:
                await self._recognise(connection)

    async def upgrade(self) -> tuple[str, str]:
        """Bring an existing database to the newest version of the schema: the versions before and after.

        No service may run on it. Raises `DatabaseError`; the database is then as it was.
        """
        with self.explaining():
            await self._probe(must_exist=True)
        with self.hold(), self.explaining():
            async with self.begin(**{sqlite.REMAKES_TABLES: True}) as connection:
                before = await connection.run_sync(versions.read_version)
                await connection.run_sync(_upgrades().upgrade, self._migrations)
                after = await connection.run_sync(versions.read_version)
            await self.engine.dispose()  # The connection that remade tables looks at no foreign keys.
        return before, after

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Be the service on this database inside the block; PostgreSQL has room for many.

        Raises `DatabaseError` when SQLite's one place is taken.
        """
        with ExitStack() as stack:
            if self.is_embedded:
                with self.explaining():
                    stack.enter_context(sqlite.hold(self.file))
            yield

    async def back_up(self, target: Path) -> None:
        """Copy the database into a new file, also while a service runs. Raises `DatabaseError`."""
        with self.explaining():
            if not self.is_embedded:
                raise DatabaseError("PostgreSQL's own pg_dump makes backups of it: see docs/reliability.md")
            await asyncio.to_thread(sqlite.back_up, self.file, target)

    async def _probe(self, *, must_exist: bool) -> None:
        if self.is_embedded:
            await asyncio.to_thread(sqlite.probe, self.file, must_exist=must_exist)

    async def _recognise(self, connection: AsyncConnection) -> None:
        await connection.run_sync(versions.check_version, self._migrations)
        self.secret = (await connection.execute(installation.select())).one().secret

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Whatever goes wrong with the database inside becomes a `DatabaseError` that names it."""
        try:
            yield
        except DatabaseError as error:
            raise type(error)(f"the database {self.name}: {error}") from None
        except (SQLAlchemyError, OSError, *self._kind.FAILURES) as error:
            advice = self._kind.advise(cause := _find_cause(error), self.file)
            kind = UnavailableDatabase if self._kind.is_passing(cause) else DatabaseError
            raise kind(f"the database {self.name}: {_describe(error)}{advice}") from None

    def is_passing(self, error: Exception) -> bool:
        """Whether this says that the database is out of reach or busy, which may be over a moment later."""
        is_its_own = isinstance(error, (SQLAlchemyError, OSError, *self._kind.FAILURES))
        return is_its_own and self._kind.is_passing(_find_cause(error))

    async def close(self) -> None:
        """Close every connection."""
        if self._syncing:
            await self._syncing
        for appender in self._appenders.values():
            await appender.close()
        await self.engine.dispose()

    @asynccontextmanager
    async def write(self, *, durable: bool = True) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that may write; it is the only one that does until it ends.

        What one that is not `durable` has written reaches the disk a moment later, as with `append`. What the caller's
        `GUARD` raises ends it before it begins.
        """
        async with self.begin(**{} if durable else {sqlite.HURRIES: True}) as connection:
            if guard := GUARD.get():
                await guard(connection)
            if not durable:
                await self._kind.hurry(connection)
            yield connection
        if not durable:
            self._sync_later()

    @asynccontextmanager
    async def begin(self, **options: Any) -> AsyncIterator[AsyncConnection]:
        """The same whatever claims are held, with these execution options of SQLAlchemy's."""
        async with self._turn, self.engine.connect() as connection, AsyncExitStack() as stack:
            if options:
                await connection.execution_options(**options)
            async with self._kind.impatience(self.engine):
                await stack.enter_async_context(connection.begin())
            yield connection

    async def append(
        self,
        table: Table,
        rows: Sequence[Mapping[str, Any]],
        key: str,
        common: Mapping[str, Any] = NOTHING,
        *,
        durable: bool = True,
    ) -> list[bool]:
        """Commit many rows at once, whatever claims are held: for each, whether it is new by its `key`.

        All have the same columns, and all of them the `common` values too. Those that are not `durable` outlive us
        whatever happens to us, but reach the disk a moment later: the database's machine may lose them with its power.
        Raises what the driver raises; nothing is stored then.
        """
        if self.is_embedded:
            async with self._turn:
                stored_now = await self._appenders[durable].append(table, rows, common)
            if not durable:
                self._sync_later()
            return stored_now
        async with self.begin() as connection:
            if not durable:
                await self._kind.hurry(connection)
            stored = Counter(await insert_all_new(connection, table, [{**row, **common} for row in rows], key))
        return [_take_one(stored, row[key]) for row in rows]

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that sees one moment of the database and writes nothing."""
        async with self.engine.connect() as connection:
            await connection.execution_options(reads_only=True, **self._kind.READ_OPTIONS)
            yield connection

    def _sync_later(self) -> None:
        if self.is_embedded:
            self._syncing = self._syncing or asyncio.create_task(self._sync_soon())

    async def _sync_soon(self) -> None:
        await asyncio.sleep(SYNC_AFTER_S)
        self._syncing = None  # What is committed from here on asks anew.
        with suppress(OSError):  # Every durable commit says so, too.
            await asyncio.to_thread(sqlite.sync, self.file)

    async def fold(self) -> None:
        """Let SQLite bring its log into its file; commits need not wait for it then. Nothing depends on it."""
        if self.is_embedded:
            with self.explaining():
                await asyncio.to_thread(sqlite.fold, self.file)

    async def accepts_writes(self) -> bool:
        """Whether a delivery could be stored just now."""
        async with self.write() as connection:
            await connection.execute(text("SELECT 1"))
        return True

    def notify(self) -> None:
        """Wake the other replicas, soon: call it after a commit that gives them something to do."""
        if self._wire:
            self._wire.call()

    async def on_change(self, ring: Callable[[], None]) -> None:
        """Call `ring` when another replica notifies; runs until cancelled where there may be others.

        Nothing may depend on it: a call can be lost, and can come without a reason.
        """
        if self._wire:
            await self._wire.listen(ring)


@asynccontextmanager
async def open_beside(url: str) -> AsyncIterator[Database]:
    """Have the database of a service that may be running. Raises `DatabaseError` where there is none."""
    database = Database(url)
    try:
        await database.open_existing()
        yield database
    finally:
        await database.close()


def _postgresql() -> ModuleType:
    """Its driver takes memory that a service on SQLite need not spend. What both kinds have, `sqlite` shows."""
    from runner.db import postgresql  # noqa: PLC0415

    return postgresql


def _upgrades() -> ModuleType:
    """Alembic takes memory and time that a service on a database of today need not spend."""
    from runner.db import upgrades  # noqa: PLC0415

    return upgrades


def _take_one(counted: Counter[Any], key: Any) -> bool:
    """Whether there is one left: the same key may come twice."""
    counted[key] -= 1
    return counted[key] >= 0


def _find_cause(error: Exception) -> BaseException:
    """What the driver itself raised."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def _describe(error: Exception) -> str:
    """What a driver says, without the statement and its values; where it says nothing, what happened."""
    cause = _find_cause(error)
    return " ".join(str(cause).split()) or type(cause).__name__
