"""Refuses deliveries of a repository that has taken the name of another one. No handler processes them.

After a repository was renamed, transferred or deleted, GitHub lets others create one with its old name.
https://docs.github.com/en/repositories/creating-and-managing-repositories/renaming-a-repository
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handlers.cases.known_repositories import fetch_number
from handlers.context import Context
from handlers.events import find_repository
from handlers.notices.notifications import draft_namesake
from runner.rows.notifications import insert_notification


class Namesake(Exception):  # noqa: N818 - what the repository is
    """A delivery is not about the repository that is known by its name, but about another one."""


async def refuse_namesake(context: Context, payload: Mapping[str, Any]) -> None:
    """Raise `Namesake` for another repository with a known name. If the name is configured, notify the operator once.

    A known name that is no longer configured is refused, too, because writes under it go to the known repository.
    """
    name, number = find_repository(payload)
    async with context.db.read() as connection:
        known = await fetch_number(connection, name)
    if known in (None, number):
        return
    if context.rules_for(name) is not None:
        async with context.db.write() as connection:
            await insert_notification(connection, draft_namesake(name.lower(), known, number, context.now()))
    raise Namesake(f"another repository is called {name}: GitHub's id of this one is {number}, not {known}")
