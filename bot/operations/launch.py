"""Starts jobs for commands and pages: on an issue, as a command in its thread does, or for a task without an issue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from bot.config.settings import Settings
from bot.operations.context import ask_about, find_operator, open_context, read_database, require_job
from bot.operations.holds import LOOK_EVERY_S
from bot.operations.reports import read_report, render_json, render_table
from handlers.commands.options import Options, describe_offer
from handlers.commands.rights import Person
from handlers.context import Context
from handlers.events import Repository
from handlers.jobs.names import NAME
from handlers.jobs.start import StartRequest, start_unheard
from handlers.jobs.task_attempts import FurtherAttempt, start_further
from handlers.jobs.tasks import Refused, TaskRequest, start_off_thread
from handlers.ports import NotFound
from handlers.rules import PRESETS, REBASE, RepositoryRules
from handlers.text.sanitize import redact
from runner.agents import AgentSpec
from runner.characters import show_for_terminal
from runner.db.database import open_existing_database
from runner.model.job import Job, JobState
from runner.rows import job_rows


@dataclass(frozen=True, slots=True)
class IssueOrder:
    """What somebody asks for on an issue, before any check."""

    preset: str
    """A preset, or `handlers.jobs.start.RETRY`."""
    options: Options = field(default_factory=Options)
    onto: str | None = None
    """The target of a rebase."""
    advice: str = ""

    def for_task(self, person: Person, repository: Repository, job: Job, occasion: str) -> FurtherAttempt:
        """The same for the task of a job. `occasion` is a unique text."""
        is_rebase = self.preset == REBASE
        return FurtherAttempt(person, repository, job, occasion, self.advice, self.options, is_rebase, self.onto)


async def start_on_issue(
    context: Context, person: Person, repository: Repository, number: int, order: IssueOrder, trigger: str
) -> Job:
    """Create the job, which reports in the thread as usual, or return the job that the same trigger created before.

    The trigger is a unique text. Raises `NotPermitted`, `Refused`, `NotStarted`, and what `handlers.ports.GitHub`
    raises.
    """
    try:
        issue = await context.github.fetch_issue(person.rules.name, number)
    except NotFound:
        raise Refused(f"there is no issue #{number} in {person.rules.name}", "issue") from None
    if issue.pull_request:
        raise Refused(f"#{number} is a pull request. Enter the number of its issue", "issue")
    request = StartRequest(
        person=person,
        repository=repository,
        issue=issue,
        preset=order.preset,
        triggered_at=context.now(),
        by_our_clock=True,
        trigger=trigger,
        options=order.options,
        onto=order.onto,
        steering=order.advice,
    )
    return await start_unheard(context, request, unopposed=not order.options.anyway)


async def start_from_terminal(settings: Settings, repository: str, number: int, order: IssueOrder) -> Job:
    """Start a job on an issue. The thread names the operator as the requester. Raises what `start_task` raises."""
    async with open_context(settings) as context:
        person, asked = await ask_about(context, settings, find_operator(), repository)
        return await start_on_issue(context, person, asked, number, order, f"terminal {token_hex(8)}")


async def go_on(settings: Settings, job_id: str, order: IssueOrder) -> Job:
    """Start another job on the issue of a job, or another attempt at its task.

    Raises `UnknownJob`, and what `start_task` raises.
    """
    async with read_database(settings) as connection:
        job = await require_job(connection, job_id)
    if job.thread is None:
        async with open_context(settings) as context:
            person, asked = await ask_about(context, settings, find_operator(), job.repository)
            return await start_further(context, order.for_task(person, asked, job, f"terminal {token_hex(8)}"))
    return await start_from_terminal(settings, job.repository, job.thread, order)


def list_presets(settings: Settings) -> str:
    """The presets, as a table for a terminal. Pure."""
    rows = [("preset", "may change code", "needs", "instructions", "what it does")]
    for preset in settings.preset_table().values():
        needs = "advice" if preset.needs_advice else "an earlier attempt" if preset.carries_on else ""
        own = settings.presets.get(preset.name)
        instructions = f"{'replaced by ' * (preset.name in PRESETS)}{own.file.name}" if own else "built-in"
        rows.append((preset.name, "yes" if preset.may_change else "no", needs, instructions, preset.goal))
    return show_for_terminal(render_table(rows))


def list_agents(settings: Settings, *, as_json: bool = False) -> str:
    """The agents, what each offers and where, as a table for a terminal or as JSON. Pure."""
    secrets, rules = settings.secret_values(), settings.repository_rules()
    if as_json:
        return render_json([_describe_agent(spec, rules) for spec in settings.agent_specs()], secrets)
    rows = [("agent", "kind", "models", "thinking", "repositories")]
    for spec in settings.agent_specs():
        offer = describe_offer(spec)
        used_in = [f"{one.name}{' (default)' * (one.agent == spec.name)}" for one in rules if spec.name in one.agents]
        models = _mark_default(offer.models, spec.model) or "the program's own"
        levels = _mark_default(offer.thinking, spec.thinking) or "no option"
        rows.append((spec.name, spec.kind, models, levels, ", ".join(used_in) or "none"))
    return show_for_terminal(redact(render_table(rows), secrets))


def _mark_default(names: Sequence[str], usual: str | None) -> str:
    return ", ".join(f"{name}{' (default)' * (name == usual)}" for name in names)


def _describe_agent(spec: AgentSpec, rules: Iterable[RepositoryRules]) -> dict[str, Any]:
    offer = describe_offer(spec)
    return {
        "name": spec.name,
        "kind": spec.kind,
        "model": spec.model,
        "models": offer.models,
        "thinking": spec.thinking,
        "thinking_levels": offer.thinking,
        "gateway": spec.behind_gateway,
        "repositories": [
            {"name": one.name, "default": one.agent == spec.name} for one in rules if spec.name in one.agents
        ],
    }


async def start_task(settings: Settings, repository: str, order: TaskRequest, by: str = "") -> Job:
    """Create the job of a task. Raises `Refused`, `NotStarted`, `UnknownRepository`, `GitHubError`,
    `GitHubUnavailable` and `DatabaseError`.
    """
    person = find_operator(by)
    if not NAME.fullmatch(person.name):
        raise Refused("a person's name has letters, digits, dots, dashes and underscores: see --by")
    async with open_context(settings) as context:
        person, asked = await ask_about(context, settings, person, repository)
        return await start_off_thread(context, person, asked, order)


def describe_task(settings: Settings, job: Job) -> str:
    """The text for a terminal after the start: the agent, the job's page, and the command that shows the result."""
    page = settings.find_page(job)
    where = f": {page}" if page else ""
    agent = f" with agent {job.agent}" if job.has_agent else ""
    return f"Job {job.id} was created{agent}{where}\nTo see its result: ptq-bot report {job.id}\n"


async def follow(settings: Settings, job: Job, show: Callable[[str], None]) -> tuple[str, bool]:
    """Wait until a job has ended, and `show` each change of its state. Returns its report, and whether it succeeded.

    Raises `DatabaseError`.
    """
    said = ""
    async with open_existing_database(settings.server.database_url) as database:
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
