"""Questions about comments that wait do not read the texts of all comments that were ever posted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import event

from handlers.cases.casebook import fetch_unposted
from handlers.effects.outbox import fetch_next_reply
from tests.support.jobs import NOON, open_database


async def test_replies_that_wait_are_found_by_their_index(tmp_path: Path) -> None:
    asked: list[tuple[str, Any]] = []

    def remember(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    async with open_database(tmp_path) as database, database.read() as connection:
        event.listen(database.engine.sync_engine, "before_cursor_execute", remember)
        await fetch_next_reply(connection, NOON, ())
        await fetch_unposted(connection)
        questions = [one for one in asked if "FROM replies" in one[0]]
        assert len(questions) == 2
        for statement, parameters in questions:
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            assert "replies_not_as_wanted" in str(plan.all())
