"""`ptq-bot pause` and `resume`: the operator's kill switch. A running service sees it before it begins anything new."""

from __future__ import annotations

import getpass
from contextlib import suppress
from datetime import UTC, datetime

from bot.config.settings import Settings
from runner.characters import show_for_terminal
from runner.db.database import open_beside
from runner.rows.pauses import EVERYWHERE, OPERATOR, Pause, begin_pause, end_pause, fetch_pauses


class UnknownRepository(Exception):  # noqa: N818
    """The configuration has no such repository; the message names those that it has."""


async def pause(settings: Settings, repository: str | None) -> str:
    """Let no new job begin, anywhere or in one repository. Raises `UnknownRepository` and `DatabaseError`."""
    where = _find(settings, repository)
    by = "the operator"
    with suppress(OSError, KeyError):
        by = getpass.getuser()[:100]
    async with open_beside(settings.server.database_url) as database, database.write() as connection:
        now = datetime.now(UTC).replace(microsecond=0)
        await begin_pause(connection, Pause(where, OPERATOR, by, now))
    return f"no new job begins {_name(where)}; those under way go on. Take it back by: ptq-bot resume{_option(where)}\n"


async def resume(settings: Settings, repository: str | None) -> str:
    """Let new jobs begin again, whoever had paused them. Raises `UnknownRepository` and `DatabaseError`."""
    where = _find(settings, repository)
    async with open_beside(settings.server.database_url) as database:
        async with database.write() as connection:
            ended = await end_pause(connection, where)
        async with database.read() as connection:
            left = await fetch_pauses(connection)
    said = f"new jobs may begin {_name(where)}\n" if ended else f"nothing was paused {_name(where)}\n"
    listed = [f"still paused {_name(pause.repository)}, by {pause.paused_by} ({pause.origin})\n" for pause in left]
    return show_for_terminal("".join([said, *listed]))


def find_repository(settings: Settings, repository: str) -> str:
    """The repository as it is named in the configuration: GitHub's names do not tell cases apart.

    Raises `UnknownRepository`.
    """
    known = {name.lower(): name for name in settings.repos}
    if repository.lower() not in known:
        there_are = ", ".join(settings.repos)
        raise UnknownRepository(f"there is no repository {show_for_terminal(repository)!r}; configured: {there_are}")
    return known[repository.lower()]


def _find(settings: Settings, repository: str | None) -> str:
    return EVERYWHERE if repository is None else find_repository(settings, repository).lower()


def _name(where: str) -> str:
    return f"in {where}" if where else "anywhere"


def _option(where: str) -> str:
    return f" --repository {where}" if where else ""
