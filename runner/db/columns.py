"""Column types that behave the same on SQLite and PostgreSQL. Import `String`, `Text` and `Integer` from here.

This module knows no table.
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
"""Zstandard's level: higher levels are slower and save little on a payload."""

LISTED = ("repository", "private", "thread", "state", "preset", "agent", "machine", "requested_by", "name")
"""The columns that lists filter jobs by. One index holds them all, so that filtering reads no long rows."""

Integer = BigInteger().with_variant(sqlalchemy.Integer, "sqlite")
"""64 bits, as GitHub's ids need. SQLite's INTEGER has 64 bits, and is its only type that can count up by itself."""


class String(TypeDecorator[str]):
    """Text with a maximum length, from any source."""

    impl = sqlalchemy.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace characters that a database rejects, so that one bad character does not block the whole row."""
        return None if value is None else make_storable(value)


class Text(TypeDecorator[str]):
    """Text of any length, from any source."""

    impl = sqlalchemy.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace characters that a database rejects."""
        return None if value is None else make_storable(value)


class _Codec(threading.local):
    """One compressor per thread: creating one takes longer than using it, and threads cannot share it."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(COMPRESSION).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_CODEC = _Codec()


class Compressed(TypeDecorator[bytes]):
    """Bytes that are stored compressed. Older, uncompressed values are returned as they are.

    Those must not begin like compressed bytes (https://www.rfc-editor.org/rfc/rfc8878#section-3.1.1).
    """

    impl = sqlalchemy.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Compress."""
        return None if value is None else _CODEC.compress(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Decompress."""
        return _CODEC.decompress(value) if value and value.startswith(zstandard.FRAME_HEADER) else value


class UtcDateTime(TypeDecorator[datetime]):
    """A UTC time with its time zone; SQLite stores it without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Reject a time without a time zone, because its meaning would depend on the host."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Add the time zone."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def retry_columns() -> list[Column[Any]]:
    """The columns of an effect: a row that must reach the outside, with retries until it does."""
    return [
        Column("attempts", Integer, nullable=False, default=0),
        Column("refusals", Integer, nullable=False, default=0),  # how often in a row the other side refused
        Column("absences", Integer, nullable=False, default=0),  # how many of the last refusals were 404, in a row
        Column("next_attempt_at", UtcDateTime, nullable=False),
        Column("trouble", Text),  # why it waits
        Column("abandoned", Text),  # why it is not tried again
    ]
