"""Rows that come many at a time, into SQLite: one transaction is one call on a thread of its own.

Through SQLAlchemy each statement goes to a thread and back, and is built anew for each number of rows; together that
costs more than storing the rows. What is stored is the same. It refuses to know any table.
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

from runner.db.sqlite import be_patient

Binder = Callable[[Any], Any]
"""Makes of a value what the driver takes."""


def _keep(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _Statement:
    """How rows with certain columns are written; what they have in common is said once."""

    begin: str
    row: str
    """The places of a row's values, those of what is common first."""
    common: Sequence[tuple[str, Binder]]
    own: Sequence[tuple[str, Binder]]


class Appender:
    """A connection to one database, which `connect` opens; `append` is for one caller at a time.

    One that is not `durable` has no disk to wait for: to write takes it less time than to have a thread do it.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], dialect: Dialect, *, durable: bool) -> None:
        self._connect = connect
        self._dialect = dialect
        self._durable = durable
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._prepared: dict[tuple[str, tuple[str, ...], tuple[str, ...]], _Statement] = {}

    async def append(self, table: Table, rows: Sequence[Mapping[str, Any]], common: Mapping[str, Any]) -> list[bool]:
        """Commit the rows, all with the same columns; False for each of which one that must be unique is there.

        Raises `sqlite3.Error`; nothing is stored then.
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
        """As `append`, for one that is not `durable`; None where another process was about to write."""
        with pass_over_busy():
            return self._write(*self._bind(table, rows, common))
        return None

    def _bind(
        self, table: Table, rows: Sequence[Mapping[str, Any]], common: Mapping[str, Any]
    ) -> tuple[_Statement, Sequence[Any], Sequence[Sequence[Any]]]:
        statement = self._prepare(table, tuple(common), tuple(rows[0]))
        first = [bind(common[name]) for name, bind in statement.common]
        return statement, first, [[bind(row[name]) for name, bind in statement.own] for row in rows]

    def _prepare(self, table: Table, common: tuple[str, ...], own: tuple[str, ...]) -> _Statement:
        """How to write such rows: found once."""
        if (table.name, common, own) not in self._prepared:
            begin = f"INSERT INTO {table.name} ({', '.join(common + own)}) VALUES "  # noqa: S608
            places = [f"?{number}" for number in range(1, len(common) + 1)] + ["?"] * len(own)
            binders = [[(name, self._find_binder(table, name)) for name in names] for names in (common, own)]
            self._prepared[table.name, common, own] = _Statement(begin, f"({', '.join(places)})", *binders)
        return self._prepared[table.name, common, own]

    def _find_binder(self, table: Table, name: str) -> Binder:
        return table.c[name].type.dialect_impl(self._dialect).bind_processor(self._dialect) or _keep

    def _write_in_turn(self, statement: _Statement, common: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[bool]:
        """Wait, if need be, until another process has written; the event loop must not."""
        self._connection = self._connection or self._connect()
        if self._durable:
            return self._write(statement, common, rows)
        with be_patient(self._connection):
            return self._write(statement, common, rows)

    def _write(self, statement: _Statement, common: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[bool]:
        self._connection = self._connection or self._connect()
        try:
            # Each statement lets go of the interpreter, and waits for its turn to have it back: so there is but one.
            whole = statement.begin + ", ".join([statement.row] * len(rows))
            self._connection.execute(whole, [*common, *chain.from_iterable(rows)])
        except sqlite3.IntegrityError:  # Some are there already, and nothing is stored.
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
        """Close the connection, after what is under way. The next append opens another."""
        if self._thread:
            await asyncio.to_thread(self._thread.shutdown)
            self._thread = None
        if self._connection:
            self._connection.close()
            self._connection = None


@contextmanager
def pass_over_busy() -> Iterator[None]:
    """Go on after the block where somebody else was about to write: nothing was written in it."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # https://www.sqlite.org/rescode.html
            raise
