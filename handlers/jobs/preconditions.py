"""The preconditions of a new job: no active job, something to continue from, caps, and nobody working on the issue.

Functions that read the database take the transaction in which the job is created.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.withheld import fetch_withheld
from handlers.commands.options import list_offers
from handlers.context import Context
from handlers.events import Issue
from handlers.jobs.previous_attempts import EarlierAttempt, recall
from handlers.ports import GitHubError, MentioningPull
from handlers.rules import Preset, RepositoryRules
from handlers.text.report import has_words
from handlers.words import form_errors, replies
from handlers.words.form_errors import FormError, strip_marks
from handlers.words.verified import SHOWS_BUG, judge_for
from runner.aside import run_aside, run_in_thread
from runner.changes.concerns import is_withheld
from runner.checks.verification import CheckKind
from runner.model.caps import CapUse, Scope, find_tightest
from runner.model.job import Job, JobState, Posts, Report, Topic
from runner.rows import job_rows
from runner.rows.check_rows import fetch_checks
from runner.rows.pauses import fetch_pauses, find_pause

log = structlog.get_logger()

MAX_NAMED = 5
"""The most people or pull requests that a sentence names."""

MAX_LOOKED_AT = 10
"""How many of the newest attempts are searched for a repro that fails."""


Script = tuple[CheckKind, str, str]
"""A script that the service runs itself: its kind, its origin for people, and its code."""


class NotStarted(Exception):  # noqa: N818
    """No job is started. `reply` says why in a thread, `on_page` in a form, and the exception's text in a terminal."""

    def __init__(self, reply: str, on_page: FormError | None = None) -> None:
        super().__init__((on_page and on_page.in_terminal) or strip_marks(reply))
        self.reply = reply
        self.on_page = on_page or FormError(strip_marks(reply))


class NothingStarts(NotStarted):
    """A pause or a cap would refuse this person on any issue of the repository."""


class Busy(NotStarted):
    """Another job of the issue is active."""


class NothingToVerify(NotStarted):
    """There is no script for the issue."""


_CLOSES = re.compile(
    r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)(?:[ \t]*+:)?+[ \t]++"
    r"(?:(?:https?://[^\s/]+/)?(?P<repository>[\w.-]+/[\w.-]+)(?:#|/issues/)|#|GH-)(?P<number>[0-9]{1,10})(?![0-9])",
    re.IGNORECASE,
)
"""GitHub's keywords with which a pull request closes issues.
https://docs.github.com/en/issues/tracking-your-work-with-issues/using-issues/linking-a-pull-request-to-an-issue"""


def closes(pull: MentioningPull, repository: str, number: int) -> bool:
    """Whether a pull request closes an issue. This takes up to 6 ms for a body of 64 kB. Pure."""
    if str(number) not in pull.body:
        return False
    named = ((found["repository"] or pull.repository, int(found["number"])) for found in _CLOSES.finditer(pull.body))
    return any((name.casefold(), which) == (repository.casefold(), number) for name, which in named)


def find_objections(issue: Issue, pulls: Sequence[str]) -> list[str]:
    """The reasons against a job on an issue, as clauses that are safe to post. Pure.

    `pulls` are the pull requests that would close the issue, in words.
    """
    found = ["this issue is closed"] if issue.state == "closed" else []
    people = [user.login for user in issue.assignees if not user.is_bot]
    if people:
        named = ", ".join(f"`{login}`" for login in people[:MAX_NAMED])
        found.append(f"{'it' if found else 'this issue'} is assigned to {named}")
    if pulls:
        which = "open pull requests" if pulls[1:] else "an open pull request"
        found.append(f"{which} would close it ({', '.join(pulls[:MAX_NAMED])})")
    return found


async def check_unopposed(context: Context, repository: str, issue: Issue, command: str) -> None:
    """Raise `NotStarted` if people may be working on the issue, or have closed it.

    If GitHub cannot list all pull requests that mention the issue, only those that it has listed count.
    """
    objections = find_objections(issue, await _find_closing_pulls(context, repository, issue.number))
    if objections:
        raise NotStarted(replies.render_spoken_against(objections, command), form_errors.say_opposed(objections))


async def _find_closing_pulls(context: Context, repository: str, number: int) -> list[str]:
    """The open pull requests of others that would close an issue, in words."""
    own_login, found = await context.github.own_login(), list[str]()
    try:
        async for pull in context.github.list_mentioning_pulls(repository, number):
            # One at a time, so that other work gets its turn: strangers can mention an issue very often.
            if pull.author != own_login and await run_in_thread(closes, pull, repository, number):
                found.append(f"#{pull.number}" if pull.repository == repository else "one elsewhere")
    except GitHubError as error:
        log.warning("start.pulls_unknown", reason=str(error))
    return found


def find_preset(context: Context, rules: RepositoryRules, name: str, steering: str) -> Preset:
    """The preset of that name. Raises `NotStarted` if it is not allowed, or needs advice and has none."""
    if rules.fault:
        raise NotStarted(replies.render_broken_rules(rules.fault))
    offered = [preset for preset in context.presets.values() if rules.presets is None or preset.name in rules.presets]
    preset = next((preset for preset in offered if preset.name == name), None)
    if preset is None:
        raise NotStarted(replies.render_presets(offered), form_errors.say_unknown_preset(offered))
    if preset.needs_advice and not steering:
        raise NotStarted(replies.render_no_advice(preset.name), form_errors.NO_ADVICE)
    return preset


async def check_not_paused(connection: AsyncConnection, repository: str) -> None:
    """Raise `NotStarted` while new jobs are paused."""
    if pause := find_pause(await fetch_pauses(connection), repository):
        raise NothingStarts(replies.render_paused(pause))


async def check_free(
    connection: AsyncConnection, context: Context, repository: str, number: int, posts: Posts = Posts.ALL
) -> Job | None:
    """The queued job that the new one replaces, if any. Raises `Busy` while another job is active.

    A request in the thread replaces a sweep's job that is still queued, because nobody there knows of the sweep.
    """
    case = await casebook.fetch_case(connection, f"{repository}#{number}")
    if case and case.active_job_id:
        active = await job_rows.fetch_job(connection, case.active_job_id)
        if active and active.state is JobState.QUEUED and active.posts is not Posts.ALL and posts is Posts.ALL:
            return active
        ending = bool(active and active.cancel_requested_at)
        pages = context.find_page_root(active) if active else ""
        on_page = None if ending else form_errors.say_busy(case.active_job_id)
        raise Busy(replies.render_busy(pages, case.active_job_id, ending=ending), on_page)
    return None


async def check_caps(
    connection: AsyncConnection, context: Context, rules: RepositoryRules, topic: Topic, requested_by: str
) -> None:
    """Raise `NotStarted` if a cap of this topic, person or repository is used up."""
    if found := await _find_used_up(connection, context, rules, topic, requested_by):
        use, is_quota = found
        refused = NotStarted if use.scope is Scope.ISSUE else NothingStarts
        raise refused(replies.render_capped(use, requested_by, is_quota=is_quota))


async def _find_used_up(
    connection: AsyncConnection, context: Context, rules: RepositoryRules, topic: Topic, requested_by: str
) -> tuple[CapUse, bool] | None:
    """The cap that is used up most, and whether it is one of the repository's own quotas."""
    spent = await job_rows.fetch_spent(connection, topic, requested_by=requested_by, now=context.now(), caps=rules.caps)
    uses = [
        (use, is_quota)
        for caps, is_quota in ((rules.caps, False), (rules.own_caps, True))
        if (use := find_tightest(caps, spent, starting=True)) and use.share >= 1
    ]
    return max(uses, key=lambda found: found[0].share, default=None)


async def check_may_replace(connection: AsyncConnection, context: Context, lost: Job) -> None:
    """Raise `NotStarted`, with a sentence for the report, if a job that was lost or left conflicts must not be
    restarted automatically."""
    before = await job_rows.fetch_job(connection, lost.replaces) if lost.replaces else None
    if before and before.state is lost.state is JobState.LOST:
        raise NotStarted(replies.render_lost_twice(lost))
    if lost.by_hand:
        raise NotStarted(replies.render_not_again("it only collected a person's edits"))
    if lost.cancel_requested_at:
        raise NotStarted(replies.render_not_again(f"{lost.canceller} had cancelled it"))
    rules = context.rules_for(lost.repository)
    offers = list_offers(rules, context.agents) if rules else {}
    offer = offers.get(lost.agent)
    if offer is None or lost.model not in (None, *offer.models) or lost.thinking not in (None, *offer.thinking):
        raise NotStarted(replies.render_not_again("its agent, model or level of thinking is no longer available here"))
    case = await casebook.fetch_case(connection, lost.case_key)
    if case is None or case.active_job_id:
        raise NotStarted(replies.render_not_again("another job on this issue is running"))
    assert rules
    if found := await _find_used_up(connection, context, rules, lost.topic, lost.requested_by):
        use, is_quota = found
        raise NotStarted(replies.render_capped(use, lost.requested_by, is_quota=is_quota, again=True))


async def find_earlier(connection: AsyncConnection, context: Context, topic: Topic) -> EarlierAttempt:
    """The last attempt at a topic without an active job. Raises `NotStarted` if it cannot be continued."""
    # An attempt that failed without any result does not count: people mean the work before it.
    reported = await job_rows.fetch_last_job(connection, topic, reported=True)
    job = reported or await job_rows.fetch_last_job(connection, topic)
    if job is None:
        raise NotStarted(replies.render_nothing_to_retry(), form_errors.NOTHING_TO_RETRY)
    report = await job_rows.fetch_report(connection, job.id)
    if await fetch_withheld(connection, job.id):
        raise NotStarted(replies.render_retry_refused())
    return recall(job, report, context.secrets)


def check_edited(preset: Preset, earlier: EarlierAttempt) -> None:
    """Raise `NotStarted` if the preset needs edits, and the earlier attempt has none."""
    if preset.carries_on and not earlier.edited:
        raise NotStarted(replies.render_nothing_to_carry_on(preset.command), form_errors.NOTHING_TO_CARRY_ON)


async def find_proven_repro(
    connection: AsyncConnection, repository: str, number: int, *, private: bool
) -> list[Script]:
    """The newest repro of an earlier attempt that shows the bug, as a script to run. Empty if there is none.

    A repro shows the bug if the service saw it fail and, as far as is known, it failed because of the bug, not because
    it looks for a patch. Other repros say nothing about the bug. The result of the script is shown in the thread.
    """
    told = await job_rows.fetch_told(connection, repository, number, private=private, limit=MAX_LOOKED_AT)
    for job in told:
        own = [check for check in await fetch_checks(connection, job.id) if check.kind is CheckKind.AGENT]
        report = await job_rows.fetch_report(connection, job.id) if own else None
        if report is None or not _is_usable(job, report):
            continue
        for check in own:
            finding = await run_aside(report.size, judge_for, job, check, report)
            if finding.verdict in SHOWS_BUG:
                return [(CheckKind.KEPT, f"attempt {job.attempt}", check.script)]
    return []


async def find_known(
    connection: AsyncConnection, context: Context, repository: str, number: int, *, private: bool
) -> EarlierAttempt | None:
    """The results of the newest usable attempt on an issue, for a new attempt that does not continue it.

    None if there is no usable attempt. Reports without words are not usable, because nobody has judged them, and
    neither are confidential reports. Unless the repository is `private` now, reports from when the repository was
    private are not usable either.
    """
    for job in await job_rows.fetch_told(connection, repository, number, private=private, limit=1):
        report = await job_rows.fetch_report(connection, job.id)
        if report and _is_usable(job, report):
            return recall(job, report, context.secrets, continued=False)
    return None


def _is_usable(job: Job, report: Report) -> bool:
    """Whether later attempts may use a report.

    The row of a report says how the report was judged when it was stored. The rules of today may be stricter.
    """
    return has_words(report) and not is_withheld(job, report)
