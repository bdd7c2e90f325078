"""Everything on one thread, for tests that try thousands of orders: most of their time would go into changing threads.

SQLite is still the real one. A transaction then also ends before anything else runs, so that nobody waits for a lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import aiosqlite
from sqlalchemy import event

from runner.db import Database


@contextmanager
def everything_at_once() -> Iterator[None]:
    """Of the running loop, until the block ends."""
    asyncio.get_running_loop().set_default_executor(_AtOnce())
    with patch.object(aiosqlite.Connection, "_execute", _execute):
        yield


async def forgo_safety(database: Database) -> None:
    """Let commits not wait for the disk: nobody pulls the plug here."""
    event.listen(database.engine.sync_engine, "connect", lambda it, _: it.execute("PRAGMA synchronous=OFF"))
    await database.engine.dispose()


async def _execute(_connection: aiosqlite.Connection, do: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return do(*args, **options)


class _AtOnce(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done
