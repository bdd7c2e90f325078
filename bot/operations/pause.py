"""`ptq-bot pause` and `resume`: the operator's kill switch. The service checks for pauses before it starts a job."""

from __future__ import annotations

from datetime import UTC, datetime

from bot.config.settings import Settings
from bot.operations.context import find_operator, find_repository
from handlers.jobs import pauses
from runner.characters import show_for_terminal
from runner.db.database import open_existing_database
from runner.rows.pauses import EVERYWHERE, fetch_pauses


async def pause(settings: Settings, repository: str | None) -> str:
    """Stop starting new jobs, in all repositories or in one. Raises `UnknownRepository` and `DatabaseError`."""
    where, now = _find(settings, repository), datetime.now(UTC).replace(microsecond=0)
    async with open_existing_database(settings.server.database_url) as database, database.write() as connection:
        await pauses.pause(connection, find_operator(), where, now)
    return f"no new job begins {_name(where)}; those under way go on. Take it back by: ptq-bot resume{_option(where)}\n"


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


def _find(settings: Settings, repository: str | None) -> str:
    return EVERYWHERE if repository is None else find_repository(settings, repository).lower()


def _name(where: str) -> str:
    return f"in {where}" if where else "anywhere"


def _option(where: str) -> str:
    return f" --repository {where}" if where else ""
