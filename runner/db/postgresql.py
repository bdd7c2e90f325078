"""PostgreSQL as we use it: many replicas, one writer at a time as on SQLite, and a wire that wakes the others."""

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
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from runner.model.back_off import BackOff

log = structlog.get_logger()

READ_OPTIONS: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""Of a transaction that sees one moment of the database."""

CHANNEL = "ptq_bot"
TURN = int.from_bytes(b"ptq-bot")
"""The number of the lock that a writer takes; locks are apart for each database."""

STILL_S = 5
"""How long a replica that has the turn to write may leave the server waiting, in seconds."""
LOOK_S = 1.0
"""How often a writer that waits for longer looks whether it does."""

SETTINGS = {
    "application_name": "ptq-bot",
    "timezone": "UTC",
    "lock_timeout": "30s",
    # A replica that is stopped, or dies without a word, must not keep the others waiting for their turn.
    "idle_in_transaction_session_timeout": f"{STILL_S}s",
}
CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 60.0
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What the driver raises besides `OSError` while it connects."""

PASSING = ("08", "40", "53", "57", "58", "55P03", "25P03")
"""How the codes of errors begin that say nothing against the configuration: connections, resources, operators, locks.
https://www.postgresql.org/docs/current/errcodes-appendix.html"""

_END_WHO_STANDS_STILL = text(f"""
SELECT pid, pg_terminate_backend(pid) AS ended FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE datname = current_database() AND locktype = 'advisory' AND granted
  AND (classid::bigint << 32) + objid::bigint = {TURN}
  AND wait_event_type = 'Client' AND state_change < clock_timestamp() - make_interval(secs => {STILL_S})
""")  # noqa: S608 - two numbers of ours


def make_engine(url: URL) -> AsyncEngine:
    """An engine whose transactions wait for their turn to write, but for those that are `reads_only`."""
    arguments = {"timeout": CONNECT_TIMEOUT_S, "command_timeout": COMMAND_TIMEOUT_S, "server_settings": SETTINGS}
    # Writers that wait for their turn must leave connections for those who read.
    engine = create_async_engine(url, pool_size=10, max_overflow=20, pool_pre_ping=True, connect_args=arguments)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    # Our transactions read, decide and write. Done side by side, each would decide on what the other is changing.
    if not connection.get_execution_options().get("reads_only"):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({TURN})")


async def hurry(connection: AsyncConnection) -> None:
    """Let the transaction's commit not wait for the disk: the server writes it within a second.

    https://www.postgresql.org/docs/current/wal-async-commit.html
    """
    await connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")


@asynccontextmanager
async def impatience(engine: AsyncEngine) -> AsyncIterator[None]:
    """For a block that waits for its turn to write: whoever has it and stands still does not keep it.

    The server itself ends only a session that is idle. The driver sends a statement in two parts, and for the server
    one that has the first alone is at work, without any limit of time, until the second comes.
    """
    looking = asyncio.create_task(_look_who_stands_still(engine))
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait([looking])


async def _look_who_stands_still(engine: AsyncEngine) -> None:
    await asyncio.sleep(STILL_S)
    while True:
        try:
            async with engine.connect() as connection:
                await connection.execution_options(reads_only=True, isolation_level="AUTOCOMMIT")
                for pid, ended in await connection.execute(_END_WHO_STANDS_STILL):
                    log.warning("database.writer_stood_still", pid=pid, ended=ended)
        except (SQLAlchemyError, OSError, *FAILURES) as error:
            log.warning("database.not_looked_at", reason=repr(error))
        await asyncio.sleep(LOOK_S)


def advise(_error: BaseException, _file: Path) -> str:
    """What to do about whatever the driver raised, as the end of a sentence. Pure."""
    return "; check that it runs, and server.database_url"


def is_passing(error: BaseException) -> bool:
    """Whether what the driver raised may be over a moment later, with nothing changed. Pure."""
    if isinstance(error, OSError):
        return not isinstance(error, (PermissionError, ssl.SSLError))
    if isinstance(error, asyncpg.InterfaceError):  # The driver's own: the server has ended the connection.
        return not isinstance(error, asyncpg.exceptions.ClientConfigurationError)
    if type(error) is asyncpg.InternalClientError:  # It has read the server's last words, and not yet that it is gone.
        return True
    return isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "").startswith(PASSING)


class Wire:
    """Lets the replicas on one database wake each other, on a connection of its own. A lost call costs some waiting."""

    PAUSE_S = 0.05
    """Calls closer together than this become one."""
    CHECK_S = 30.0
    """How often the connection is tried: a peer that vanished says nothing."""
    WAITS = BackOff(0.2, 30.0)
    """Before the connection is opened again."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._name = uuid.uuid4().hex
        self._called = asyncio.Event()

    def call(self) -> None:
        """Wake the others, soon."""
        self._called.set()

    async def listen(self, ring: Callable[[], None]) -> None:
        """Call `ring` whenever another replica calls, and after each gap in listening; runs until cancelled."""
        failures = 0
        while True:
            try:
                async with self._open(ring) as connection:
                    failures = 0
                    ring()
                    await self._speak(connection)
            except Exception as error:
                failures += 1
                wait_s = self.WAITS.after(failures)
                log.warning("database.wire_lost", reason=type(error).__name__, wait_s=wait_s)
                await asyncio.sleep(wait_s)

    @asynccontextmanager
    async def _open(self, ring: Callable[[], None]) -> AsyncIterator[asyncpg.Connection]:
        def hear(_connection: Any, _pid: int, _channel: str, name: object) -> None:
            if name != self._name:
                ring()

        async with self._engine.connect() as pooled:
            connection = (await pooled.get_raw_connection()).driver_connection
            assert isinstance(connection, asyncpg.Connection)
            try:
                await connection.add_listener(CHANNEL, hear)
                connection.add_termination_listener(lambda _: self.call())
                yield connection
            finally:
                await pooled.invalidate()  # Nobody else may get a connection that listens.

    async def _speak(self, connection: asyncpg.Connection) -> None:
        """Pass on every call, until the connection is lost, which is an exception."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.CHECK_S):
                    await self._called.wait()
            if self._called.is_set():
                self._called.clear()
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, self._name)
            else:
                await connection.execute("SELECT 1")
            await asyncio.sleep(self.PAUSE_S)
