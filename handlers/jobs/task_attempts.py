"""Further attempts at a task: one that continues the last attempt, and a rebase of its diff.

They belong to the task's series, and follow the same rules as a retry or a rebase on an issue. They post no comments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from secrets import token_hex

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.commands.options import Choice, Options
from handlers.commands.rights import Operation, Person
from handlers.context import Context
from handlers.events import Repository
from handlers.jobs.brief import MAX_STEERING, render_off_thread
from handlers.jobs.preconditions import NotStarted, check_caps, check_edited, check_not_paused, find_earlier
from handlers.jobs.previous_attempts import EarlierAttempt
from handlers.jobs.rebase import Target, find_rebasable, find_target, find_task
from handlers.jobs.tasks import Refused, check_rules, choose_options, choose_preset
from handlers.rules import REBASE, Preset, RepositoryRules
from runner.agents.skills import choose_skills, leave_out_repository
from runner.model.job import Job, JobKind, Posts, ask_again, derive_job_id
from runner.rows import job_rows

USUAL = "ad-hoc"
"""The preset of an attempt that continues one without a preset, such as a person's edits in a worktree."""


@dataclass(frozen=True, slots=True)
class FurtherAttempt:
    """A request for another attempt at the task of a job, before any check."""

    person: Person
    repository: Repository
    job: Job
    occasion: str
    """A unique text. A repeated request has the same text, and finds the same job."""
    advice: str = ""
    options: Options = field(default_factory=Options)
    is_rebase: bool = False
    onto: str | None = None
    """The target of a rebase as typed. None means the newest commit of the base branch."""

    @property
    def rules(self) -> RepositoryRules:
        """The rules of the repository."""
        return self.person.rules


@dataclass(frozen=True, slots=True)
class _FurtherPlan:
    """A request that has passed its checks, with everything that was found out for the new job."""

    preset: Preset
    earlier: EarlierAttempt
    choice: Choice
    task: str


async def start_further(context: Context, request: FurtherAttempt) -> Job:
    """Create another attempt at a task, or return the job that the same occasion created before.

    Raises `NotPermitted`, `Refused`, `NotStarted`, and what `handlers.ports.GitHub` raises.
    """
    request.person.require(Operation.START, request.job.repository)
    check_rules(request.rules)
    if request.options.anyway or request.options.fresh:
        raise Refused("--anyway and --fresh are only for jobs on issues: leave them out")
    if len(request.advice) > MAX_STEERING:
        raise Refused(f"instructions for another attempt have up to {MAX_STEERING:,} characters", "advice")
    target = None
    if request.is_rebase:
        target = await find_target(context, request.rules, request.job.topic, request.onto)
    async with context.db.write() as connection:
        return await _create(connection, context, request, target)


async def _create(
    connection: AsyncConnection,
    context: Context,
    request: FurtherAttempt,
    target: Target | None,
) -> Job:
    rules, repository, now = request.rules, request.repository, context.now()
    job_id = derive_job_id(f"{rules.name}~{request.job.series} {request.occasion}", context.db.secret)
    if given := await job_rows.fetch_job(connection, job_id):
        return given
    await check_not_paused(connection, rules.name)
    plan = await _plan(connection, context, request, target)
    await check_caps(connection, context, rules, request.job.topic, request.person.name)
    earlier = plan.earlier.job
    # Skills that are no longer configured are dropped, and none are added, because the commit may be a stranger's.
    skills = tuple(name for name in choose_skills(context.skills, rules.skills, ()) if name in earlier.skills)
    if request.onto is not None:
        skills = leave_out_repository(skills, context.skills)
    wanted = ask_again(
        earlier,
        id=job_id,
        kind=JobKind.REBASE if request.is_rebase else JobKind.TASK,
        private=repository.private,
        task=plan.task,
        preset=plan.preset.name,
        may_change=plan.preset.may_change,
        **plan.choice.wanted(),
        requested_by=request.person.name,
        requested_at=now,
        clone_url=rules.clone_url or repository.clone_url,
        base_branch=target.branch if target else earlier.base_branch,
        base_commit=target.commit if target else None,
        prompt=render_off_thread(
            plan.preset,
            rules,
            plan.task,
            token_hex(8),
            skills=skills,
            # A person's edits in a worktree have no task, so the instructions become the task.
            steering=request.advice if plan.earlier.job.task else "",
            earlier=plan.earlier,
        ),
        skills=skills,
        pinned_to=plan.choice.machine,
        posts=Posts.ALL,
        follows=earlier.id,
        replaces=None,
        adopts=None,
        conflicts=None,
    )
    created = await job_rows.create_job(connection, wanted, now)
    if created is None:
        raise Refused("another attempt at this task is running: cancel it first, or wait for it")
    return created


async def _plan(
    connection: AsyncConnection,
    context: Context,
    request: FurtherAttempt,
    target: Target | None,
) -> _FurtherPlan:
    rules, repository, topic, options = request.rules, request.repository, request.job.topic, request.options
    if request.is_rebase:
        if target is None:
            raise Refused("there is no diff to rebase: none waits for a note, and none is in a pull request of ptq-bot")
        if target.objection:
            raise target.objection
        earlier = await find_rebasable(connection, context, topic)
        preset = choose_preset(REBASE, rules, context.presets, kind=JobKind.REBASE, continues=True)
    else:
        try:
            earlier = await find_earlier(connection, context, topic)
        except NotStarted:
            raise Refused("this attempt cannot be continued: start a new task") from None
        if earlier.job.kind is JobKind.WORKTREE:
            raise Refused(
                "nothing has been collected from this worktree yet: release it first, or assign it to an agent"
            )
        before = await find_task(connection, earlier.job)
        usual = before if before in context.presets else USUAL
        preset = choose_preset(options.preset or usual, rules, context.presets, continues=True)
        if options.preset:
            check_edited(preset, earlier)
    if earlier.job.private and not repository.private:
        raise Refused("the last attempt ran while this repository was private, so its results are not used here")
    # A person's edits in a worktree have no task, so the instructions become the task.
    task = earlier.job.task or request.advice
    if not task.strip() and not request.is_rebase:
        raise Refused("say what the agent should do", "advice")
    choice = choose_options(context, rules, repository, options, Choice.of(earlier.job))
    return _FurtherPlan(preset, earlier, choice, task)
