"""Rows that come many at a time, into SQLite: one transaction is one call on a thread of its own.

Through SQLAlchemy each statement goes to a thread and back, and is built anew for each number of rows; together that
costs more than storing the rows. What is stored is the same. It refuses to know any table.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from sqlalchemy import Dialect, Table

Binder = Callable[[Any], Any]
"""Makes of a value what the driver takes."""


def _keep(value: Any) -> Any:
    return value


class Appender:
    """A connection to one database, which `connect` opens; `append` is for one caller at a time."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], dialect: Dialect) -> None:
        self._connect = connect
        self._dialect = dialect
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._prepared: dict[tuple[str, tuple[str, ...]], tuple[str, Sequence[tuple[str, Binder]]]] = {}

    async def append(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Commit the rows, all with the same columns; False for each of which one that must be unique is there.

        Raises `sqlite3.Error`; nothing is stored then.
        """
        into, binders = self._prepare(table, tuple(rows[0]))
        values = [[bind(row[name]) for name, bind in binders] for row in rows]
        self._thread = self._thread or ThreadPoolExecutor(1, "appender")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, into, values)

    def _prepare(self, table: Table, names: tuple[str, ...]) -> tuple[str, Sequence[tuple[str, Binder]]]:
        """How the statement begins, and a binder for each value: found once."""
        if (table.name, names) not in self._prepared:
            binders = [(name, table.c[name].type.bind_processor(self._dialect)) for name in names]
            into = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES "  # noqa: S608
            self._prepared[table.name, names] = into, [(name, bind or _keep) for name, bind in binders]
        return self._prepared[table.name, names]

    def _write(self, into: str, rows: Sequence[Sequence[Any]]) -> list[bool]:
        if self._connection is None:
            self._connection = self._connect()
        one = f"({', '.join('?' * len(rows[0]))})"
        try:
            # Each statement lets go of the interpreter, and waits for its turn to have it back: so there is but one.
            self._connection.execute(into + ", ".join([one] * len(rows)), [value for row in rows for value in row])
        except sqlite3.IntegrityError:  # Some are there already, and nothing is stored.
            return self._write_new(f"{into}{one} ON CONFLICT DO NOTHING", rows)
        return [True] * len(rows)

    def _write_new(self, statement: str, rows: Sequence[Sequence[Any]]) -> list[bool]:
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        try:
            new = [connection.execute(statement, row).rowcount == 1 for row in rows]
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        return new

    async def close(self) -> None:
        """Close the connection, after what is under way. The next append opens another."""
        if self._thread:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            self._thread.shutdown(wait=False)
            self._thread = None

    def _close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None
