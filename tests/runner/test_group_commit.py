from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select, text

from runner.db.database import Database
from runner.db.schema import deliveries
from tests.support.jobs import open_database

AT = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def row(name: str, lane: str | None = "octo/widgets#1") -> dict[str, Any]:
    times = {"received_at": AT, "next_attempt_at": AT}
    return {"id": name, "event": "issues", "lane": lane, "body": b"{}", "state": "pending", "attempts": 0, **times}


async def fetch(database: Database) -> list[Any]:
    async with database.read() as connection:
        return [*(await connection.execute(select(deliveries).order_by(deliveries.c.sequence)))]


async def test_of_the_same_key_one_row_is_new(database_url: str) -> None:
    async with open_database(database_url) as database:
        assert await database.group_commit.insert(deliveries, [row("a"), row("b"), row("a")], "id") == [
            True,
            True,
            False,
        ]
        assert await database.group_commit.insert(deliveries, [row("b"), row("c")], "id") == [False, True]
        assert [one.id for one in await fetch(database)] == ["a", "b", "c"]


async def test_what_was_appended_reads_like_what_was_inserted(database_url: str) -> None:
    async with open_database(database_url) as database:
        await database.group_commit.insert(deliveries, [row("a", "half \ud83d of a pair")], "id")
        async with database.write() as connection:
            await connection.execute(deliveries.insert().values(row("b", "half \ud83d of a pair")))
        appended, inserted = await fetch(database)
        assert appended.received_at == AT
        assert appended._asdict() | {"id": "b", "sequence": inserted.sequence} == inserted._asdict()


async def test_what_was_appended_is_stored_as_what_was_inserted_is(database_url: str) -> None:
    async with open_database(database_url) as database:
        await database.group_commit.insert(deliveries, [row("a")], "id")
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
            await database.group_commit.insert(deliveries, rows, "id", common)
        assert [(one.id, one.lane, one.body, one.next_attempt_at) for one in await fetch(database)] == [
            (name, common["lane"], name.encode(), AT) for name in "abc"
        ]


async def test_a_row_that_cannot_be_stored_takes_all_with_it_and_not_those_that_come_later(database_url: str) -> None:
    async with open_database(database_url) as database:
        with pytest.raises(Exception, match=r"(?i)null"):
            await database.group_commit.insert(deliveries, [row("a"), row("b", lane=None)], "id")
        assert await database.group_commit.insert(deliveries, [row("c")], "id") == [True]
        assert [one.id for one in await fetch(database)] == ["c"]


async def test_appending_waits_for_its_turn_to_write(database_url: str) -> None:
    async with open_database(database_url) as database:
        async with database.write() as connection:
            await connection.execute(deliveries.insert().values(row("a")))
            appending = asyncio.ensure_future(database.group_commit.insert(deliveries, [row("b")], "id"))
            await asyncio.sleep(0.05)
            assert not appending.done()
        assert await appending == [True]
