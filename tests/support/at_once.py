"""Everything on one thread, for tests that try thousands of orders: most of their time would go into changing threads.

SQLite is still the real one. A transaction then also ends before anything else runs, so that nobody waits for a lock.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import aiosqlite
from sqlalchemy import event

from runner.db.database import Database


async def hasten(database: Database) -> None:
    """Let this database, and whatever the running loop gives to threads, be worked right here.

    Its commits do not wait for the disk: nobody pulls the plug here.
    """
    asyncio.get_running_loop().set_default_executor(_AtOnce())
    engine = database.engine.sync_engine
    event.listen(engine, "do_connect", lambda _dialect, _record, _args, how: how.update(async_creator_fn=_open))
    event.listen(engine, "connect", lambda it, _: it.execute("PRAGMA synchronous=OFF"))
    await database.engine.dispose()


class _Connection(aiosqlite.Connection):
    """Its thread only opens it and ends it."""

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    def begin_at_once(self) -> bool:
        self._conn.execute("BEGIN")
        return True


def _open(*where: Any, **how: Any) -> aiosqlite.Connection:
    connection = _Connection(partial(sqlite3.connect, *where, **how), iter_chunk_size=64)
    connection._thread.daemon = True
    return connection


class _AtOnce(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done
