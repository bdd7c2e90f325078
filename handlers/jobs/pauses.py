"""Pauses: during a pause, no new job begins, in one repository or everywhere.

Each function takes the transaction of its caller.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.commands.rights import Operation, Person
from runner.rows.pauses import OPERATOR, Pause, begin_pause, end_pause

MAX_NAME = 100
"""The most characters of the name of the person who paused."""


async def pause(
    connection: AsyncConnection, person: Person, repository: str, now: datetime, issue_number: int = OPERATOR
) -> bool:
    """Pause new jobs in a repository, or `EVERYWHERE`, until the same issue or `OPERATOR` resumes them.

    Returns False if the same issue or `OPERATOR` has already paused them. Raises `NotPermitted`.
    """
    person.require(Operation.PAUSE, repository)
    return await begin_pause(connection, Pause(repository.lower(), issue_number, person.name[:MAX_NAME], now))


async def resume(connection: AsyncConnection, person: Person, repository: str, issue_number: int | None = None) -> int:
    """End the pause of a repository by one issue, or all its pauses if no issue number is given.

    Returns the number of pauses that ended. Raises `NotPermitted`.
    """
    person.require(Operation.RESUME, repository)
    return await end_pause(connection, repository, issue_number)
