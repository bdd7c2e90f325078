"""PostgreSQL for several replicas: one writer at a time, as on SQLite, and notifications that wake other replicas."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import structlog
from sqlalchemy import URL, event, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from runner.db.sql import ASYNC_COMMIT
from runner.model.back_off import BackOff

log = structlog.get_logger()

READ_OPTIONS: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""Execution options of a transaction that sees a snapshot."""

CHANNEL = "ptq_bot"
WRITE_LOCK = int.from_bytes(b"ptq-bot")
"""The number of the advisory lock for writers. Each database has its own lock with this number."""

STALLED_AFTER_S = 5
"""How many seconds a replica may be silent in a write transaction before the server ends the transaction."""
CHECK_STALLED_S = 1.0
"""A writer that has waited for `STALLED_AFTER_S` checks for a stalled writer, and again after this many seconds."""

SETTINGS = {
    "application_name": "ptq-bot",
    "timezone": "UTC",
    "lock_timeout": "30s",
    # A replica that is suspended, or dies without closing its connection, must not block the others.
    "idle_in_transaction_session_timeout": f"{STALLED_AFTER_S}s",
}
CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 60.0
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The exceptions of the driver. While it connects, it can also raise `OSError`."""

TRANSIENT_CODES = ("08", "40", "53", "57", "58", "55P03", "25P03")
"""Prefixes of error codes that do not indicate a wrong configuration: connections, resources, operators, locks.
https://www.postgresql.org/docs/current/errcodes-appendix.html"""

_END_STALLED_WRITER = text(f"""
SELECT pid, pg_terminate_backend(pid) AS ended FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE datname = current_database() AND locktype = 'advisory' AND granted
  AND (classid::bigint << 32) + objid::bigint = {WRITE_LOCK}
  AND wait_event_type = 'Client' AND state_change < clock_timestamp() - make_interval(secs => {STALLED_AFTER_S})
""")  # noqa: S608 - two numbers of ours


def make_engine(url: URL) -> AsyncEngine:
    """An engine whose transactions wait for the write lock, unless they are `reads_only`."""
    arguments = {"timeout": CONNECT_TIMEOUT_S, "command_timeout": COMMAND_TIMEOUT_S, "server_settings": SETTINGS}
    # Waiting writers must leave connections for readers.
    engine = create_async_engine(url, pool_size=10, max_overflow=20, pool_pre_ping=True, connect_args=arguments)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    # Our transactions read, decide and write. In parallel, each could decide on rows that another one is changing.
    if not options.get("reads_only"):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITE_LOCK})")
    if options.get(ASYNC_COMMIT):  # https://www.postgresql.org/docs/current/wal-async-commit.html
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")


@asynccontextmanager
async def ending_stalled_writers(engine: AsyncEngine) -> AsyncIterator[None]:
    """While the block waits for the write lock, end a stalled replica that holds it.

    The server itself ends only idle sessions. The driver sends a statement in two parts, and a session that has sent
    only the first part counts as active, without a time limit.
    """
    watching = asyncio.create_task(_end_stalled_writers(engine))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _end_stalled_writers(engine: AsyncEngine) -> None:
    await asyncio.sleep(STALLED_AFTER_S)
    while True:
        try:
            async with engine.connect() as connection:
                await connection.execution_options(reads_only=True, isolation_level="AUTOCOMMIT")
                for pid, ended in await connection.execute(_END_STALLED_WRITER):
                    log.warning("database.writer_stood_still", pid=pid, ended=ended)
        except (SQLAlchemyError, OSError, *FAILURES) as error:
            log.warning("database.not_looked_at", reason=repr(error))
        await asyncio.sleep(CHECK_STALLED_S)


def advise(_error: BaseException, _file: Path) -> str:
    """Advice on an error of the driver, as the end of a sentence. Pure."""
    return "; check that it is running, and check server.database_url"


def is_transient(error: BaseException) -> bool:
    """Whether an error of the driver may be over soon without a change. Pure."""
    if isinstance(error, OSError):
        return not isinstance(error, (PermissionError, ssl.SSLError))
    if isinstance(error, asyncpg.InterfaceError):  # Of the driver: the server has closed the connection.
        return not isinstance(error, asyncpg.exceptions.ClientConfigurationError)
    if type(error) is asyncpg.InternalClientError:  # The server is closing the connection.
        return True
    return isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "").startswith(TRANSIENT_CODES)


class PgNotifier:
    """Lets replicas on one database wake each other, over a separate connection.

    A lost notification only costs time.
    """

    PAUSE_S = 0.05
    """Notifications within this time are merged into one."""
    CHECK_S = 30.0
    """How often the connection is tested, because a vanished peer sends nothing."""
    WAITS = BackOff(0.2, 30.0)
    """The waits before a reconnect."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._name = uuid.uuid4().hex
        self._notified = asyncio.Event()

    def notify(self) -> None:
        """Notify the other replicas soon."""
        self._notified.set()

    async def listen(self, notify: Callable[[], None]) -> None:
        """Call `notify` when another replica notifies, and after each reconnect. Runs until cancelled."""
        failures = 0
        while True:
            try:
                async with self._connect(notify) as connection:
                    failures = 0
                    notify()
                    await self._send(connection)
            except Exception as error:
                failures += 1
                wait_s = self.WAITS.after(failures)
                log.warning("database.wire_lost", reason=type(error).__name__, wait_s=wait_s)
                await asyncio.sleep(wait_s)

    @asynccontextmanager
    async def _connect(self, notify: Callable[[], None]) -> AsyncIterator[asyncpg.Connection]:
        def receive(_connection: Any, _pid: int, _channel: str, name: object) -> None:
            if name != self._name:
                notify()

        async with self._engine.connect() as pooled:
            connection = (await pooled.get_raw_connection()).driver_connection
            assert isinstance(connection, asyncpg.Connection)
            try:
                await connection.add_listener(CHANNEL, receive)
                connection.add_termination_listener(lambda _: self.notify())
                yield connection
            finally:
                await pooled.invalidate()  # A listening connection must not return to the pool.

    async def _send(self, connection: asyncpg.Connection) -> None:
        """Send notifications until the connection is lost, which raises an exception."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.CHECK_S):
                    await self._notified.wait()
            if self._notified.is_set():
                self._notified.clear()
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, self._name)
            else:
                await connection.execute("SELECT 1")
            await asyncio.sleep(self.PAUSE_S)
