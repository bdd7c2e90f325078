"""The webhook's group commit: many deliveries share one commit, which is on the disk before they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table

from runner.db import sqlite
from runner.db.sql import insert_all_new
from runner.db.sqlite_inserter import SqliteInserter

if TYPE_CHECKING:
    from runner.db.database import Database

NOTHING: Mapping[str, Any] = MappingProxyType({})


class GroupCommit:
    """Commits many rows at once. On SQLite, a commit is one call on a separate thread."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._inserter = SqliteInserter(partial(sqlite.connect, db.file), db.engine.dialect)
        """Used only with SQLite."""
        self._thread: ThreadPoolExecutor | None = None

    async def insert(
        self, table: Table, rows: Sequence[Mapping[str, Any]], key: str, common: Mapping[str, Any] = NOTHING
    ) -> list[bool]:
        """Commit rows without the check of claims. Returns for each row whether its `key` is new.

        All rows have the same columns, and all get the `common` values. If it raises an exception of the driver,
        nothing is stored.
        """
        if not self._db.is_embedded:
            async with self._db.write(checks_claim=False) as connection:
                return await insert_all_new(connection, table, [{**row, **common} for row in rows], key)
        async with self._db.turn:
            insert = self._inserter.bind(table, rows, common)
            self._thread = self._thread or ThreadPoolExecutor(1, "group-commit")
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._inserter.commit, insert)

    async def close(self) -> None:
        """Close the connection after the running commit."""
        if self._thread:
            await asyncio.to_thread(self._thread.shutdown)
            self._thread = None
        self._inserter.close()
