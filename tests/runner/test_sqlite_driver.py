"""Short reads run on the event loop; whatever waits or is long does not keep it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiosqlite
import pytest

from runner.db.sqlite_driver import LONG, connect
from runner.model.job import Report
from runner.rows import job_rows
from tests.support.jobs import make_job, open_database, store_report

NUMBERS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 300000) SELECT x FROM n"


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[aiosqlite.Connection]:
    connection = await connect(str(tmp_path / "it.db"), isolation_level=None)
    await connection.execute("CREATE TABLE seen (thread INTEGER)")
    await connection.create_function("thread", 0, threading.get_ident)
    yield connection
    await connection.close()


async def fetch(connection: aiosqlite.Connection, sql: str) -> list[tuple[int, ...]]:
    cursor: aiosqlite.Cursor = connection.cursor()  # type: ignore[assignment]
    rows = await (await cursor.execute(sql)).fetchall()
    return [(*row,) for row in rows]


async def test_a_short_read_runs_on_the_event_loop(connection: aiosqlite.Connection) -> None:
    assert await fetch(connection, "SELECT thread()") == [(threading.get_ident(),)]


async def test_a_transaction_that_only_reads_begins_on_the_event_loop(connection: aiosqlite.Connection) -> None:
    assert connection.begin_at_once()  # type: ignore[attr-defined]
    assert connection.in_transaction
    assert not connection.begin_at_once(), "one is open"  # type: ignore[attr-defined]
    assert await fetch(connection, "SELECT thread()") == [(threading.get_ident(),)]
    await connection.rollback()
    assert not connection.in_transaction


async def test_a_write_runs_on_the_thread_of_its_connection(connection: aiosqlite.Connection) -> None:
    await fetch(connection, "INSERT INTO seen VALUES (thread())")
    assert await fetch(connection, "SELECT thread FROM seen") != [(threading.get_ident(),)]


async def test_a_long_read_leaves_the_event_loop_and_returns_all_rows(connection: aiosqlite.Connection) -> None:
    reading = asyncio.create_task(fetch(connection, f"SELECT count(*), thread() FROM ({NUMBERS})"))
    while not reading.done():
        await asyncio.sleep(0)
    ((count, thread),) = await reading
    assert count == 300_000
    assert thread != threading.get_ident()


async def test_a_read_that_is_marked_as_long_leaves_the_event_loop(connection: aiosqlite.Connection) -> None:
    assert await fetch(connection, f"SELECT {LONG} thread()") != [(threading.get_ident(),)]


@pytest.mark.slow
async def test_a_report_with_a_long_diff_is_not_read_on_the_event_loop(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        async with database.write() as connection:
            await job_rows.insert_job(connection, make_job())
            await store_report(connection, Report(make_job().id, "", "", "", "", "+a line\n" * 4_000_000, (), None))
        async with database.read() as connection:
            began = time.thread_time()
            report = await job_rows.fetch_report(connection, make_job().id)
            assert time.thread_time() - began < 0.015
    assert report
    assert len(report.patch) == 32_000_000


async def test_an_error_in_a_read_is_raised(connection: aiosqlite.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await fetch(connection, "SELECT * FROM absent")


async def test_many_reads_in_a_row_let_others_run(connection: aiosqlite.Connection) -> None:
    async def read_on() -> None:
        while True:
            await fetch(connection, "SELECT 1")

    reading = asyncio.create_task(read_on())
    for _ in range(3):
        await asyncio.sleep(0)
    reading.cancel()


async def test_a_cancelled_task_leaves_its_statement_to_the_thread_and_nobody_waits_for_it_on_the_loop(
    connection: aiosqlite.Connection, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "it.db") as other:
        other.execute("BEGIN IMMEDIATE")
        await connection.execute("PRAGMA busy_timeout=20000")
        waiting = asyncio.create_task(fetch(connection, "BEGIN IMMEDIATE"))
        await asyncio.sleep(0.05)
        waiting.cancel()
        assert not connection.begin_at_once()  # type: ignore[attr-defined]
        undoing = asyncio.create_task(connection.rollback())
        await asyncio.sleep(0.05)
        assert not undoing.done()
        other.rollback()
        await undoing
    assert await fetch(connection, "SELECT count(*) FROM seen") == [(0,)]


async def test_a_connection_that_is_stopped_while_it_closes_is_closed(connection: aiosqlite.Connection) -> None:
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    connection.stop()
    async with asyncio.timeout(10):
        await closing
