"""Differences between SQLite and PostgreSQL: inserts of rows that may exist already, long reads, the clock, an option.

This module knows no table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Float, Select, Table, literal
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from runner.db.columns import UtcDateTime
from runner.db.sqlite_driver import LONG

Row = TypeVar("Row", bound=tuple[Any, ...])

ASYNC_COMMIT = "async_commit"
"""The execution option of a transaction whose commit need not wait for the disk."""


def mark_long(query: Select[Row]) -> Select[Row]:
    """Mark a query that may return megabytes, so that SQLite does not read them on the event loop."""
    return query.prefix_with(LONG)


async def insert_new(connection: AsyncConnection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row. Returns False, and changes nothing, if a unique key exists already."""
    statement = _insert(connection, table).values(**values).on_conflict_do_nothing()
    return (await connection.execute(statement)).rowcount == 1


async def insert_all_new(
    connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]], key: str
) -> list[bool]:
    """Insert many rows at once, except those whose unique `key` exists already. Returns for each whether it is new."""
    statement = _insert(connection, table).on_conflict_do_nothing().returning(table.c[key])
    stored = Counter((await connection.execute(statement, rows)).scalars())
    return [_take_one(stored, row[key]) for row in rows]


def _take_one(counted: Counter[Any], key: Any) -> bool:
    """Whether a key is left in the count, and count it down. The same key may come twice."""
    counted[key] -= 1
    return counted[key] >= 0


async def upsert(
    connection: AsyncConnection,
    table: Table,
    values: Mapping[str, Any],
    keep: Collection[str] = (),
    where: ColumnElement[bool] | None = None,
) -> bool:
    """Insert a row, or update the row with the same primary key. Columns in `keep` are set only in a new row.

    Returns False, and changes nothing, if the row exists but `where` does not hold for it.
    """
    statement = _insert(connection, table).values(**values)
    key = [column.name for column in table.primary_key]
    changed = {name: statement.excluded[name] for name in values if name not in (*key, *keep)}
    written = statement.on_conflict_do_update(index_elements=key, set_=changed, where=where)
    return (await connection.execute(written)).rowcount == 1


def _insert(connection: AsyncConnection, table: Table) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


class _Clock(FunctionElement[datetime]):
    name = "db_clock"
    inherit_cache = True
    type = UtcDateTime()


def db_clock(ahead_s: float = 0.0) -> FunctionElement[datetime]:
    """The database's clock plus `ahead_s`, to store in a `UtcDateTime` or compare with one.

    It is the only clock that all replicas share. SQLite's has milliseconds, PostgreSQL's microseconds.
    """
    return _Clock(literal(float(ahead_s), Float()))


@compiles(_Clock, "sqlite")
def _compile_for_sqlite(element: _Clock, compiler: SQLCompiler, **options: Any) -> str:
    # SQLite compares times as text, so this must be exactly the text that SQLAlchemy stores.
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', {compiler.process(element.clauses, **options)} || ' seconds')"


@compiles(_Clock, "postgresql")
def _compile_for_postgresql(element: _Clock, compiler: SQLCompiler, **options: Any) -> str:
    return f"(clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **options)}))"
