"""Creates the jobs of tasks without an issue: the agent gets only a person's instructions.

These jobs post nothing on GitHub. The result is on the job's page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.commands.options import Choice, OptionRefused, Options, choose, list_offers
from handlers.commands.rights import Operation, Person, Surface
from handlers.context import Context
from handlers.events import Repository
from handlers.jobs.brief import render_off_thread
from handlers.jobs.names import find_name_fault
from handlers.jobs.preconditions import check_caps, check_not_paused
from handlers.jobs.start import RETRY
from handlers.rules import REBASE, Preset, RepositoryRules
from handlers.text.sanitize import one_line
from runner.agents.skills import choose_skills, leave_out_repository
from runner.model.history import COMMIT
from runner.model.job import Job, JobKind, JobRequest, Topic, derive_job_id
from runner.rows import job_rows

MAX_TASK = 10_000
"""The most characters of a task."""


class Refused(Exception):  # noqa: N818
    """No job is created. The message says why, as a sentence without its period."""

    def __init__(self, why: str, field: str = "") -> None:
        """`field` is the part of the request that is refused, named as in forms."""
        super().__init__(why)
        self.field = field


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A request for a task, before any check."""

    words: str
    preset: str
    ref: str | None = None
    """Any ref that git can fetch, or a commit. None means the newest commit of the base branch."""
    options: Options = field(default_factory=Options)
    name: str = ""
    """The name of the task. If it is empty, ptq-bot chooses one."""
    occasion: str = ""
    """A unique key if the task may be sent twice by mistake: the second request finds the first job. Or empty."""


async def start_off_thread(context: Context, person: Person, repository: Repository, request: TaskRequest) -> Job:
    """Create the job of a task, or return the job that the same occasion created before.

    Raises `NotPermitted`, `Refused`, and `NotStarted` if jobs are paused or a cap is used up.
    """
    person.require(Operation.START)
    rules = person.rules
    check_rules(rules)
    if not request.words.strip() or len(request.words) > MAX_TASK:
        on_page = person.surface is Surface.PAGE
        wanted = f"enter instructions (up to {MAX_TASK:,} characters)"
        raise Refused(wanted if on_page else f"a task has 1 to {MAX_TASK:,} characters", "advice")
    preset = choose_preset(request.preset, rules, context.presets)
    choice = choose_options(context, rules, repository, request.options, Choice(rules.agent))
    async with context.db.write() as connection:
        return await _create(connection, context, person, repository, request, preset, choice)


def check_rules(rules: RepositoryRules) -> None:
    """Raise `Refused` if a repository's own rules are not valid. Pure."""
    if rules.fault:
        raise Refused(f"invalid .github/ptq.toml: {one_line(rules.fault, 300)}")


def choose_options(
    context: Context, rules: RepositoryRules, repository: Repository, options: Options, usual: Choice
) -> Choice:
    """The agent of a task, with its model, machine and limits. Raises `Refused` if one is not valid or not offered."""
    offers, machines = list_offers(rules, context.agents), context.machines_for(rules, private=repository.private)
    try:
        return choose(options, offers, usual, machines, rules.run_caps)
    except OptionRefused as refused:
        raise Refused(refused.explain(), refused.option) from None


def choose_preset(
    name: str,
    rules: RepositoryRules,
    presets: Mapping[str, Preset],
    *,
    kind: JobKind = JobKind.AGENT,
    continues: bool = False,
) -> Preset:
    """The preset of that name and kind. Raises `Refused` if it is not allowed, or needs an issue. Pure.

    `continues` says that there is an earlier attempt, which some presets need.
    """
    name = name.casefold()
    allowed = {known.name for known in presets.values() if rules.presets is None or known.name in rules.presets}
    offered = [
        known.name
        for known in presets.values()
        if known.name in allowed and known.kind is kind and (continues or not known.carries_on)
    ]
    if name in offered:
        return presets[name]
    there_are = f"available: {', '.join(offered) or 'none'}"
    if name == RETRY:
        raise Refused(f"retry continues an earlier attempt, so it is not a preset; {there_are}", "preset")
    if name not in presets:
        raise Refused(f"unknown preset {name[:50]!r}; {there_are}", "preset")
    if name not in allowed:
        raise Refused(f"the .github/ptq.toml of {rules.name} does not allow {name}; {there_are}", "preset")
    if presets[name].carries_on and not continues:
        raise Refused(f"{name} continues an earlier attempt, so no task begins with it; {there_are}", "preset")
    if name == REBASE:
        raise Refused(f"rebase has a form and a command of its own; {there_are}", "preset")
    raise Refused(f"{name} needs an issue; {there_are}", "preset")


def read_ref(ref: str | None, usual: str) -> tuple[str, str | None]:
    """The branch or other ref to fetch, and the commit on it. None means the newest commit. Pure."""
    if ref is not None and COMMIT.fullmatch(ref):
        return usual, ref
    return ref or usual, None


async def _create(
    connection: AsyncConnection,
    context: Context,
    person: Person,
    repository: Repository,
    request: TaskRequest,
    preset: Preset,
    choice: Choice,
) -> Job:
    rules, now = person.rules, context.now()
    series = await job_rows.find_unused_series(connection, rules.name)
    job_id = derive_job_id(f"{rules.name}{request.occasion or f'~{series} task'}", context.db.secret)
    if request.occasion and (given := await job_rows.fetch_job(connection, job_id)):
        return given
    if request.name and (fault := await find_name_fault(connection, rules.name, request.name)):
        raise Refused(fault, "name")
    await check_not_paused(connection, rules.name)
    await check_caps(connection, context, rules, Topic(rules.name, None), person.name)
    branch, commit = read_ref(request.ref, rules.environment_branch or rules.base_branch or repository.default_branch)
    skills = choose_skills(context.skills, rules.skills, ())
    if request.ref is not None:
        skills = leave_out_repository(skills, context.skills)
    wanted = JobRequest(
        id=job_id,
        kind=JobKind.TASK,
        repository=rules.name,
        private=repository.private,
        thread=None,
        series=series,
        name=request.name or f"task{series}",
        task=request.words,
        preset=preset.name,
        may_change=preset.may_change,
        **choice.wanted(),
        requested_by=person.name,
        requested_at=now,
        clone_url=rules.clone_url or repository.clone_url,
        base_branch=branch,
        base_commit=commit,
        prompt=render_off_thread(preset, rules, request.words, token_hex(8), skills=skills),
        skills=skills,
        pinned_to=choice.machine,
    )
    job = await job_rows.create_job(connection, wanted, now)
    if job is None:
        raise Refused("somebody else is starting a task at the moment: try again")
    return job
