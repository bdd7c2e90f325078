"""`ptq-bot serve` and a database that it cannot have just now: it waits, says so, and stops when it is asked to."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import asyncpg
import pytest
from sqlalchemy import event, text

from bot.demo.loopback import find_free_port
from runner.db.database import Database
from runner.db.errors import UnavailableDatabase
from runner.db.postgresql import WRITE_LOCK
from tests.bot.test_cli import configure, refuse_to_start
from tests.support import program
from tests.support.jobs import open_database
from tests.support.postgres import Server

pytestmark = pytest.mark.slow

ADDRESS = "127.0.0.1"
WAITS = "service.waits_for_its_database"
PATIENCE_S = 120.0
HERE = " AND datname = current_database()"


@contextmanager
def serve(folder: Path, database_url: str) -> Iterator[program.Running]:
    config = configure(folder, find_free_port())
    with program.start(folder, "serve", "--config", config, PTQ_SERVER__DATABASE_URL=database_url) as service:
        yield service


def read_events(service: program.Running) -> list[dict[str, Any]]:
    return [json.loads(line) for line in service.text().splitlines()]


async def wait_for(service: program.Running, what: str, times: int = 1) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while service.text().count(what) < times:
        assert service.process.poll() is None, f"it has ended: {service.text()}"
        assert time.monotonic() < deadline, f"{what!r} never came: {service.text()}"
        await asyncio.sleep(0.05)


async def stop(service: program.Running) -> None:
    status, _ = await asyncio.to_thread(service.stop, signal.SIGTERM)
    assert status == 0, service.text()


@asynccontextmanager
async def passed_on(port: int, to_port: int) -> AsyncIterator[None]:
    """Whoever connects to one port is connected to another."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(ADDRESS, to_port)
        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))

    server = await asyncio.start_server(connect, ADDRESS, port)
    yield
    server.close()


async def test_a_service_starts_once_its_database_can_be_reached(
    tmp_path: Path, postgres: Server, empty_postgres_url: str
) -> None:
    port = find_free_port()
    with serve(tmp_path, empty_postgres_url.replace(f":{postgres.port}/", f":{port}/")) as service:
        await wait_for(service, WAITS, times=2)
        async with passed_on(port, postgres.port):
            await wait_for(service, "service.started")
            await stop(service)
    waits = [line for line in read_events(service) if line["event"] == WAITS]
    assert waits[0]["wait_s"] < waits[1]["wait_s"], "it tries less often as time goes on"
    assert "[Errno 111]" in waits[0]["reason"]
    assert postgres.password not in service.text()


async def test_a_service_that_waits_for_its_database_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    with serve(tmp_path, f"postgresql+asyncpg://ptq:hunter2@{ADDRESS}:{find_free_port()}/ptq") as service:
        await wait_for(service, WAITS)
        await stop(service)
    assert {line["event"] for line in read_events(service)} == {WAITS}
    assert "hunter2" not in service.text()


@asynccontextmanager
async def blocked(postgres: Server, url: str) -> AsyncIterator[None]:
    """Somebody has the turn to write inside the block, and is at work, so that nobody may take it."""
    blocker = await asyncpg.connect(url.replace("+asyncpg", ""))
    await blocker.execute(f"SELECT pg_advisory_lock({WRITE_LOCK})")
    working = asyncio.create_task(blocker.execute("SELECT pg_sleep(600)"))
    yield
    await postgres.execute(f"SELECT pg_terminate_backend({blocker.get_server_pid()})")
    with suppress(asyncpg.PostgresError, OSError):
        await working


async def wait_until_somebody_waits(url: str) -> None:
    watcher = await asyncpg.connect(url.replace("+asyncpg", ""))
    deadline = time.monotonic() + PATIENCE_S
    while not await watcher.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'" + HERE):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await watcher.close()


async def test_a_service_that_waits_for_its_turn_at_its_start_stops_when_it_is_asked_to(
    tmp_path: Path, postgres: Server, postgres_url: str
) -> None:
    async with blocked(postgres, postgres_url):
        with serve(tmp_path, postgres_url) as service:
            await wait_until_somebody_waits(postgres_url)
            await stop(service)
    assert service.text() == ""


@pytest.mark.slow(30)
async def test_a_service_starts_once_nobody_blocks_its_database(
    tmp_path: Path, postgres: Server, postgres_url: str
) -> None:
    async with AsyncExitStack() as block:
        await block.enter_async_context(blocked(postgres, postgres_url))
        with serve(tmp_path, postgres_url) as service:
            await wait_for(service, WAITS)
            await block.aclose()
            await wait_for(service, "service.started")
            await stop(service)
    assert "lock timeout" in read_events(service)[0]["reason"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (":{password}@", ":hunter2@", "password authentication failed"),
        ("/{name}", "/nowhere", "does not exist"),
        ("/{name}", "/{name}?ssl=perhaps", "must be one of"),
    ],
)
def test_a_database_that_waiting_brings_no_nearer_is_one_sentence(
    tmp_path: Path, postgres: Server, old: str, new: str, reason: str
) -> None:
    url = "postgresql+asyncpg://ptq:{password}@127.0.0.1:{port}/{name}".replace(old, new)
    url = url.format(password=postgres.password, port=postgres.port, name="postgres")
    assert reason in refuse_to_start(configure(tmp_path, 0), PTQ_SERVER__DATABASE_URL=url)


async def test_a_session_that_the_server_ended_is_a_database_out_of_reach(postgres: Server, postgres_url: str) -> None:
    async def lose_the_session() -> None:
        async with database.write() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert isinstance(driver, asyncpg.Connection)
            await postgres.execute(f"SELECT pg_terminate_backend({driver.get_server_pid()})")
            while not driver.is_closed():
                await asyncio.sleep(0.01)
            await connection.execute(text("SELECT 1"))

    async with open_database(postgres_url) as database:
        with pytest.raises(UnavailableDatabase, match="connection is closed"), database.explaining():
            await lose_the_session()


@pytest.mark.parametrize("turns", range(4))
async def test_so_it_is_wherever_a_service_that_stood_still_goes_on(
    postgres: Server, postgres_url: str, turns: int
) -> None:
    async def stand_still() -> None:
        async with database.write() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert isinstance(driver, asyncpg.Connection)
            end = f"SELECT pg_terminate_backend({driver.get_server_pid()})"
            Thread(target=asyncio.run, args=[postgres.execute(end)]).start()
            time.sleep(0.5)  # What it has been told meanwhile it reads in the turns that follow.
            for _ in range(turns):
                await asyncio.sleep(0)
            await connection.execute(text("SELECT 1"))

    async with open_database(postgres_url) as database:
        with pytest.raises(UnavailableDatabase), database.explaining():
            await stand_still()


async def test_sqlite_is_unavailable_while_somebody_else_writes_for_long(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        another = Database(str(database.url))
        event.listen(another.engine.sync_engine, "connect", lose_patience)
        with closing(sqlite3.connect(database.file)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            with pytest.raises(UnavailableDatabase, match="database is locked"):
                await another.open()
        await another.open()
        await another.close()


def lose_patience(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA busy_timeout=50")
