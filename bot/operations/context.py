"""What commands need beside a running service: who is at the terminal, and the handlers' context as the service has it.

They speak with the service through the database alone; it sees within seconds what they wrote there.
"""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from bot.config.settings import Settings
from bot.github import AppGitHub
from bot.github.session import open_session
from handlers.commands.own_rules import narrow
from handlers.commands.rights import Person, Surface
from handlers.context import Context
from handlers.events import Repository
from handlers.jobs.tasks import check_rules
from runner.characters import show_for_terminal
from runner.db.database import Database, open_existing_database


def find_login() -> str:
    """Who sits at the terminal, as far as the system knows: a container may have nobody."""
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return "an operator"


def find_operator(by: str = "") -> Person:
    """The same as a person, or the one `by` whose name they act: who can read the configuration may do everything."""
    return Person(by or find_login(), Surface.TERMINAL, is_operator=True)


class UnknownRepository(Exception):  # noqa: N818
    """The configuration has no such repository; the message names those that it has."""


def find_repository(settings: Settings, repository: str) -> str:
    """The repository as it is named in the configuration: GitHub's names do not tell cases apart.

    Raises `UnknownRepository`.
    """
    known = {name.lower(): name for name in settings.repos}
    if repository.lower() not in known:
        there_are = ", ".join(settings.repos)
        raise UnknownRepository(f"there is no repository {show_for_terminal(repository)!r}; configured: {there_are}")
    return known[repository.lower()]


@asynccontextmanager
async def open_context(settings: Settings) -> AsyncIterator[Context]:
    """A context as the service has one. Raises `DatabaseError` where there is no database."""
    async with (
        open_session(settings.way_out()) as session,
        open_existing_database(settings.server.database_url) as database,
    ):
        github = AppGitHub(
            session,
            api_url=settings.github.api_url,
            app_id=settings.github.app_id,
            private_key=settings.private_key(),
            now=_now,
        )
        yield build_context(settings, github, database, _now, _leave)


def build_context(
    settings: Settings,
    github: AppGitHub,
    database: Database,
    now: Callable[[], datetime],
    notify: Callable[[], None],
) -> Context:
    """The handlers' context by the configuration, for the service and for commands beside it."""
    return Context(
        github=github,
        db=database,
        repositories={rules.name.lower(): rules for rules in settings.repository_rules()},
        agents={spec.name: spec for spec in settings.agent_specs()},
        public_url=settings.server.public_url,
        secrets=settings.secret_values(),
        now=now,
        notify=notify,
        skills=settings.skill_list(),
        presets=settings.preset_table(),
        machines={machine.name: machine for machine in settings.machine_list()},
        signs_in=settings.dashboard.client_id is not None,
        public_logs=settings.dashboard.public_logs,
    )


def _now() -> datetime:
    return datetime.now(UTC)


def _leave() -> None:
    """The service looks often enough by itself."""


async def ask_about(context: Context, settings: Settings, person: Person, name: str) -> tuple[Person, Repository]:
    """A person at the terminal, with the rules of a configured repository and its own; and what GitHub says of it.

    Raises `UnknownRepository`, `Refused`, and what `handlers.ports.GitHub` raises.
    """
    rules = context.repositories[find_repository(settings, name).lower()]
    repository = await context.github.fetch_repository(rules.name)
    rules = await narrow(context, rules, repository)
    check_rules(rules)
    return replace(person, rules=rules), repository
