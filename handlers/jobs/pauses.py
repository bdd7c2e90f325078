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
    connection: AsyncConnection, person: Person, repository: str, now: datetime, origin: str = OPERATOR
) -> bool:
    """Let no new job begin in a repository, or `EVERYWHERE`, until it is resumed for the same `origin`.

    False if the same origin had paused it before. Raises `NotPermitted`.
    """
    person.require(Operation.PAUSE, repository)
    return await begin_pause(connection, Pause(repository.lower(), origin, person.name[:MAX_NAME], now))


async def resume(connection: AsyncConnection, person: Person, repository: str, origin: str | None = None) -> int:
    """Let new jobs begin again, as far as one origin had paused them; without `origin`, all of them.

    How many pauses that ends. Raises `NotPermitted`.
    """
    person.require(Operation.RESUME, repository)
    return await end_pause(connection, repository, origin)
