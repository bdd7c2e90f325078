"""`ptq-bot worktree`: an environment for a person, without an agent, until one is given to it.

It speaks with the service through the database alone, as `bot.operations.holds` does. Those commands then
list, enter and release the worktree.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.policy_tables import RepositoryTable
from bot.config.settings import Settings
from bot.operations.bases import NEWEST, find_clone_url, find_kind
from bot.operations.holds import NAME, WAIT_S, find_job, read_person, wait_for_way_in
from bot.operations.machines import find_machine
from handlers.commands.options import Choice, OptionRefused, Options, choose, list_offers
from handlers.holds.manual_jobs import Source, start_task, start_worktree
from handlers.holds.takeover import HoldRefused, fetch_releasable
from handlers.jobs.preconditions import NotStarted
from handlers.jobs.tasks import MAX_TASK, read_ref
from runner.characters import show_for_terminal
from runner.db.database import open_beside
from runner.model.job import Job, JobKind
from runner.model.machines import Machine, eligible
from runner.rows import job_rows
from runner.rows.holds import fetch_holds

JOB_ID = re.compile(r"[0-9a-f]{10}")


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
    """Have an environment made on a machine, at a ref or the newest commit, and let its person in.

    The text, for a terminal, says how to enter it. Raises `HoldRefused`, `UnknownMachine` and `DatabaseError`.
    """
    person = read_person(key_file, hours=hours, by=by)
    if not NAME.fullmatch(name):
        raise HoldRefused("a worktree's name has letters, digits, dots, dashes and underscores, at most 50")
    if JOB_ID.fullmatch(name):
        raise HoldRefused("this name could be a job's id: choose another one")
    where = find_machine(settings, machine)
    async with open_beside(settings.server.database_url) as database:
        now = datetime.now(UTC).replace(microsecond=0)
        async with database.write() as connection:
            await _require_unused(connection, name)
            private = await find_kind(connection, repository, where)
            source = _find_source(settings, repository, where, ref, private=private)
            try:
                job = await start_worktree(
                    connection, person, source, name, machine=where.name, secret=database.secret, now=now
                )
            except NotStarted as refused:
                raise HoldRefused(refused.reply) from None
        return await wait_for_way_in(settings, database, person.hold(job.id, now), key_file, wait_s)


def _find_source(settings: Settings, repository: str, machine: Machine, ref: str | None, *, private: bool) -> Source:
    table = _find_repository(settings, repository)
    if not eligible([machine], table.requires, private=private):
        raise HoldRefused(f"machine {machine.name} is not for {repository}: see `requires`, and `serves`")
    branch, commit = read_ref(ref, table.base_branch or NEWEST)
    url = find_clone_url(settings, repository)
    return Source(repository, private, url, branch, commit, table.agent)


def _find_repository(settings: Settings, repository: str) -> RepositoryTable:
    if repository not in settings.repos:
        known = ", ".join(settings.repos)
        raise HoldRefused(f"there is no repository {show_for_terminal(repository)!r}; configured: {known}")
    return settings.repos[repository]


async def _require_unused(connection: AsyncConnection, name: str) -> None:
    for hold in await fetch_holds(connection):
        job = await job_rows.fetch_job(connection, hold.job_id)
        if job and job.name == name:
            raise HoldRefused(f"there is a worktree {name} already: enter it by ptq-bot takeover, or release it")


async def give_task(settings: Settings, name: str, task: str, *, agent: str | None, model: str | None) -> str:
    """Let an agent go on in a worktree, whose person leaves it. Raises `HoldRefused`, `UnknownJob`, `DatabaseError`."""
    if not task.strip() or len(task) > MAX_TASK:
        raise HoldRefused(f"a task has 1 to {MAX_TASK:,} characters")
    async with open_beside(settings.server.database_url) as database, database.write() as connection:
        held, now = await find_job(connection, name), datetime.now(UTC)
        hold = await fetch_releasable(connection, held, now)
        await _require_assignable(connection, held)
        rules = _find_repository(settings, held.repository).as_rules(held.repository)
        offers = list_offers(rules, {spec.name: spec for spec in settings.agent_specs()})
        try:
            choice = choose(Options(agent=agent, model=model), offers, Choice(rules.agent))
        except OptionRefused as refused:
            raise HoldRefused(f"{refused}; there are: {', '.join(offers)}") from None
        try:
            job = await start_task(connection, held, hold, rules, task, choice, secret=database.secret, now=now)
        except NotStarted as refused:
            raise HoldRefused(refused.reply) from None
    return f"{choice.agent} goes on in {held.name} as job {job.id}. See what came of it by: ptq-bot report {job.id}\n"


async def _require_assignable(connection: AsyncConnection, held: Job) -> None:
    """Raise `HoldRefused` where an issue has commands of its own, or where an agent may have left its configuration."""
    followed = await job_rows.fetch_job(connection, held.follows) if held.follows else None
    if held.thread is not None or (followed and followed.thread is not None):
        raise HoldRefused("this environment is an issue's: release it, and comment /ptq retry with your advice")
    if held.kind is not JobKind.WORKTREE:
        raise HoldRefused("an agent was at work here: release it, and begin anew with the edits by ptq-bot takeover")
