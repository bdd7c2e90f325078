"""Types of columns that mean the same on SQLite and PostgreSQL: read `String`, `Text` and `Integer` from here.

It refuses to know any table.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import sqlalchemy
import zstandard
from sqlalchemy import BigInteger, Column, DateTime, Dialect, TypeDecorator

from runner.characters import make_storable

COMPRESSION = 1
"""Zstandard's level: the higher ones take longer and save little of a payload."""

LISTED = ("repository", "private", "thread", "state", "preset", "agent", "machine", "requested_by", "name")
"""What jobs are found by in lists: all of it is in one index, so that no long row is read to be left out."""

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


class _Codec(threading.local):
    """Making a compressor takes longer than using it, and two threads must not use the same."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(COMPRESSION).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_CODEC = _Codec()


class Compressed(TypeDecorator[bytes]):
    """Bytes that are stored in a fraction of their size. What was stored before they were compressed is read as it is.

    It must be nothing that begins like compressed bytes (https://www.rfc-editor.org/rfc/rfc8878#section-3.1.1).
    """

    impl = sqlalchemy.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Compress."""
        return None if value is None else _CODEC.compress(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Give back what was stored."""
        return _CODEC.decompress(value) if value and value.startswith(zstandard.FRAME_HEADER) else value


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


def describe_tries() -> list[Column[Any]]:
    """The columns of an effect: what is to be outside, and is tried again until it is there."""
    return [
        Column("attempts", Integer, nullable=False, default=0),
        Column("refusals", Integer, nullable=False, default=0),  # times that the other side said no, in a row
        Column("next_attempt_at", UtcDateTime, nullable=False),
        Column("trouble", Text),  # why it waits
        Column("abandoned", Text),  # why it is tried no more
    ]
