"""The database: how it is opened, and how a transaction is. What is in it stands in `runner.schema`."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from sqlalchemy import event, inspect, text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from runner.schema import SCHEMA_VERSION, installation, metadata

GUARD: ContextVar[Callable[[AsyncConnection], Awaitable[None]] | None] = ContextVar("guard", default=None)
"""What must be so for a transaction of this task to write anything; `runner.claims` sets it."""


class DatabaseError(Exception):
    """The database cannot be used; the message says what to do."""


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    # The driver must not open transactions by itself: `_begin` decides how they start.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A transaction that starts as a reader and then writes can fail at once with SQLITE_BUSY; one that starts as a
    # writer waits its turn.
    reads = connection.get_execution_options().get("reads_only", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


class Database:
    """The one way to the database. `write` is a transaction that commits when its block ends without an exception."""

    def __init__(self, url: str) -> None:
        self.secret = b""
        """Drawn once for a database, known after `open`."""
        self.engine = create_async_engine(url)
        event.listen(self.engine.sync_engine, "connect", _set_up_sqlite)
        event.listen(self.engine.sync_engine, "begin", _begin)

    @property
    def is_embedded(self) -> bool:
        """Whether it is a file of this machine, which one service has for itself."""
        return self.engine.dialect.name == "sqlite"

    async def open(self) -> None:
        """Create the tables in a new database. Raises `DatabaseError` for one that cannot be used."""
        await asyncio.to_thread(self._probe)
        async with self.write() as connection:
            if not await connection.run_sync(lambda sync: inspect(sync).has_table(installation.name)):
                await connection.run_sync(metadata.create_all)
                row = {"schema_version": SCHEMA_VERSION, "secret": secrets.token_bytes(32)}
                await connection.execute(installation.insert().values(**row))
            await self._recognise(connection)

    async def open_existing(self) -> None:
        """Use the database of a service, which may be running, to read. Raises `DatabaseError` where there is none."""
        if not Path(self.engine.url.database or "").is_file():
            raise DatabaseError(f"the database {self.engine.url}: there is no such file")
        await asyncio.to_thread(self._probe)
        async with self.read() as connection:
            if not await connection.run_sync(lambda sync: inspect(sync).has_table(installation.name)):
                raise DatabaseError(f"the database {self.engine.url} is not one of ptq-bot")
            await self._recognise(connection)

    async def _recognise(self, connection: AsyncConnection) -> None:
        found = (await connection.execute(installation.select())).one()
        if found.schema_version != SCHEMA_VERSION:
            needs = f"this version of ptq-bot needs {SCHEMA_VERSION}"
            raise DatabaseError(f"the database has schema {found.schema_version}, {needs}")
        self.secret = found.secret

    def _probe(self) -> None:
        # The driver's own thread complains on standard error when a connection that failed outlives the event loop.
        try:
            with closing(sqlite3.connect(self.engine.url.database or "")) as connection:
                connection.execute("PRAGMA schema_version")
        except sqlite3.Error as error:
            raise DatabaseError(f"the database {self.engine.url}: {error}") from None

    async def close(self) -> None:
        """Close every connection."""
        await self.engine.dispose()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that may write, whatever claims are held."""
        async with self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that may write; what the caller's `GUARD` raises ends it before it begins."""
        async with self.begin() as connection:
            if guard := GUARD.get():
                await guard(connection)
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that sees one moment of the database and writes nothing."""
        async with self.engine.connect() as connection:
            await connection.execution_options(reads_only=True)
            yield connection

    async def accepts_writes(self) -> bool:
        """Whether a delivery could be stored just now."""
        async with self.write() as connection:
            await connection.execute(text("SELECT 1"))
        return True
