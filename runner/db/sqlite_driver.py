"""The driver of SQLite: a short read runs on the event loop, everything else on the connection's own thread.

Most of our reads take less time than it takes to hand one statement to a thread and back, and one transaction is
handed over nine times. Writes and commits wait for locks and for the disk, so they always go to the thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import aiosqlite

MAX_STEPS = 20_000
"""Instructions of SQLite's virtual machine after which a read leaves the event loop: about a millisecond's work."""

LONG = "/* long */"
"""A mark after the `SELECT` of a query. A marked query goes to the thread, because reading megabytes of text takes few
instructions, but long."""

MAX_TURN_S = 0.002
"""How many seconds the reads of one connection may keep the event loop busy without a break."""


def connect(*where: Any, **options: Any) -> Awaitable[aiosqlite.Connection]:
    """Open a connection. The arguments are those of `sqlite3.connect`."""
    options["check_same_thread"] = False
    return _SqliteConnection(partial(sqlite3.connect, *where, **options), iter_chunk_size=64)


class _SqliteConnection(aiosqlite.Connection):
    """A connection that counts the calls that its thread still has to make. Before that, nothing else may use it."""

    def __init__(self, connector: Callable[[], sqlite3.Connection], iter_chunk_size: int) -> None:
        super().__init__(connector, iter_chunk_size)
        self._thread.daemon = True
        self._handed_over = 0
        self._done = 0
        self._turn_began = 0.0
        self._stopped: asyncio.Future[None] | None = None

    def stop(self) -> asyncio.Future[None] | None:
        """End the thread, once. SQLAlchemy asks again if a task is cancelled while it closes a connection.

        Nobody would answer the second request, and the process could not end.
        """
        if self._stopped is None:
            self._stopped = super().stop()
        return self._stopped

    def cursor(self) -> Any:
        return _SqliteCursor(self, self._conn.cursor())

    async def rollback(self) -> None:
        await self.run(self._conn.rollback)

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._handed_over += 1
        try:
            return await super()._execute(self._count, fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            self._turn_began = time.monotonic()

    def _count(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            self._done += 1

    def begin_at_once(self) -> bool:
        """Begin a transaction without a lock, and without the work that a statement is for SQLAlchemy.

        Returns False if that is not possible now: the thread is still busy for a task that was cancelled, or SQLite
        refuses. The caller then has SQLAlchemy begin, which waits for the thread and explains a refusal.
        """
        if self._handed_over != self._done:
            return False
        try:
            self._conn.execute("BEGIN")
        except sqlite3.Error:
            return False
        return True

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call something short here, or on the thread if that is still busy for a task that was cancelled."""
        if self._handed_over != self._done:
            return await self._execute(function, *args)
        return function(*args)

    async def read(self, function: Callable[[], Any]) -> Any:
        """Run a statement here, or on the thread if it turns out to be long."""
        if time.monotonic() - self._turn_began > MAX_TURN_S:
            await asyncio.sleep(0)
            self._turn_began = time.monotonic()
        if self._handed_over != self._done:
            return await self._execute(function)
        # The handler is set only for this read. On the thread, SQLite would hold its own lock while it waits for
        # Python's lock, and a cursor that is deleted here holds Python's lock while it waits for SQLite's.
        self._conn.set_progress_handler(_interrupt, MAX_STEPS)
        try:
            return function()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
        finally:
            self._conn.set_progress_handler(None, 0)
        return await self._execute(function)


def _interrupt() -> bool:
    return True


class _SqliteCursor(aiosqlite.Cursor):
    """A cursor that reads all rows of a statement at once, because SQLAlchemy asks for all rows directly afterwards."""

    _conn: _SqliteConnection

    async def execute(self, sql: str, parameters: Iterable[Any] | None = None) -> aiosqlite.Cursor:
        self._rows: list[Any] = []
        # `BEGIN` alone takes no lock, so it waits for nobody; `BEGIN IMMEDIATE` does.
        if sql == "BEGIN" or (sql.startswith("SELECT") and not sql.startswith(f"SELECT {LONG}")):
            self._rows = await self._conn.read(partial(self._read, sql, parameters or ()))
        else:
            self._rows = await self._conn._execute(self._read, sql, parameters or ())
        return self

    async def fetchall(self) -> list[Any]:
        return self._rows

    async def close(self) -> None:
        await self._conn.run(self._cursor.close)

    def _read(self, sql: str, parameters: Any) -> list[Any]:
        self._cursor.execute(sql, parameters)
        return self._cursor.fetchall()
