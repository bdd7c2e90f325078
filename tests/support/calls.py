"""What the gateway's account of a job says."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from runner.db.database import Database
from runner.db.schema import model_calls


async def fetch_calls(db: Database) -> list[Any]:
    """Each call as it ended, or as it was reserved while it has not."""
    query = select(model_calls).order_by(model_calls.c.ended)
    async with db.read() as connection:
        return [*{row.id: row for row in await connection.execute(query)}.values()]
