from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.db import sqlite
from runner.db.schema import deliveries
from runner.rows import job_rows
from tests.runner.test_group_commit import fetch, row
from tests.support.jobs import make_job, open_database


async def test_what_need_not_wait_for_the_disk_is_there_at_once_for_everybody(database_url: str) -> None:
    async with open_database(database_url) as database:
        assert await database.relaxed_commit.insert(deliveries, [row("a"), row("b")], "id") == [True, True]
        assert await database.relaxed_commit.insert(deliveries, [row("b"), row("c")], "id") == [False, True]
        assert await database.group_commit.insert(deliveries, [row("d")], "id") == [True]
        assert [one.id for one in await fetch(database)] == ["a", "b", "c", "d"]


async def test_what_need_not_wait_for_the_disk_waits_for_another_process_and_keeps_nobody_waiting(
    tmp_path: Path,
) -> None:
    async with open_database(tmp_path) as database:
        other = sqlite.connect(database.file)
        other.execute("BEGIN IMMEDIATE")
        appending = asyncio.ensure_future(database.relaxed_commit.insert(deliveries, [row("a")], "id"))
        await asyncio.sleep(0.2)
        assert not appending.done()
        other.execute("COMMIT")
        other.close()
        assert await appending == [True]
        assert await database.relaxed_commit.insert(deliveries, [row("a"), row("b")], "id") == [False, True]


async def test_what_cannot_be_stored_is_told_also_where_nothing_waits_for_the_disk(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        with pytest.raises(Exception, match=r"(?i)null"):
            await database.relaxed_commit.insert(deliveries, [row("a", lane=None)], "id")
        assert await database.relaxed_commit.insert(deliveries, [row("c")], "id") == [True]


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
                await database.relaxed_commit.insert(deliveries, [row(f"a{number}")], "id")
                await database.relaxed_commit.insert(deliveries, [row(f"b{number}")], "id")
                async with asyncio.timeout(10):
                    while len(synced) < number + 1:
                        await asyncio.sleep(0.01)
            assert synced == [f"{database.file}-wal"] * 2, "many share one"


def test_a_commit_waits_for_the_disk_unless_it_need_not(tmp_path: Path) -> None:
    for connect, level in ((sqlite.connect, 2), (sqlite.connect_relaxed, 1)):
        connection = connect(tmp_path / "x.db")
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        connection.close()


async def test_a_transaction_waits_for_the_disk_unless_it_need_not(tmp_path: Path) -> None:
    with watching_syncs() as synced:
        async with open_database(tmp_path) as database:
            for durable, level in ((True, 2), (False, 1), (True, 2), (False, 1), (False, 1), (True, 2)):
                async with (database.write if durable else database.relaxed_commit.write)() as connection:
                    told = await connection.exec_driver_sql("PRAGMA synchronous")
                    assert told.scalar_one() == level, "on any connection"
            async with database.relaxed_commit.write():
                assert not synced
            async with asyncio.timeout(10):
                while not synced:
                    await asyncio.sleep(0.01)
            assert set(synced) == {f"{database.file}-wal"}


async def test_what_need_not_wait_for_the_disk_is_committed_on_either_database(database_url: str) -> None:
    async with open_database(database_url) as database:
        async with database.relaxed_commit.write() as connection:
            await job_rows.insert_job(connection, make_job())
        async with database.read() as connection:
            assert await job_rows.fetch_job(connection, make_job().id)
