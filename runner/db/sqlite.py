"""SQLite as we use it: one file, one service, one writer at a time, and every commit on the disk before it returns.

Those of a connection that is not `durable` are there soon after (`sync`): only a loss of power in between undoes them.
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
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from runner.db.errors import DatabaseError, NoDatabase
from runner.own_files import close_to_others, open_private

MAX_LOG_PAGES = 64_000
"""Pages of 4 KiB, so 250 MiB: a log of that length is brought into the file in the midst of a crowd of writes."""

MAX_REST = 32 * 1024 * 1024
"""Bytes of the log beyond which it is brought into the file as soon as there is time, and which it keeps after that: a
commit into a log that need not grow is on the disk sooner."""

CACHE_KB = 500
"""KiB of pages that a connection keeps to itself; there may be a dozen, and the system keeps pages for all of them."""

BUSY_MS = 30_000
"""How long a connection waits while another process writes."""

COMPANIONS = ("", "-wal", "-shm", "-journal", ".lock")
"""What is appended to the database's name, by SQLite and by us, for the files that belong to it."""

READ_OPTIONS: dict[str, Any] = {}
"""Of a transaction that sees one moment of the database: every one does."""

FAILURES: tuple[type[Exception], ...] = ()
"""What the driver raises besides `OSError` while it connects: nothing that SQLAlchemy does not make its own."""

HURRIES = "hurries"
"""The execution option of a transaction whose commit need not wait for the disk."""

REMAKES_TABLES = "remakes_tables"
"""The execution option of a transaction in which tables are dropped and made again under their old names."""


def make_engine(url: URL) -> AsyncEngine:
    """An engine whose transactions wait for their turn to write, but for those that are `reads_only`."""
    # The connection used last is used next: each has a cache and a thread of its own.
    engine = create_async_engine(url, pool_use_lifo=True, pool_size=15)
    event.listen(engine.sync_engine, "connect", _set_up)
    event.listen(engine.sync_engine, "begin", _begin)
    event.listen(engine.sync_engine, "close", _roll_back)
    return engine


def impatience(_engine: AsyncEngine) -> AbstractAsyncContextManager[None]:
    """For a block that waits for its turn to write: nobody else has the file who could keep it."""
    return nullcontext()


def is_passing(error: BaseException) -> bool:
    """Whether what the driver raised may be over a moment later, with nothing changed. Pure."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) == sqlite3.SQLITE_BUSY


def advise(error: BaseException, file: Path) -> str:
    """What to do about what the driver raised, as the end of a sentence; empty where nothing is known. Pure."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF  # The rest of it says where exactly.
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or isinstance(error, OSError):
        return (
            f"; {file.parent} has to be a folder that this account may write to: see to that, or name another place"
            " in server.database_url"
        )
    return ""


def connect(file: Path, *, durable: bool = True) -> sqlite3.Connection:
    """Open a connection beside the engine's, for the thread that calls this or another.

    One that is not `durable` never waits, unless it is told to: neither for the disk nor for other processes.
    """
    connection = sqlite3.connect(file, check_same_thread=False)
    _set_up(connection, None)
    if not durable:  # https://www.sqlite.org/pragma.html#pragma_synchronous
        for pragma in ("synchronous=NORMAL", "busy_timeout=0", "wal_autocheckpoint=0"):
            connection.execute(f"PRAGMA {pragma}")
    return connection


@contextmanager
def be_patient(connection: sqlite3.Connection) -> Iterator[None]:
    """Have one that is not `durable` wait for its turn to write, inside the block; it fails at once elsewhere."""
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    try:
        yield
    finally:
        connection.execute("PRAGMA busy_timeout=0")


def sync(file: Path) -> None:
    """Have on the disk what is committed, beside readers and writers. Raises `OSError`."""
    _sync(Path(f"{file}-wal"))


def _set_up(connection: Any, _record: Any) -> None:
    # The driver must not open transactions by itself: `_begin` decides how they start.
    connection.isolation_level = None
    cursor = connection.cursor()
    # The log is brought into the file by `fold`, and only in need by whoever has to wait for their commit.
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


def fold(file: Path) -> None:
    """Bring the log into the database, beside readers and writers, once that is worth it. Raises `sqlite3.Error`.

    https://www.sqlite.org/wal.html#ckpt
    """
    log = Path(f"{file}-wal")
    if not (log.is_file() and log.stat().st_size > MAX_REST):
        return
    with closing(connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _roll_back(connection: Any, _record: Any) -> None:
    # A task that is cancelled leaves its statement to the driver's thread, and SQLite keeps a connection that is closed
    # with a statement under way, and with it the turn to write, for as long as something refers to that statement.
    driver = connection.driver_connection
    driver._tx.put_nowait((None, lambda: driver._conn.rollback()))


async def hurry(_connection: AsyncConnection) -> None:
    """Its transactions are told before they begin (`HURRIES`)."""


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    level = "NORMAL" if options.get(HURRIES) else "FULL"
    if connection.info.get("synchronous", "FULL") != level:  # What it was told last stays with a connection.
        connection.exec_driver_sql(f"PRAGMA synchronous={level}")
        connection.info["synchronous"] = level
    if options.get(REMAKES_TABLES):  # Dropping a table would count as deleting rows that others refer to.
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
    # A transaction that starts as a reader and then writes can fail at once with SQLITE_BUSY; one that starts as a
    # writer waits its turn.
    connection.exec_driver_sql("BEGIN" if options.get("reads_only") else "BEGIN IMMEDIATE")


def probe(file: Path, *, must_exist: bool) -> None:
    """Raise `DatabaseError` where SQLite could not use the file. One that need not exist is created, and private.

    It holds the secret from which addresses and tokens are made. SQLite gives the files beside it the same mode.
    """
    if must_exist and not file.is_file():
        raise NoDatabase("there is no such file")
    if not must_exist:
        with suppress(OSError):  # SQLite says what is wrong with the place.
            os.close(open_private(str(file), os.O_RDWR | os.O_CREAT))
    # The driver's own thread complains on standard error when a connection that failed outlives the event loop.
    try:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        raise DatabaseError(f"{error}{advise(error, file)}") from None


@contextmanager
def hold(file: Path) -> Iterator[None]:
    """Be the only service on this database inside the block. Raises `DatabaseError` when there is one already.

    The lock lies beside the database and belongs to the process: it cannot outlive it. The file stays, because whoever
    removed it could take it from under somebody who has just opened it.
    """
    whole = file.resolve()
    for companion in COMPANIONS:
        close_to_others(Path(f"{whole}{companion}"))
    with open(f"{whole}.lock", "a", opener=open_private) as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatabaseError("a service is running on it already; stop that one first") from None
        yield


def back_up(file: Path, target: Path) -> None:
    """Copy the database as it is at one moment, also while a service writes to it.

    Raises `DatabaseError`, also where there is a file already. Until the copy is whole it has another name.
    """
    probe(file, must_exist=True)
    if target.exists():
        raise DatabaseError(f"{target} exists already: name another file")
    partial = target.with_name(f"{target.name}.partial")
    try:
        # It holds the secret from which the addresses of pages are made.
        os.close(open_private(str(partial), os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(partial)) as copy:
            source.backup(copy)
            # A copy in one file: whoever moves it must not leave a log behind.
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
