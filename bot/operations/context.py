"""The basis of commands that run beside the service: the person, the database, and a context for the handlers.

Commands and the service communicate only through the database. The service sees changes there within seconds.
"""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.settings import Settings
from bot.github import AppGitHub
from bot.github.session import open_session
from handlers.cases.known_repositories import SharedRepositories
from handlers.commands.own_rules import narrow
from handlers.commands.rights import Person, Surface
from handlers.context import Context
from handlers.events import Repository
from handlers.jobs.tasks import check_rules
from runner.characters import show_for_terminal
from runner.db.database import Database, open_existing_database
from runner.model.job import Job
from runner.rows import job_rows


def find_login() -> str:
    """The login of this process's account. An account in a container may have none."""
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return "an operator"


def find_operator(by: str = "") -> Person:
    """The person at the terminal, under their login or the name `by`.

    They are an operator, because they can read the configuration.
    """
    return Person(by or find_login(), Surface.TERMINAL, is_operator=True)


class UnknownRepository(Exception):  # noqa: N818
    """The configuration has no such repository; the message lists the configured ones."""


def find_repository(settings: Settings, repository: str) -> str:
    """The name as the configuration spells it. GitHub ignores upper and lower case in names.

    Raises `UnknownRepository`.
    """
    known = {name.lower(): name for name in settings.repos}
    if repository.lower() not in known:
        there_are = ", ".join(settings.repos)
        raise UnknownRepository(f"there is no repository {show_for_terminal(repository)!r}; configured: {there_are}")
    return known[repository.lower()]


class UnknownJob(Exception):  # noqa: N818
    """There is no such job, or no such stage of a job; the message says which."""


async def require_job(connection: AsyncConnection, job_id: str) -> Job:
    """The job with this id. Raises `UnknownJob`."""
    job = await job_rows.fetch_job(connection, job_id)
    if job is None:
        raise UnknownJob(f"there is no job {show_for_terminal(job_id)!r}")
    return job


@asynccontextmanager
async def read_database(settings: Settings) -> AsyncIterator[AsyncConnection]:
    """Read from the service's database in one transaction. Raises `DatabaseError`, also if there is no database."""
    async with open_existing_database(settings.server.database_url) as database, database.read() as connection:
        yield connection


@asynccontextmanager
async def write_database(settings: Settings) -> AsyncIterator[AsyncConnection]:
    """Like `read_database`, but write."""
    async with open_existing_database(settings.server.database_url) as database, database.write() as connection:
        yield connection


@asynccontextmanager
async def open_context(settings: Settings) -> AsyncIterator[Context]:
    """A context for the handlers in a command. Raises `DatabaseError` if there is no database."""
    async with (
        open_session(settings.outbound()) as session,
        open_existing_database(settings.server.database_url) as database,
    ):
        github = AppGitHub(
            session,
            api_url=settings.github.api_url,
            app_id=settings.github.app_id,
            private_key=settings.github.read_private_key(),
            now=now,
            repositories=SharedRepositories(database, settings.repository_names),
        )
        yield build_context(settings, github, database, now, _leave)


def build_context(
    settings: Settings,
    github: AppGitHub,
    database: Database,
    now: Callable[[], datetime],
    notify: Callable[[], None],
) -> Context:
    """The handlers' context from the configuration, for the service and for commands."""
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
        public_pages=settings.dashboard.public,
    )


def now() -> datetime:
    """The clock of the service, of commands and of the doctor, in UTC."""
    return datetime.now(UTC)


def _leave() -> None:
    """Notify nobody: the service polls the database."""


async def ask_about(context: Context, settings: Settings, person: Person, name: str) -> tuple[Person, Repository]:
    """The person, with the rules of a configured repository, and the repository from GitHub.

    The rules include those of its `.github/ptq.toml`. Raises `UnknownRepository`, `Refused` if that file is invalid,
    and the errors of `handlers.ports.GitHub`.
    """
    rules = context.repositories[find_repository(settings, name).lower()]
    repository = await context.github.fetch_repository(rules.name)
    rules = await narrow(context, rules)
    check_rules(rules)
    return replace(person, rules=rules), repository
