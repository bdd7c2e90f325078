"""Commits that need not be on the disk when they return: calls to models, and meters.

A disk can take 20 ms to confirm a row, and an agent would wait for that twice in each turn. A crash of the service
loses none of these commits. If the database's machine loses power, it may lose those of the last moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db import sqlite
from runner.db.sql import ASYNC_COMMIT, insert_all_new
from runner.db.sqlite_inserter import SqliteInserter

if TYPE_CHECKING:
    from runner.db.database import Database

SYNC_AFTER_S = 0.1
"""The seconds from a commit on SQLite to the sync of the disk. Later commits share it. PostgreSQL syncs within 1 s."""


class RelaxedCommit:
    """Transactions and inserts that reach the disk a moment after their commit. Everybody sees them at once."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._inserter = SqliteInserter(partial(sqlite.connect_relaxed, db.file), db.engine.dialect)
        """Used only with SQLite."""
        self._syncing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def write(self, *, checks_claim: bool = True) -> AsyncIterator[AsyncConnection]:
        """Like `Database.write`."""
        async with self._db.write(checks_claim=checks_claim, **{ASYNC_COMMIT: True}) as connection:
            yield connection
        self._sync_later()

    async def insert(self, table: Table, rows: Sequence[Mapping[str, Any]], key: str) -> list[bool]:
        """Like `GroupCommit.insert`."""
        if self._db.is_embedded:
            async with self._db.turn:
                with sqlite.ignoring_busy():
                    # No thread: a thread would cost more than the write.
                    stored = self._inserter.commit(self._inserter.bind(table, rows, {}))
                    self._sync_later()
                    return stored
        # On PostgreSQL, or if another process is writing to SQLite's file. This waits for that process.
        async with self.write(checks_claim=False) as connection:
            return await insert_all_new(connection, table, rows, key)

    async def close(self) -> None:
        """Sync the disk, and close the connection."""
        if self._syncing:
            await self._syncing
        self._inserter.close()

    def _sync_later(self) -> None:
        if self._db.is_embedded:
            self._syncing = self._syncing or asyncio.create_task(self._sync_soon())

    async def _sync_soon(self) -> None:
        await asyncio.sleep(SYNC_AFTER_S)
        self._syncing = None  # Later commits start a new wait.
        with suppress(OSError):  # A durable commit will report the error.
            await asyncio.to_thread(sqlite.sync, self._db.file)
