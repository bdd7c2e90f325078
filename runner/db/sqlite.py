"""SQLite for one service: one file, one writer at a time, and every commit is on the disk before it returns.

A commit with the option `ASYNC_COMMIT` is on the disk only after `sync`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from runner.db import sqlite_driver
from runner.db.errors import DatabaseError, NoDatabase
from runner.db.sql import ASYNC_COMMIT
from runner.own_files import close_to_others, open_private

MAX_LOG_PAGES = 64_000
"""The most pages of the log, 250 MiB in pages of 4 KiB. A commit that makes the log longer runs a checkpoint itself."""

MAX_REST = 32 * 1024 * 1024
"""The size of the log, in bytes, from which a checkpoint is worth it. SQLite truncates the log to this size and not to
nothing, because commits into existing space are faster."""

CACHE_KB = 500
"""Page cache of each connection, in KiB. There may be a dozen connections, and the system caches pages for all."""

BUSY_MS = 30_000
"""How long a connection waits for another process that writes, in milliseconds."""

COMPANIONS = ("", "-wal", "-shm", "-journal", ".lock")
"""The suffixes of a database's files: those of SQLite, and `.lock` of the service."""

READ_OPTIONS: dict[str, Any] = {}
"""Execution options of a transaction that sees a snapshot. Empty, because all transactions do."""

FAILURES: tuple[type[Exception], ...] = ()
"""The exceptions of the driver. Empty, because SQLAlchemy wraps all of them."""

REMAKES_TABLES = "remakes_tables"
"""The execution option for a transaction that drops tables and recreates them under the same names."""


def make_engine(url: URL) -> AsyncEngine:
    """An engine whose transactions wait for the write lock, unless they are `reads_only`."""
    # Reuse the connection that was used last: each has its own cache and thread.
    engine = create_async_engine(url, pool_use_lifo=True, pool_size=15)
    event.listen(engine.sync_engine, "do_connect", _choose_driver)
    event.listen(engine.sync_engine, "connect", _set_up)
    event.listen(engine.sync_engine, "begin", _begin)
    event.listen(engine.sync_engine, "close", _roll_back)
    return engine


def ending_stalled_writers(_engine: AsyncEngine) -> AbstractAsyncContextManager[None]:
    """Does nothing on SQLite: no other replica can hold the write lock."""
    return nullcontext()


def is_transient(error: BaseException) -> bool:
    """Whether an error of the driver may be over soon without a change. Pure."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) == sqlite3.SQLITE_BUSY


def advise(error: BaseException, file: Path) -> str:
    """Advice on an error of the driver, as the end of a sentence, or nothing. Pure."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF  # The other bits hold details.
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or isinstance(error, OSError):
        return f"; make {file.parent} a folder that this account can write to, or change server.database_url"
    return ""


def connect(file: Path) -> sqlite3.Connection:
    """Open a connection outside the engine's pool, for use on any thread."""
    connection = sqlite3.connect(file, check_same_thread=False)
    _set_up(connection, None)
    return connection


def connect_relaxed(file: Path) -> sqlite3.Connection:
    """Open a connection that waits neither for the disk nor for other processes. See `ignoring_busy`."""
    connection = connect(file)  # https://www.sqlite.org/pragma.html#pragma_synchronous
    for pragma in ("synchronous=NORMAL", "busy_timeout=0", "wal_autocheckpoint=0"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


@contextmanager
def ignoring_busy() -> Iterator[None]:
    """Leave the block without an error if another process holds the lock. Nothing was written then."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # https://www.sqlite.org/rescode.html
            raise


def sync(file: Path) -> None:
    """Write committed data to the disk. Does not block readers and writers. Raises `OSError`."""
    _sync(Path(f"{file}-wal"))


def _choose_driver(_dialect: Any, _record: Any, _where: Any, options: dict[str, Any]) -> None:
    options["async_creator_fn"] = sqlite_driver.connect


def _set_up(connection: Any, _record: Any) -> None:
    # The driver must not open transactions by itself, because `_begin` decides how they start.
    connection.isolation_level = None
    cursor = connection.cursor()
    # Usually `checkpoint` runs the checkpoint; a commit does it only if the log gets too long.
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_MS}",
        f"wal_autocheckpoint={MAX_LOG_PAGES}",
        f"journal_size_limit={MAX_REST}",
        f"cache_size=-{CACHE_KB}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def checkpoint(file: Path) -> None:
    """Copy the log into the database once that is worth it. Does not block readers and writers. Raises `sqlite3.Error`.

    https://www.sqlite.org/wal.html#ckpt
    """
    log = Path(f"{file}-wal")
    if not (log.is_file() and log.stat().st_size > MAX_REST):
        return
    with closing(connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _roll_back(connection: Any, _record: Any) -> None:
    # A cancelled task leaves its statement to the driver's thread. If its connection is closed meanwhile, SQLite keeps
    # the connection, and with it the write lock, as long as something refers to that statement.
    driver = connection.driver_connection
    driver._tx.put_nowait((None, lambda: driver._conn.rollback()))


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    level = "NORMAL" if options.get(ASYNC_COMMIT) else "FULL"
    if connection.info.get("synchronous", "FULL") != level:  # The setting stays with the connection.
        connection.exec_driver_sql(f"PRAGMA synchronous={level}")
        connection.info["synchronous"] = level
    if options.get(REMAKES_TABLES):  # Otherwise, dropping a table counts as deleting rows that others refer to.
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
    # A transaction that begins as a reader and then writes can fail at once with SQLITE_BUSY. One that begins as a
    # writer waits for the lock.
    driver: Any = connection.connection.driver_connection
    if not options.get("reads_only"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif not driver.begin_at_once():
        connection.exec_driver_sql("BEGIN")


def probe(file: Path, *, must_exist: bool) -> None:
    """Raise `DatabaseError` if SQLite cannot use the file. Create it as a private file unless it must exist.

    The file holds the secret for URLs and tokens. SQLite gives the files beside it the same mode.
    """
    if must_exist and not file.is_file():
        raise NoDatabase("the file does not exist")
    if not must_exist:
        with suppress(OSError):  # SQLite reports what is wrong.
            os.close(open_private(str(file), os.O_RDWR | os.O_CREAT))
    # Tested here, because the driver's thread prints an error if a failed connection outlives the event loop.
    try:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        raise DatabaseError(f"{error}{advise(error, file)}") from None


@contextmanager
def hold(file: Path) -> Iterator[None]:
    """Be the only service on this database inside the block. Raises `DatabaseError` if there is another one.

    The lock file is beside the database. The process holds its lock, so the lock cannot outlive it. The file is not
    removed, because another process may have just opened it.
    """
    whole = file.resolve()
    for companion in COMPANIONS:
        close_to_others(Path(f"{whole}{companion}"))
    with open(f"{whole}.lock", "a", opener=open_private) as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatabaseError("another ptq-bot service is using it; stop that one first") from None
        yield


def back_up(file: Path, target: Path) -> None:
    """Copy a snapshot of the database. A service may be writing to the database.

    Raises `DatabaseError`, also if the target exists. An incomplete copy has another name.
    """
    probe(file, must_exist=True)
    if target.exists():
        raise DatabaseError(f"{target} exists already; choose another file")
    partial = target.with_name(f"{target.name}.partial")
    try:
        # The copy holds the secret for the URLs of pages.
        os.close(open_private(str(partial), os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(partial)) as copy:
            source.backup(copy)
            # The copy is one file, so nobody can forget to move its log.
            copy.execute("PRAGMA journal_mode=DELETE")
        _sync(partial)
        partial.rename(target)
        _sync(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise DatabaseError(f"cannot be copied to {target}: {error}") from None


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
