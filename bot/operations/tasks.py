"""`ptq-bot run`: a task for an agent that belongs to no issue, by the operator's own words, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from bot.config.settings import Settings
from bot.operations.context import Refused, ask_about, find_login, open_context
from bot.operations.holds import LOOK_EVERY_S, NAME
from bot.operations.reports import read_report
from bot.operations.worktrees import MAX_TASK, read_ref
from handlers.commands.options import Choice, OptionRefused, Options, choose, list_offers
from handlers.context import Context
from handlers.events import Repository
from handlers.jobs.preconditions import NotStarted
from handlers.jobs.tasks import Task, choose_preset, start_off_thread
from handlers.rules import RepositoryRules
from handlers.text.sanitize import redact
from runner.characters import show_for_terminal
from runner.db.database import open_beside
from runner.model.job import Job, JobState
from runner.rows import job_rows


@dataclass(frozen=True, slots=True)
class Order:
    """What an operator typed."""

    repository: str
    words: str
    preset: str
    ref: str | None
    options: Options
    by: str
    occasion: str = ""
    """See `handlers.jobs.tasks.Task`."""


async def give_order(settings: Settings, order: Order) -> Job:
    """Have an agent work by somebody's words. Raises `Refused`, `UnknownRepository`, `GitHubError`,
    `GitHubUnavailable` and `DatabaseError`.
    """
    by = order.by or find_login()
    if not NAME.fullmatch(by):
        raise Refused("a person's name has letters, digits, dots, dashes and underscores: see --by")
    async with open_context(settings) as context:
        rules, repository = await ask_about(context, settings, order.repository)
        return await place_order(context, rules, repository, replace(order, by=by))


async def place_order(context: Context, rules: RepositoryRules, repository: Repository, order: Order) -> Job:
    """Create the job of an order. Raises `Refused` where something forbids it."""
    if not order.words.strip() or len(order.words) > MAX_TASK:
        raise Refused(f"a task has 1 to {MAX_TASK:,} characters")
    offers = list_offers(rules, context.agents)
    machines = context.machines_for(rules, private=repository.private)
    branch, commit = read_ref(order.ref, rules.base_branch or repository.default_branch)
    try:
        preset = choose_preset(order.preset, rules, context.presets)
        choice = choose(order.options, offers, Choice(rules.agent), machines)
        task = Task(order.words, preset, choice, branch, commit, order.by, order.occasion)
        async with context.db.write() as connection:
            return await start_off_thread(connection, context, rules, repository, task)
    except OptionRefused as refused:
        known = f"agents {', '.join(offers)}; machines {', '.join(machines) or 'none'}"
        raise Refused(f"{str(refused).replace('`', '')}; there are: {known}") from None
    except NotStarted as refused:
        raise Refused(refused.reply) from None


def describe_order(settings: Settings, job: Job) -> str:
    """Where what comes of it is read, for a terminal."""
    page = settings.find_page(job)
    where = f": {page}" if page else ""
    return f"Job {job.id} is given to {job.agent}{where}\nSee what came of it by: ptq-bot report {job.id}\n"


async def follow(settings: Settings, job: Job, show: Callable[[str], None]) -> tuple[str, bool]:
    """Wait for a job, and `show` how it stands. Its report, and whether it did what it was there for.

    Raises `DatabaseError`.
    """
    said = ""
    async with open_beside(settings.server.database_url) as database:
        while job.active:
            line = f"{job.state}{f': {job.trouble}' if job.trouble else ''}\n"
            if line != said:
                show(show_for_terminal(redact(line, settings.secret_values())))
                said = line
            await asyncio.sleep(LOOK_EVERY_S)
            with database.explaining():
                async with database.read() as connection:
                    job = await job_rows.fetch_job(connection, job.id) or job
    return await read_report(settings, job.id), job.state is JobState.SUCCEEDED
