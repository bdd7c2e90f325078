"""Inserts many rows at once into SQLite, on a connection of its own.

SQLAlchemy passes each statement to a thread and back, and compiles it again for each number of rows. Together that
costs more than the insert. The stored rows are the same. This module knows no table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import Dialect, Table

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


@dataclass(frozen=True, slots=True)
class Insert:
    """An INSERT with the driver's values."""

    statement: _Statement
    common: Sequence[Any]
    rows: Sequence[Sequence[Any]]


class SqliteInserter:
    """A connection to one database, which `connect` opens before the first insert. It supports one caller at a time."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], dialect: Dialect) -> None:
        self._connect = connect
        self._dialect = dialect
        self._connection: sqlite3.Connection | None = None
        self._prepared: dict[tuple[str, tuple[str, ...], tuple[str, ...]], _Statement] = {}

    def bind(self, table: Table, rows: Sequence[Mapping[str, Any]], common: Mapping[str, Any]) -> Insert:
        """Prepare an insert of rows, which all have the same columns, and all get the `common` values."""
        statement = self._prepare(table, tuple(common), tuple(rows[0]))
        first = [bind(common[name]) for name, bind in statement.common]
        return Insert(statement, first, [[bind(row[name]) for name, bind in statement.own] for row in rows])

    def commit(self, insert: Insert) -> list[bool]:
        """Commit the rows, on any thread. Returns False for each row whose unique key exists already.

        If it raises `sqlite3.Error`, nothing is stored.
        """
        self._connection = self._connection or self._connect()
        statement, common, rows = insert.statement, insert.common, insert.rows
        try:
            # One statement, because each statement releases the interpreter lock and waits to get it back.
            whole = statement.begin + ", ".join([statement.row] * len(rows))
            self._connection.execute(whole, [*common, *chain.from_iterable(rows)])
        except sqlite3.IntegrityError:  # Some rows exist already, and nothing was stored.
            one = f"{statement.begin}{statement.row} ON CONFLICT DO NOTHING"
            return _commit_new(self._connection, one, [[*common, *row] for row in rows])
        return [True] * len(rows)

    def close(self) -> None:
        """Close the connection. The next insert opens a new one."""
        if self._connection:
            self._connection.close()
            self._connection = None

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


def _commit_new(connection: sqlite3.Connection, statement: str, rows: Sequence[Sequence[Any]]) -> list[bool]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        new = [connection.execute(statement, row).rowcount == 1 for row in rows]
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return new
