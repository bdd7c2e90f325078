from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, text
from sqlalchemy.dialects import sqlite

from runner.db.columns import Compressed
from runner.db.schema import deliveries
from tests.support.jobs import open_database


@given(st.binary(max_size=5000))
def test_what_is_compressed_comes_back_as_it_was(content: bytes) -> None:
    stored = Compressed().process_bind_param(content, sqlite.dialect())
    assert Compressed().process_result_value(stored, sqlite.dialect()) == content


async def test_a_payload_takes_a_fraction_of_its_size_and_one_from_before_is_read_as_it_is(tmp_path: Path) -> None:
    body, at = b'{"action":"created"}' * 500, datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
    row = {"event": "issues", "lane": "a", "body": body, "received_at": at, "state": "done", "next_attempt_at": at}
    async with open_database(tmp_path) as database:
        async with database.write() as connection:
            await connection.execute(deliveries.insert(), [row | {"id": "old"}, row | {"id": "new"}])
            await connection.execute(text("UPDATE deliveries SET body = :body WHERE id = 'old'"), {"body": body})
        async with database.read() as connection:
            assert (await connection.execute(select(deliveries.c.body))).scalars().all() == [body, body]
            sizes = await connection.execute(text("SELECT id, length(body) FROM deliveries"))
            stored = {row.id: row[1] for row in sizes}
        assert stored["old"] == len(body)
        assert stored["new"] < len(body) / 10
