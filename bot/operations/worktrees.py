"""`ptq-bot worktree` and `assign`: build an environment for a person, and later hand it over to an agent.

The commands only change the database, and the service does the work. The commands in `bot.operations.holds` list, enter
and release worktrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.settings import Settings
from bot.operations.bases import find_clone_url, find_kind
from bot.operations.context import find_operator
from bot.operations.holds import WAIT_S, find_job, read_guest, wait_for_way_in
from bot.operations.machines import find_machine
from handlers.commands.options import Choice, OptionRefused, Options, choose, list_offers
from handlers.commands.rights import Operation, Person
from handlers.holds.manual_jobs import HoldRefused, KeyHolder, Source, start_task, start_worktree
from handlers.holds.takeover import fetch_releasable
from handlers.jobs.names import find_form_fault
from handlers.jobs.tasks import MAX_TASK, read_ref
from handlers.rules import RepositoryRules
from runner.agents import AgentSpec
from runner.agents.skills import leave_out_repository
from runner.characters import show_for_terminal
from runner.db.database import open_existing_database
from runner.model.environment import NEWEST
from runner.model.job import Job, JobKind
from runner.model.machines import Machine, eligible
from runner.rows import job_rows
from runner.rows.holds import fetch_holds


async def make_worktree(
    settings: Settings,
    name: str,
    key_file: Path,
    *,
    repository: str,
    machine: str,
    ref: str | None,
    hours: float,
    by: str,
    wait_s: float = WAIT_S,
) -> str:
    """Build an environment on a machine, at a ref or the newest commit, and give its person access.

    Returns the SSH command, as text for a terminal. Raises `HoldRefused`, `UnknownMachine` and `DatabaseError`.
    """
    guest = read_guest(key_file, hours=hours, by=by)
    where = find_machine(settings, machine)
    async with open_existing_database(settings.server.database_url) as database:
        now = datetime.now(UTC).replace(microsecond=0)
        async with database.write() as connection:
            private = await find_kind(connection, repository, where)
            source = _find_source(settings, repository, where, ref, private=private)
            job = await begin_worktree(
                connection, find_operator(), guest, source, name, machine=where.name, secret=database.secret, now=now
            )
        return await wait_for_way_in(settings, database, guest.hold(job.id, now), key_file, wait_s)


async def begin_worktree(
    connection: AsyncConnection,
    person: Person,
    guest: KeyHolder,
    source: Source,
    name: str,
    *,
    machine: str,
    secret: bytes,
    now: datetime,
) -> Job:
    """Create the job that builds a guest's environment, and their hold. Raises `NotPermitted` and `HoldRefused`."""
    person.require(Operation.MAKE_WORKTREE)
    if fault := find_form_fault(name):
        raise HoldRefused(fault)
    await _require_unused(connection, name)
    return await start_worktree(connection, guest, source, name, machine=machine, secret=secret, now=now)


def _find_source(settings: Settings, repository: str, machine: Machine, ref: str | None, *, private: bool) -> Source:
    rules = _find_repository(settings, repository)
    if not eligible([machine], rules.requires, private=private):
        raise HoldRefused(f"machine {machine.name} is not for {repository}: see `requires`, and `serves`")
    branch, commit = read_ref(ref, rules.environment_branch or rules.base_branch or NEWEST)
    url = find_clone_url(settings, repository)
    skills, known = rules.skills, settings.skill_list()
    if ref is not None:
        skills = leave_out_repository(skills, known)
    return Source(repository, private, url, branch, commit, rules.agent, skills=skills)


def _find_repository(settings: Settings, repository: str) -> RepositoryRules:
    for rules in settings.repository_rules():
        if rules.name == repository:
            return rules
    known = ", ".join(settings.repos)
    raise HoldRefused(f"there is no repository {show_for_terminal(repository)!r}; configured: {known}")


async def _require_unused(connection: AsyncConnection, name: str) -> None:
    for hold in await fetch_holds(connection):
        job = await job_rows.fetch_job(connection, hold.job_id)
        if job and job.name == name:
            raise HoldRefused(f"there is a worktree {name} already: enter it by ptq-bot takeover, or release it")


async def give_task(settings: Settings, name: str, task: str, options: Options) -> str:
    """Hand a worktree over from its person to an agent. Raises `HoldRefused`, `UnknownJob` and `DatabaseError`."""
    agents = {spec.name: spec for spec in settings.agent_specs()}
    async with open_existing_database(settings.server.database_url) as database, database.write() as connection:
        held, now = await find_job(connection, name), datetime.now(UTC)
        rules = _find_repository(settings, held.repository)
        job = await assign(
            connection, find_operator(), held, task, options, rules, agents, secret=database.secret, now=now
        )
    return f"{job.agent} goes on in {held.name} as job {job.id}. Result: ptq-bot report {job.id}\n"


async def assign(
    connection: AsyncConnection,
    person: Person,
    held: Job,
    task: str,
    options: Options,
    rules: RepositoryRules,
    agents: Mapping[str, AgentSpec],
    *,
    secret: bytes,
    now: datetime,
) -> Job:
    """Create the job in which an agent continues in a held worktree. Raises `NotPermitted` and `HoldRefused`."""
    person.require(Operation.ASSIGN)
    if not task.strip() or len(task) > MAX_TASK:
        raise HoldRefused(f"a task has 1 to {MAX_TASK:,} characters")
    hold = await fetch_releasable(connection, held, now)
    await _require_assignable(connection, held)
    offers = list_offers(rules, agents)
    try:
        choice = choose(options, offers, Choice(rules.agent), caps=rules.run_caps)
    except OptionRefused as refused:
        raise HoldRefused(refused.explain()) from None
    return await start_task(connection, held, hold, rules, task, choice, secret=secret, now=now)


async def _require_assignable(connection: AsyncConnection, held: Job) -> None:
    """Raise `HoldRefused` unless the environment is a worktree without an issue.

    An issue has its own commands for this. In other environments, an earlier agent may have left configuration files.
    """
    followed = await job_rows.fetch_job(connection, held.follows) if held.follows else None
    if held.thread is not None or (followed and followed.thread is not None):
        raise HoldRefused("this environment is an issue's: release it, and comment /ptq retry with your advice")
    if held.kind is not JobKind.WORKTREE:
        raise HoldRefused("an agent was at work here: release it, then continue with the edits: ptq-bot takeover")
