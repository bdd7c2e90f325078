"""What operators decide about repositories: `ptq-bot pause` and `resume`, the kill switch, and `repositories accept`.

The service checks for pauses before it starts a job.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.settings import Settings
from bot.operations.context import find_operator, find_repository, write_database
from handlers.cases.known_repositories import forget_number
from handlers.commands.rights import Operation, Person
from handlers.jobs import pauses
from runner.characters import show_for_terminal
from runner.db.database import open_existing_database
from runner.rows.pauses import EVERYWHERE, fetch_pauses


async def pause(settings: Settings, repository: str | None) -> str:
    """Stop starting new jobs, in all repositories or in one. Raises `UnknownRepository` and `DatabaseError`."""
    where, now = _find(settings, repository), datetime.now(UTC).replace(microsecond=0)
    async with write_database(settings) as connection:
        await pauses.pause(connection, find_operator(), where, now)
    return f"no new job begins {_name(where)}. Running jobs continue. Undo: ptq-bot resume{_option(where)}\n"


async def resume(settings: Settings, repository: str | None) -> str:
    """End all pauses of one repository, or all pauses that apply to every repository.

    It does not matter who paused. The text also lists the remaining pauses. Raises `UnknownRepository` and
    `DatabaseError`.
    """
    where = _find(settings, repository)
    async with open_existing_database(settings.server.database_url) as database:
        async with database.write() as connection:
            ended = await pauses.resume(connection, find_operator(), where)
        async with database.read() as connection:
            left = await fetch_pauses(connection)
    said = f"new jobs may begin {_name(where)}\n" if ended else f"nothing was paused {_name(where)}\n"
    listed = [f"still paused {_name(pause.repository)}, by {pause.paused_by} ({pause.origin})\n" for pause in left]
    return show_for_terminal("".join([said, *listed]))


async def accept_repository(settings: Settings, name: str) -> str:
    """Accept the repository that has this name now. Returns the text for the operator. Raises `DatabaseError`."""
    async with write_database(settings) as connection:
        was_known = await accept(connection, find_operator(), name)
    shown = show_for_terminal(name)
    if not was_known:
        return f"Nothing to accept: ptq-bot has not used a repository called {shown} yet.\n"
    return f"From now on, {shown} is the repository that has this name on GitHub now.\n"


async def accept(connection: AsyncConnection, person: Person, name: str) -> bool:
    """Forget which repository had a name, so that the next use stores the current one; False if none is stored.

    Raises `NotPermitted`.
    """
    person.require(Operation.ACCEPT_REPOSITORY)
    return await forget_number(connection, name)


def _find(settings: Settings, repository: str | None) -> str:
    return EVERYWHERE if repository is None else find_repository(settings, repository).lower()


def _name(where: str) -> str:
    return f"in {where}" if where else "anywhere"


def _option(where: str) -> str:
    return f" --repository {where}" if where else ""
