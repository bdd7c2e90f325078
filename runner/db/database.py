"""The database: how it is opened, and its transactions. `runner.db.schema` has the tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db import sqlite, versions
from runner.db.errors import DatabaseError, UnavailableDatabase
from runner.db.group_commit import GroupCommit
from runner.db.relaxed_commit import RelaxedCommit
from runner.db.schema import installation

if TYPE_CHECKING:
    from runner.db.postgresql import PgNotifier

BEFORE_WRITE: ContextVar[Callable[[AsyncConnection], Awaitable[None]] | None] = ContextVar("before_write", default=None)
"""A check that each write transaction of this task makes first. The check raises to stop the write.

Set by `runner.rows.claims`.
"""


class Database:
    """The only access to the database: `read` and `write` open transactions.

    Two kinds of commits are cheaper than a transaction for each row: `group_commit` and `relaxed_commit`. The URL
    begins with `sqlite+aiosqlite:///` or `postgresql+asyncpg://`.
    """

    def __init__(self, url: str, migrations: Path = versions.MIGRATIONS) -> None:
        self.secret = b""
        """Random, created once for each database. Known after `open`."""
        self.url = make_url(url)
        self._migrations = migrations
        self.is_embedded = self.url.get_backend_name() == "sqlite"
        """Whether the database is a file on this machine, which only one service can use."""
        self._kind = sqlite if self.is_embedded else _postgresql()
        self.engine = self._kind.make_engine(self.url)
        self.turn = asyncio.Lock()
        """Held while this process writes. SQLite's own queue of writers polls and is not fair. In PostgreSQL, this
        process must not take many places in the queue, because it may stall."""
        self.group_commit = GroupCommit(self)
        self.relaxed_commit = RelaxedCommit(self)
        self._notifier: PgNotifier | None = None if self.is_embedded else self._kind.PgNotifier(self.engine)

    @property
    def name(self) -> str:
        """The URL without its password, for messages."""
        return self.url.set(query={}).render_as_string(hide_password=True)

    @property
    def file(self) -> Path:
        """SQLite's file."""
        return Path(self.url.database or "")

    async def open(self) -> None:
        """Open the database, and create the tables if it is new.

        Raises `OldDatabase` if it needs an upgrade, `UnavailableDatabase` if it is locked or unreachable at the moment,
        and another `DatabaseError` if it cannot be used.
        """
        with self.explaining():
            await self._probe(must_exist=False)
            async with self.write() as connection:
                if await connection.run_sync(versions.read_version) == versions.EMPTY:
                    await connection.run_sync(_upgrades().create)
                await self._check_version(connection)

    async def open_existing(self) -> None:
        """Open the database of a service, which may be running, for reading.

        Raises `DatabaseError` if there is none.
        """
        with self.explaining():
            await self._probe(must_exist=True)
            async with self.read() as connection:
                await self._check_version(connection)

    async def upgrade(self) -> tuple[str, str]:
        """Migrate an existing database to the newest version of the schema. Returns the versions before and after.

        No service may be running. Raises `DatabaseError`; the database is then unchanged.
        """
        with self.explaining():
            await self._probe(must_exist=True)
        with self.hold(), self.explaining():
            async with self.write(**{sqlite.REMAKES_TABLES: True}) as connection:
                before = await connection.run_sync(versions.read_version)
                await connection.run_sync(_upgrades().upgrade, self._migrations)
                after = await connection.run_sync(versions.read_version)
            await self.engine.dispose()  # The connection of the migration does not check foreign keys.
        return before, after

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Act as the service of this database inside the block. PostgreSQL allows several services.

        Raises `DatabaseError` if SQLite's file already has one.
        """
        with ExitStack() as stack:
            if self.is_embedded:
                with self.explaining():
                    stack.enter_context(sqlite.hold(self.file))
            yield

    async def back_up(self, target: Path) -> None:
        """Copy the database into a new file. A service may be running. Raises `DatabaseError`."""
        with self.explaining():
            if not self.is_embedded:
                raise DatabaseError("use PostgreSQL's pg_dump for backups: see docs/reliability.md")
            await asyncio.to_thread(sqlite.back_up, self.file, target)

    async def _probe(self, *, must_exist: bool) -> None:
        if self.is_embedded:
            await asyncio.to_thread(sqlite.probe, self.file, must_exist=must_exist)

    async def _check_version(self, connection: AsyncConnection) -> None:
        await connection.run_sync(versions.check_version, self._migrations)
        self.secret = (await connection.execute(installation.select())).one().secret

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Convert any error of the database inside the block to a `DatabaseError` that names the database."""
        try:
            yield
        except DatabaseError as error:
            raise type(error)(f"the database {self.name}: {error}") from None
        except (SQLAlchemyError, OSError, *self._kind.FAILURES) as error:
            advice = self._kind.advise(cause := _find_cause(error), self.file)
            kind = UnavailableDatabase if self._kind.is_transient(cause) else DatabaseError
            raise kind(f"the database {self.name}: {_describe(error)}{advice}") from None

    def is_transient(self, error: Exception) -> bool:
        """Whether this error says that the database is unreachable or busy. That may be over soon."""
        is_its_own = isinstance(error, (SQLAlchemyError, OSError, *self._kind.FAILURES))
        return is_its_own and self._kind.is_transient(_find_cause(error))

    async def close(self) -> None:
        """Close every connection."""
        await self.group_commit.close()
        await self.relaxed_commit.close()
        await self.engine.dispose()

    @asynccontextmanager
    async def write(self, *, checks_claim: bool = True, **options: Any) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that may write. No other transaction writes until it ends.

        It commits if its block ends without an exception, and is durable then. It first calls the task's
        `BEFORE_WRITE`, unless `checks_claim` is false. The `options` are execution options of the engine.
        """
        async with self.turn, self.engine.connect() as connection, AsyncExitStack() as stack:
            if options:
                await connection.execution_options(**options)
            async with self._kind.ending_stalled_writers(self.engine):
                await stack.enter_async_context(connection.begin())
            if checks_claim and (check := BEFORE_WRITE.get()):
                await check(connection)
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Open a read-only transaction that sees a snapshot of the database."""
        async with self.engine.connect() as connection:
            await connection.execution_options(reads_only=True, **self._kind.READ_OPTIONS)
            yield connection

    async def checkpoint(self) -> None:
        """Copy SQLite's log into its file, so that commits need not do that. This is only an optimisation."""
        if self.is_embedded:
            with self.explaining():
                await asyncio.to_thread(sqlite.checkpoint, self.file)

    async def accepts_writes(self) -> bool:
        """Whether a delivery could be stored now."""
        async with self.write() as connection:
            await connection.execute(text("SELECT 1"))
        return True

    def notify(self) -> None:
        """Wake the other replicas soon. Call it after a commit that gives them work."""
        if self._notifier:
            self._notifier.notify()

    async def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` when another replica notifies. Runs until cancelled, or returns at once if there are no others.

        Nothing may depend on it: a notification can be lost, and can come without a reason.
        """
        if self._notifier:
            await self._notifier.listen(notify)


@asynccontextmanager
async def open_existing_database(url: str) -> AsyncIterator[Database]:
    """Open the database of a service that may be running. Raises `DatabaseError` if there is none."""
    database = Database(url)
    try:
        await database.open_existing()
        yield database
    finally:
        await database.close()


def _postgresql() -> ModuleType:
    """The module for PostgreSQL. It is imported only if needed, because the driver takes memory.

    `sqlite` shows the functions that both modules have.
    """
    from runner.db import postgresql  # noqa: PLC0415

    return postgresql


def _upgrades() -> ModuleType:
    """The module for upgrades. It is imported only if needed, because Alembic takes memory and time."""
    from runner.db import upgrades  # noqa: PLC0415

    return upgrades


def _find_cause(error: Exception) -> BaseException:
    """The exception of the driver itself."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def _describe(error: Exception) -> str:
    """The driver's message without the statement and its values. The exception's name if there is no message."""
    cause = _find_cause(error)
    return " ".join(str(cause).split()) or type(cause).__name__
