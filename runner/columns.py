"""Types of columns that mean the same on SQLite and PostgreSQL: read `String`, `Text` and `Integer` from here.

It refuses to know any table.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy
from sqlalchemy import BigInteger, DateTime, Dialect, TypeDecorator

from runner.characters import make_storable

Integer = BigInteger().with_variant(sqlalchemy.Integer, "sqlite")
"""64 bits, as GitHub's ids need. SQLite has them in an INTEGER, and counts up by itself in nothing else."""


class String(TypeDecorator[str]):
    """Text of at most that many characters, which is any text that somebody may have sent."""

    impl = sqlalchemy.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace what a database would refuse: one bad character must not hold up what it came with."""
        return None if value is None else make_storable(value)


class Text(TypeDecorator[str]):
    """Text of any length, whatever is in it."""

    impl = sqlalchemy.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace what a database would refuse."""
        return None if value is None else make_storable(value)


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC in Python; SQLite, which knows no time zones, gets it without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time without a zone: it would mean something else on each host."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give back what was stored, aware."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value
