"""One cache of compiled statements for all engines of SQLite. Each test has its own engine, and SQLAlchemy takes longer
to compile a statement than SQLite takes to run it.

`make_engine` gives all of them the same options, so a statement that was compiled for one is right for all.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import LRUCache

from runner.db import sqlite

_make_engine = sqlite.make_engine
_compiled: LRUCache[Any, Any] = LRUCache(5_000)


def share_compiled_statements() -> None:
    """Let all engines that are made from now on share what they compile."""
    SQLiteDialect_aiosqlite.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
    SQLiteDialect_aiosqlite.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    sqlite.make_engine = _make_sharing_engine


def _make_sharing_engine(url: URL) -> AsyncEngine:
    engine = _make_engine(url)
    engine.sync_engine._compiled_cache = _compiled
    return engine
