"""PostgreSQL as we use it: many replicas, one writer at a time as on SQLite, and a wire that wakes the others."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import structlog
from sqlalchemy import URL, event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

log = structlog.get_logger()

READ_OPTIONS: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""Of a transaction that sees one moment of the database."""

CHANNEL = "ptq_bot"
TURN = int.from_bytes(b"ptq-bot")
"""The number of the lock that a writer takes; locks are apart for each database."""

SETTINGS = {
    "application_name": "ptq-bot",
    "timezone": "UTC",
    "lock_timeout": "30s",
    # A replica that is stopped, or dies without a word, must not keep the others waiting for their turn.
    "idle_in_transaction_session_timeout": "5s",
}
CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 60.0
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError)
"""What the driver raises besides `OSError` while it connects."""


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


class Wire:
    """Lets the replicas on one database wake each other, on a connection of its own. A lost call costs some waiting."""

    PAUSE_S = 0.05
    """Calls closer together than this become one."""
    CHECK_S = 30.0
    """How often the connection is tried: a peer that vanished says nothing."""
    BACK_OFF_S = (0.2, 30.0)
    """The first and the longest wait before the connection is opened anew."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._name = uuid.uuid4().hex
        self._called = asyncio.Event()

    def call(self) -> None:
        """Wake the others, soon."""
        self._called.set()

    async def listen(self, ring: Callable[[], None]) -> None:
        """Call `ring` whenever another replica calls, and after each gap in listening; runs until cancelled."""
        first_s, longest_s = self.BACK_OFF_S
        wait_s = first_s
        while True:
            try:
                async with self._open(ring) as connection:
                    wait_s = first_s
                    ring()
                    await self._speak(connection)
            except Exception as error:
                log.warning("database.wire_lost", reason=type(error).__name__, wait_s=wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, longest_s)

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
