"""Inserts many rows at once into SQLite: each transaction is one call on a separate thread.

SQLAlchemy passes each statement to a thread and back, and compiles it again for each number of rows. Together that
costs more than the insert. The stored rows are the same. This module knows no table.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import Dialect, Table

from runner.db.sqlite import waiting_for_lock

Binder = Callable[[Any], Any]
"""Converts a value to the driver's form."""


def _keep(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _Statement:
    """An INSERT for rows with certain columns. Values that all rows share are passed only once."""

    begin: str
    row: str
    """The placeholders of a row, those of common values first."""
    common: Sequence[tuple[str, Binder]]
    own: Sequence[tuple[str, Binder]]


class Appender:
    """A connection to one database, opened by `connect`. `append` supports one caller at a time.

    If it is not `durable`, it writes without a thread: it need not wait for the disk, and a thread would cost more than
    the write.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], dialect: Dialect, *, durable: bool) -> None:
        self._connect = connect
        self._dialect = dialect
        self._durable = durable
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._prepared: dict[tuple[str, tuple[str, ...], tuple[str, ...]], _Statement] = {}

    async def append(self, table: Table, rows: Sequence[Mapping[str, Any]], common: Mapping[str, Any]) -> list[bool]:
        """Commit the rows, which all have the same columns. False for a row whose unique key exists already.

        Raises `sqlite3.Error`; then nothing is stored.
        """
        if not self._durable and (stored := self._append_at_once(table, rows, common)) is not None:
            return stored
        statement, first, values = self._bind(table, rows, common)
        self._thread = self._thread or ThreadPoolExecutor(1, "appender")
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._write_in_turn, statement, first, values
        )

    def _append_at_once(
        self, table: Table, rows: Sequence[Mapping[str, Any]], common: Mapping[str, Any]
    ) -> list[bool] | None:
        """Append without a thread. None if another process holds the lock."""
        with ignoring_busy():
            return self._write(*self._bind(table, rows, common))
        return None

    def _bind(
        self, table: Table, rows: Sequence[Mapping[str, Any]], common: Mapping[str, Any]
    ) -> tuple[_Statement, Sequence[Any], Sequence[Sequence[Any]]]:
        statement = self._prepare(table, tuple(common), tuple(rows[0]))
        first = [bind(common[name]) for name, bind in statement.common]
        return statement, first, [[bind(row[name]) for name, bind in statement.own] for row in rows]

    def _prepare(self, table: Table, common: tuple[str, ...], own: tuple[str, ...]) -> _Statement:
        """The statement for rows with these columns, from the cache if possible."""
        if (table.name, common, own) not in self._prepared:
            begin = f"INSERT INTO {table.name} ({', '.join(common + own)}) VALUES "  # noqa: S608
            places = [f"?{number}" for number in range(1, len(common) + 1)] + ["?"] * len(own)
            binders = [[(name, self._find_binder(table, name)) for name in names] for names in (common, own)]
            self._prepared[table.name, common, own] = _Statement(begin, f"({', '.join(places)})", *binders)
        return self._prepared[table.name, common, own]

    def _find_binder(self, table: Table, name: str) -> Binder:
        return table.c[name].type.dialect_impl(self._dialect).bind_processor(self._dialect) or _keep

    def _write_in_turn(self, statement: _Statement, common: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[bool]:
        """Wait for another process to finish writing, on the thread and not on the event loop."""
        self._connection = self._connection or self._connect()
        if self._durable:
            return self._write(statement, common, rows)
        with waiting_for_lock(self._connection):
            return self._write(statement, common, rows)

    def _write(self, statement: _Statement, common: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[bool]:
        self._connection = self._connection or self._connect()
        try:
            # One statement, because each statement releases the interpreter lock and waits to get it back.
            whole = statement.begin + ", ".join([statement.row] * len(rows))
            self._connection.execute(whole, [*common, *chain.from_iterable(rows)])
        except sqlite3.IntegrityError:  # Some rows exist already, and nothing was stored.
            one = f"{statement.begin}{statement.row} ON CONFLICT DO NOTHING"
            return self._write_new(one, [[*common, *row] for row in rows])
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
        """Close the connection after running appends. The next append opens a new one."""
        if self._thread:
            await asyncio.to_thread(self._thread.shutdown)
            self._thread = None
        if self._connection:
            self._connection.close()
            self._connection = None


@contextmanager
def ignoring_busy() -> Iterator[None]:
    """Leave the block without an error if another process holds the lock. Nothing was written then."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # https://www.sqlite.org/rescode.html
            raise
