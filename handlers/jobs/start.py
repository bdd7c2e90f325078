"""Starts the jobs of issues: freezes the issue, renders the brief, and commits case, job and first reply.

`handlers.holds.manual_jobs` starts jobs of people who work in an environment, and `handlers.jobs.tasks` starts tasks
without an issue. `runner.rows.job_rows.create_job` creates all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from secrets import token_hex

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.case import Case, CaseState, begin_job, end_job
from handlers.cases.private_repositories import renew
from handlers.commands.options import Choice, OptionRefused, Options, choose, list_offers
from handlers.commands.rights import Operation, Person
from handlers.context import Context
from handlers.effects.outbox import was_answered, write_reply
from handlers.events import Issue, Repository
from handlers.jobs.brief import render_brief
from handlers.jobs.preconditions import (
    NothingToVerify,
    NotStarted,
    Script,
    check_caps,
    check_edited,
    check_free,
    check_may_replace,
    check_not_paused,
    check_unopposed,
    find_earlier,
    find_known,
    find_preset,
    find_proven_repro,
)
from handlers.jobs.previous_attempts import EarlierAttempt
from handlers.jobs.rebase import Target, find_rebasable, find_target, find_task
from handlers.jobs.snapshot import NewestComments, Snapshot, freeze_issue
from handlers.rules import REBASE, Preset, RepositoryRules, find_command
from handlers.words import form_errors, replies, status_comment
from runner.agents.skills import choose_skills
from runner.aside import run_in_thread
from runner.checks.verification import CheckKind
from runner.model.job import Job, JobKind, JobRequest, JobState, Posts, Topic, ask_again, derive_job_id
from runner.rows import job_rows
from runner.rows.check_rows import add_checks, copy_checks
from runner.rows.tellings import copy_tellings

log = structlog.get_logger()

RETRY = "retry"
"""Instead of a preset: continue the issue's last attempt, with its preset."""


CLOCK_SKEW = timedelta(seconds=60)
"""The most that our clock can be ahead of GitHub's. Beyond that, GitHub refuses our App's signature."""

AT_ONCE = timedelta(seconds=5)
"""Changes of the issue this soon after a label may belong to the same action, such as another label."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A request for a job on an issue, before any check."""

    person: Person
    repository: Repository
    issue: Issue
    preset: str
    """A preset, or `RETRY`."""
    triggered_at: datetime
    trigger: str
    """A unique text for the request. A redelivery has the same text, and so leads to the same job."""
    options: Options = field(default_factory=Options)
    onto: str | None = None
    """The target of a rebase, as the person typed it."""
    target: Target | None = None
    """The target of a rebase, as found on GitHub."""
    steering: str = ""
    comment_id: int | None = None
    """The comment with the request, if any."""
    pull_number: int | None = None
    """The number of our pull request, if the comment is there and not on the issue."""
    as_found: bool = False
    """Whether the label was found later, without its event. `issue` is then as it was when we found the label."""
    by_our_clock: bool = False
    """Whether `triggered_at` is the service's time, because the request is not from GitHub."""
    posts: Posts = Posts.ALL

    @property
    def requested_at(self) -> datetime:
        """The time of the request by GitHub's clock; for our own clock, the earliest possible time."""
        return self.triggered_at - CLOCK_SKEW if self.by_our_clock else self.triggered_at

    @property
    def rules(self) -> RepositoryRules:
        """The rules of the repository."""
        return self.person.rules

    @property
    def topic(self) -> Topic:
        """The issue."""
        return Topic(self.rules.name, self.issue.number)

    @property
    def requested_by(self) -> str:
        """The person's name in rows. A job that posts everything does not name an account at a terminal."""
        return self.person.signature if self.posts is Posts.ALL else self.person.name

    @property
    def command(self) -> str:
        """The command that makes the same request."""
        return "/ptq retry" if self.preset == RETRY else find_command(self.preset)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request after all checks."""

    preset: Preset
    choice: Choice
    earlier: EarlierAttempt | None
    """The attempt that the new job continues, or whose texts it gets."""
    gives_way: Job | None
    """The queued job that the new job replaces."""


async def start_job(context: Context, request: StartRequest) -> None:
    """Create the requested job, or reply why there is none: once, even if the same trigger comes again.

    Raises `NotPermitted`.
    """
    request.person.require(Operation.START)
    rules = request.rules
    async with context.db.read() as connection:
        decided = await was_decided(connection, context, rules.name, request.issue.number, request.trigger)
    if not decided:
        await _decide(context, request)
    # The process may have crashed before the reaction. Reacting twice does no harm.
    await _react(context, rules.name, request)


async def _decide(context: Context, request: StartRequest) -> None:
    rules = request.rules
    objection: NotStarted | None = None
    request = replace(request, repository=await renew(context.github, rules.name, request.repository))
    try:
        await _check(context, request)
    except NotStarted as refused:
        objection = refused
    request = await _aim(context, request)
    snapshot, kept = await freeze(context, request), await _find_kept(context, request)
    async with context.db.write() as connection:
        job = await _answer(connection, context, request, snapshot, kept, objection)
    if job:
        log.info("job.queued", **job.log_context(), preset=job.preset, by=job.requested_by)
    context.notify()


async def start_unheard(context: Context, request: StartRequest, *, unopposed: bool = False) -> Job:
    """Create the job of a request from a page or a terminal, or return the existing one. The thread gets no reply.

    With `unopposed`, the request is refused if people may be working on the issue. Raises `NotPermitted` and
    `NotStarted`.
    """
    request.person.require(Operation.START)
    rules = request.rules
    if unopposed:
        await _check(context, request)
    request = await _aim(context, request)
    snapshot, kept = await freeze(context, request), await _find_kept(context, request)
    async with context.db.write() as connection:
        job_id = name_job(context, rules.name, request.issue.number, request.trigger)
        job = await job_rows.fetch_job(connection, job_id) or await _create(
            connection, context, request, snapshot, kept
        )
    context.notify()
    return job


async def _aim(context: Context, request: StartRequest) -> StartRequest:
    """Return the request. If it is for a rebase, its `target` is set."""
    if request.preset != REBASE:
        return request
    return replace(request, target=await find_target(context, request.rules, request.topic, request.onto))


async def _check(context: Context, request: StartRequest) -> None:
    """Raise `NotStarted` if something on GitHub speaks against the job."""
    if request.pull_number and request.issue.updated_at >= request.triggered_at:
        # The issue is read as it is now, which may not be what the maintainer read. Times are whole seconds.
        raise NotStarted(replies.render_issue_changed(request.issue.number))
    if request.as_found and request.issue.updated_at > request.triggered_at + AT_ONCE:
        # GitHub has no times of single edits, so the text that the maintainer read may be gone.
        raise NotStarted(replies.render_label_too_late())
    if not request.options.anyway:
        await check_unopposed(context, request.rules.name, request.issue, request.command)


async def _answer(
    connection: AsyncConnection,
    context: Context,
    request: StartRequest,
    snapshot: Snapshot,
    kept: Sequence[Script],
    objection: NotStarted | None,
) -> Job | None:
    """Store the job, or a reply that says why there is none. If either exists already, do nothing.

    A refused request stays refused if it is delivered again, even if the reason is gone.
    """
    number, name = request.issue.number, request.rules.name
    if await was_decided(connection, context, name, number, request.trigger):
        return None
    try:
        if objection:
            raise objection
        return await _create(connection, context, request, snapshot, kept)
    except NotStarted as refused:
        occasion = _name_refusal(number, request.trigger)
        await write_reply(connection, context, name, request.pull_number or number, occasion, refused.reply)
        return None


async def _create(
    connection: AsyncConnection, context: Context, request: StartRequest, snapshot: Snapshot, kept: Sequence[Script]
) -> Job:
    """Store the job and its scripts. Raises `NotStarted` before anything is stored."""
    plan = await _plan(connection, context, request)
    scripts = list_scripts(snapshot, kept)
    if not plan.preset.has_agent and not scripts:
        raise NothingToVerify(replies.render_nothing_to_verify(), form_errors.NOTHING_TO_VERIFY)
    if plan.gives_way:
        await _give_way(connection, context, plan.gives_way, request.person.mention)
    wanted = _draft(context, request, snapshot, plan)
    job = await open_job(connection, context.find_page_root(wanted), wanted, context.now())
    await add_checks(connection, job.id, scripts)
    return job


async def _find_kept(context: Context, request: StartRequest) -> Sequence[Script]:
    """The repro of an earlier attempt that the job runs again. The service must have seen it fail.

    This runs before the transaction that creates the job, because it has to judge earlier reports.
    """
    if request.options.fresh:
        return ()
    name, number, private = request.rules.name, request.issue.number, request.repository.private
    async with context.db.read() as connection:
        return await find_proven_repro(connection, name, number, private=private)


def list_scripts(snapshot: Snapshot, earlier: Sequence[Script]) -> list[Script]:
    """The scripts of an issue, and those of earlier attempts that differ from them."""
    scripts = [(CheckKind.ISSUE, repro.origin, repro.code) for repro in snapshot.repros]
    known = {code.strip() for _, _, code in scripts}
    return [*scripts, *(one for one in earlier if one[2].strip() not in known)]


async def _give_way(connection: AsyncConnection, context: Context, waiting: Job, by: str) -> None:
    """Cancel a queued job that its thread was not told about."""
    now = context.now()
    await job_rows.move_job(connection, waiting, JobState.CANCELLED, now, f"replaced by a job that {by} requested")
    if case := await casebook.fetch_case(connection, waiting.case_key):
        await casebook.save_case(connection, end_job(case, waiting.id, now, approvable=False))


async def was_decided(
    connection: AsyncConnection, context: Context, repository: str, issue_number: int, trigger: str
) -> bool:
    """Whether this trigger has its job already, or the reply that says why there is none."""
    if await job_rows.fetch_job(connection, name_job(context, repository, issue_number, trigger)):
        return True
    return await was_answered(connection, repository, _name_refusal(issue_number, trigger))


def name_job(context: Context, repository: str, issue_number: int, trigger: str) -> str:
    """The id of the trigger's job."""
    return derive_job_id(f"{repository}#{issue_number} {trigger}", context.db.secret)


def _name_refusal(issue_number: int, trigger: str) -> str:
    """The occasion of the reply to a refused request."""
    return f"#{issue_number} not started {trigger}"


async def _plan(connection: AsyncConnection, context: Context, request: StartRequest) -> _Plan:
    """Check the preconditions. Raises `NotStarted`."""
    rules, number, private = request.rules, request.issue.number, request.repository.private
    await check_not_paused(connection, rules.name)
    gives_way = await check_free(connection, context, rules.name, number, request.posts)
    earlier, usual, name = None, Choice(rules.agent), request.preset
    if request.preset == RETRY:
        earlier = await find_earlier(connection, context, request.topic)
        name = (request.options.preset or "").casefold() or await find_task(connection, earlier.job)
    elif request.options.preset is not None:
        raise NotStarted(replies.render_preset_for_retry(request.command))
    preset = find_preset(context, rules, name, request.steering)
    if earlier and request.options.preset:
        _check_goes_on(preset, earlier)
    if preset.kind is JobKind.REBASE:
        earlier = await find_rebasable(connection, context, request.topic)
        if request.target is None:
            raise NotStarted(replies.render_nothing_to_rebase(), form_errors.NOTHING_TO_REBASE)
        if request.target.objection:
            raise request.target.objection
    if earlier:
        usual = Choice.of(earlier.job)
    elif preset.carries_on:
        earlier = await find_earlier(connection, context, request.topic)
        check_edited(preset, earlier)
    elif preset.has_agent and not request.options.fresh:
        earlier = await find_known(connection, context, rules.name, number, private=private)
    if request.options.fresh and earlier:
        raise NotStarted(replies.render_not_fresh(request.command), form_errors.NOT_FRESH)
    if earlier and earlier.job.private and not private:
        raise NotStarted(replies.render_private_before())
    offers, machines = list_offers(rules, context.agents), context.machines_for(rules, private=private)
    try:
        choice = choose(request.options, offers, usual, machines, rules.run_caps)
    except OptionRefused as refused:
        why, on_page = str(refused), form_errors.say_option_refused(refused.explain(), refused.option)
        if refused.choices is None:
            raise NotStarted(replies.render_unfit_option(why), on_page) from None
        raise NotStarted(replies.render_option_refused(why, offers, machines), on_page) from None
    await check_caps(connection, context, rules, request.topic, request.requested_by)
    return _Plan(preset, choice, earlier, gives_way)


def _check_goes_on(preset: Preset, earlier: EarlierAttempt) -> None:
    """Raise `NotStarted` if this preset cannot continue an attempt that had a different preset."""
    if preset.kind is not JobKind.AGENT:
        raise NotStarted(replies.render_not_a_retry(preset.command), form_errors.NOT_A_RETRY)
    check_edited(preset, earlier)


async def start_again(connection: AsyncConnection, context: Context, lost: Job) -> Job:
    """Create the one replacement of a lost job, or of a rebase that left conflicts, in the transaction of its report.

    Raises `NotStarted` with a sentence for the report. The brief stays the same, because the request is the same.
    """
    await check_may_replace(connection, context, lost)
    wanted = ask_again(
        lost,
        id=derive_job_id(f"{lost.case_key} in place of {lost.id}", context.db.secret),
        base_commit=lost.base_commit if lost.kind is JobKind.REBASE else None,
        conflicts=None,
        # A lost machine is not requested again.
        pinned_to=None if lost.state is JobState.LOST else lost.pinned_to,
        replaces=lost.id,
    )
    again = await open_job(connection, context.find_page_root(wanted), wanted, context.now())
    await copy_checks(connection, lost.id, again.id)
    await copy_tellings(connection, lost.id, again.id)
    return again


async def open_job(connection: AsyncConnection, public_url: str, request: JobRequest, now: datetime) -> Job:
    """Create the job of an issue without an active one, and update its case and thread.

    The job is confidential if its case is confidential under any name of the repository. It is also confidential if its
    request says so, for example when it replaces a confidential job.
    """
    if await casebook.fetch_confidential(connection, request.repository, request.issue_number):
        request = replace(request, confidential=True)
    job = await job_rows.create_job(connection, request, now)
    assert job
    await open_case(connection, public_url, job)
    return job


async def open_case(connection: AsyncConnection, public_url: str, job: Job) -> None:
    """Make a new job the active one of its case, and store its status comment if it posts one."""
    case = await casebook.fetch_case(connection, job.case_key) or Case(
        job.case_key, job.repository, job.issue_number, job.issue_title, CaseState.IDLE, job.created_at, job.created_at
    )
    await casebook.save_case(connection, begin_job(replace(case, title=job.issue_title), job.id, job.created_at))
    if job.posts is not Posts.ALL:
        return
    queued_before = await job_rows.count_queued_before(connection, job)
    body = status_comment.render_status(job, public_url, queued_before)
    await casebook.insert_reply(connection, casebook.draft_reply(job.id, "status", job, body, job.created_at))


async def freeze(context: Context, request: StartRequest) -> Snapshot:
    """The issue at the time of the request, with its comments. Raises what `handlers.ports.GitHub` raises."""
    rules, issue = request.rules, request.issue
    newest = NewestComments(request.triggered_at, await context.github.own_login(), request.comment_id)
    async for comment in context.github.list_comments(rules.name, issue.number):
        newest.add(comment)
    # In a worker thread, because parsing a hostile issue may take long.
    return await run_in_thread(freeze_issue, issue, newest, rules.import_names)


def _draft(context: Context, request: StartRequest, snapshot: Snapshot, plan: _Plan) -> JobRequest:
    rules, target = request.rules, request.target
    continued = plan.earlier.job if plan.earlier and plan.earlier.continued else None
    branch = rules.base_branch or request.repository.default_branch
    if continued:
        branch = target.branch if target else continued.base_branch
    skills = choose_skills(context.skills, rules.skills, snapshot.labels)
    nonce = token_hex(8)
    return JobRequest(
        id=name_job(context, rules.name, request.issue.number, request.trigger),
        kind=plan.preset.kind,
        repository=rules.name,
        private=request.repository.private,
        thread=request.issue.number,
        issue_title=request.issue.title,
        preset=plan.preset.name,
        may_change=plan.preset.may_change,
        **plan.choice.wanted(),
        requested_by=request.requested_by,
        requested_at=request.requested_at,
        clone_url=rules.clone_url or request.repository.clone_url,
        base_branch=branch,
        base_commit=target.commit if target else None,
        prompt=render_brief(plan.preset, snapshot, rules, request.steering, nonce, skills=skills, earlier=plan.earlier)
        if plan.preset.has_agent
        else "",
        skills=skills,
        # A requested machine overrides the labels.
        requires=() if plan.choice.machine else rules.find_route(snapshot.labels),
        pinned_to=plan.choice.machine,
        posts=request.posts,
        follows=continued.id if continued else None,
    )


async def _react(context: Context, name: str, request: StartRequest) -> None:
    if request.comment_id is None:
        await context.github.react_to_issue(name, request.issue.number, "eyes")
    else:
        await context.github.react_to_comment(name, request.comment_id, "eyes")


def was_requested_before(job: Job, written_at: datetime) -> bool:
    """Whether a job was requested before a text was written, so that the text can be about the job.

    Times are whole seconds, so the same second counts as before.
    """
    return job.requested_at.replace(microsecond=0) <= written_at
