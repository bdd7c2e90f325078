"""Pauses: while one holds, no new job begins, everywhere or in one repository.

Each function takes the transaction of its caller.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.commands.rights import Operation, Person
from runner.rows.pauses import OPERATOR, Pause, begin_pause, end_pause

MAX_NAME = 100
"""Characters of the name of who paused."""


async def pause(
    connection: AsyncConnection, person: Person, repository: str, now: datetime, issue_number: int = OPERATOR
) -> bool:
    """Let no new job begin in a repository, or `EVERYWHERE`, until the same issue or `OPERATOR` resumes it.

    False if it had been paused by the same issue before. Raises `NotPermitted`.
    """
    person.require(Operation.PAUSE, repository)
    return await begin_pause(connection, Pause(repository.lower(), issue_number, person.name[:MAX_NAME], now))


async def resume(connection: AsyncConnection, person: Person, repository: str, issue_number: int | None = None) -> int:
    """Let new jobs begin again, as far as one issue had paused them; without an issue number, all of them.

    How many pauses that ends. Raises `NotPermitted`.
    """
    person.require(Operation.RESUME, repository)
    return await end_pause(connection, repository, issue_number)
