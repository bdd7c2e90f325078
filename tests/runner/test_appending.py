from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from runner.db import sqlite
from runner.db.database import Database
from runner.db.schema import deliveries
from runner.rows import job_rows
from tests.support.jobs import make_job, open_database

AT = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def row(name: str, lane: str | None = "octo/widgets#1") -> dict[str, Any]:
    times = {"received_at": AT, "next_attempt_at": AT}
    return {"id": name, "event": "issues", "lane": lane, "body": b"{}", "state": "pending", "attempts": 0, **times}


async def fetch(database: Database) -> list[Any]:
    async with database.read() as connection:
        return [*(await connection.execute(select(deliveries).order_by(deliveries.c.sequence)))]


async def test_of_the_same_key_one_row_is_new(database_url: str) -> None:
    async with open_database(database_url) as database:
        assert await database.append(deliveries, [row("a"), row("b"), row("a")], "id") == [True, True, False]
        assert await database.append(deliveries, [row("b"), row("c")], "id") == [False, True]
        assert [one.id for one in await fetch(database)] == ["a", "b", "c"]


async def test_what_was_appended_reads_like_what_was_inserted(database_url: str) -> None:
    async with open_database(database_url) as database:
        await database.append(deliveries, [row("a", "half \ud83d of a pair")], "id")
        async with database.write() as connection:
            await connection.execute(deliveries.insert().values(row("b", "half \ud83d of a pair")))
        appended, inserted = await fetch(database)
        assert appended.received_at == AT
        assert appended._asdict() | {"id": "b", "sequence": inserted.sequence} == inserted._asdict()


async def test_what_was_appended_is_stored_as_what_was_inserted_is(database_url: str) -> None:
    async with open_database(database_url) as database:
        await database.append(deliveries, [row("a")], "id")
        async with database.write() as connection:
            await connection.execute(deliveries.insert().values(row("b")))
            stored = await connection.execute(text("SELECT received_at, next_attempt_at, lane, state FROM deliveries"))
        appended, inserted = stored
        assert appended == inserted


async def test_what_rows_have_in_common_is_in_each(database_url: str) -> None:
    async with open_database(database_url) as database:
        common = {name: value for name, value in row("").items() if name not in ("id", "body")}
        for names in ("ab", "bc"):  # The second time one of them is there already.
            rows = [{"id": name, "body": name.encode()} for name in names]
            await database.append(deliveries, rows, "id", common)
        assert [(one.id, one.lane, one.body, one.next_attempt_at) for one in await fetch(database)] == [
            (name, common["lane"], name.encode(), AT) for name in "abc"
        ]


async def test_a_row_that_cannot_be_stored_takes_all_with_it_and_not_those_that_come_later(database_url: str) -> None:
    async with open_database(database_url) as database:
        with pytest.raises(Exception, match=r"(?i)null"):
            await database.append(deliveries, [row("a"), row("b", lane=None)], "id")
        assert await database.append(deliveries, [row("c")], "id") == [True]
        assert [one.id for one in await fetch(database)] == ["c"]


async def test_appending_waits_for_its_turn_to_write(database_url: str) -> None:
    async with open_database(database_url) as database:
        async with database.write() as connection:
            await connection.execute(deliveries.insert().values(row("a")))
            appending = asyncio.ensure_future(database.append(deliveries, [row("b")], "id"))
            await asyncio.sleep(0.05)
            assert not appending.done()
        assert await appending == [True]


async def test_what_need_not_wait_for_the_disk_is_there_at_once_for_everybody(database_url: str) -> None:
    async with open_database(database_url) as database:
        assert await database.append(deliveries, [row("a"), row("b")], "id", durable=False) == [True, True]
        assert await database.append(deliveries, [row("b"), row("c")], "id", durable=False) == [False, True]
        assert await database.append(deliveries, [row("d")], "id") == [True]
        assert [one.id for one in await fetch(database)] == ["a", "b", "c", "d"]


async def test_what_need_not_wait_for_the_disk_waits_for_another_process_and_keeps_nobody_waiting(
    tmp_path: Path,
) -> None:
    async with open_database(tmp_path) as database:
        other = sqlite.connect(database.file)
        other.execute("BEGIN IMMEDIATE")
        appending = asyncio.ensure_future(database.append(deliveries, [row("a")], "id", durable=False))
        await asyncio.sleep(0.2)
        assert not appending.done()
        other.execute("COMMIT")
        other.close()
        assert await appending == [True]
        assert await database.append(deliveries, [row("a"), row("b")], "id", durable=False) == [False, True]


async def test_what_cannot_be_stored_is_told_also_where_nothing_waits_for_the_disk(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        with pytest.raises(Exception, match=r"(?i)null"):
            await database.append(deliveries, [row("a", lane=None)], "id", durable=False)
        assert await database.append(deliveries, [row("c")], "id", durable=False) == [True]


@contextmanager
def watching_syncs() -> Iterator[list[str]]:
    """The files that threads, begun from here on, have the disk take."""
    synced: list[str] = []

    def note(frame: Any, event: str, called: Any) -> None:
        if event == "c_call" and called is os.fsync:
            synced.append(str(Path(f"/proc/self/fd/{frame.f_locals['opened']}").readlink()))

    threading.setprofile(note)
    try:
        yield synced
    finally:
        threading.setprofile(None)


async def test_what_need_not_wait_for_the_disk_is_on_it_soon(tmp_path: Path) -> None:
    with watching_syncs() as synced:
        async with open_database(tmp_path) as database:
            for number in range(2):
                await database.append(deliveries, [row(f"a{number}")], "id", durable=False)
                await database.append(deliveries, [row(f"b{number}")], "id", durable=False)
                async with asyncio.timeout(10):
                    while len(synced) < number + 1:
                        await asyncio.sleep(0.01)
            assert synced == [f"{database.file}-wal"] * 2, "many share one"


def test_a_commit_waits_for_the_disk_unless_it_need_not(tmp_path: Path) -> None:
    for durable, level in ((True, 2), (False, 1)):
        connection = sqlite.connect(tmp_path / "x.db", durable=durable)
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        connection.close()


async def test_a_transaction_waits_for_the_disk_unless_it_need_not(tmp_path: Path) -> None:
    with watching_syncs() as synced:
        async with open_database(tmp_path) as database:
            for durable, level in ((True, 2), (False, 1), (True, 2), (False, 1), (False, 1), (True, 2)):
                async with database.write(durable=durable) as connection:
                    told = await connection.exec_driver_sql("PRAGMA synchronous")
                    assert told.scalar_one() == level, "on whichever connection it is"
            async with database.write(durable=False):
                assert not synced
            async with asyncio.timeout(10):
                while not synced:
                    await asyncio.sleep(0.01)
            assert set(synced) == {f"{database.file}-wal"}


async def test_what_need_not_wait_for_the_disk_is_committed_on_either_database(database_url: str) -> None:
    async with open_database(database_url) as database:
        async with database.write(durable=False) as connection:
            await job_rows.insert_job(connection, make_job())
        async with database.read() as connection:
            assert await job_rows.fetch_job(connection, make_job().id)
