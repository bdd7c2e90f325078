"""`/ptq rebase`: what to rebase, onto which commit, and whether to try again after conflicts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.context import Context
from handlers.jobs.history import leads_to, settle_base_branch
from handlers.jobs.preconditions import NotStarted
from handlers.jobs.previous_attempts import EarlierAttempt, recall
from handlers.rules import REBASE, RepositoryRules
from handlers.text.report import has_words
from handlers.words import form_errors, replies
from runner.changes.concerns import names_concern
from runner.changes.rebase import find_unresolved
from runner.model.ending import Ending
from runner.model.history import COMMIT
from runner.model.job import Job, JobKind, JobState, Report, Topic
from runner.model.meter import Meter
from runner.rows import job_rows

MAX_TRIES = 3
"""The most agents that try to resolve the conflicts of one rebase, one after the other."""

MAX_REF = 200
"""The most characters of a branch's name."""

_ONTO = re.compile(r"onto(?:\s+(?P<ref>(?!--|[–—])\S+))?(?:\s+|$)", re.IGNORECASE)
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/-]*")
"""The form of a branch's name: stricter than in git (git-check-ref-format(1)), without any special characters."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a rebase."""

    branch: str
    commit: str | None = None
    """None means the commit that is the branch's newest when a machine begins."""
    objection: NotStarted | None = None
    """Why this target is not possible."""


def read_onto(argument: str) -> tuple[str | None, str]:
    """Split a command's argument into the word after `onto` and the rest. Pure.

    The word is None if the argument does not begin with `onto`, and empty if no word follows `onto`.
    """
    found = _ONTO.match(argument)
    if not found:
        return None, argument
    return (found["ref"] or "").strip("`"), argument[found.end() :]


def is_branch(ref: str) -> bool:
    """Whether this can be the name of a branch. Pure."""
    odd = ("..", "//", "/.", "./", ".lock/")
    return len(ref) <= MAX_REF and _BRANCH.fullmatch(ref) is not None and not any(part in f"{ref}/" for part in odd)


async def find_rebasable(connection: AsyncConnection, context: Context, topic: Topic) -> EarlierAttempt:
    """The attempt whose diff a note could approve, or else the one in the newest pull request. Raises `NotStarted`.

    No other attempt is considered, because a rebase must not make a diff approvable that was not approvable before.
    """
    pull = await casebook.fetch_brought_pull(connection, topic)
    job_id = await casebook.fetch_standing_id(connection, topic) or (pull and pull.job_id)
    job = await job_rows.fetch_job(connection, job_id) if job_id else None
    report = await job_rows.fetch_report(connection, job.id) if job else None
    if job is None or report is None or report.digest is None:
        raise NotStarted(replies.render_nothing_to_rebase(), form_errors.NOTHING_TO_REBASE)
    return recall(job, report, context.secrets)


async def find_target(context: Context, rules: RepositoryRules, topic: Topic, onto: str | None) -> Target | None:
    """The target to which a topic's diff would be rebased now. None if there is no diff to rebase."""
    try:
        async with context.db.read() as connection:
            job = (await find_rebasable(connection, context, topic)).job
    except NotStarted:
        return None
    job = await settle_base_branch(context.github, rules, job)
    branch, commit = job.base_branch, None
    if onto is not None and COMMIT.fullmatch(onto.lower()):
        commit = onto.lower()
    elif onto is not None:
        branch = onto
    newest = await context.github.fetch_branch_sha(rules.name, branch) if onto is None or is_branch(branch) else None
    if newest is None or (commit and not await leads_to(context.github, rules.name, commit, newest)):
        if onto is None:  # A task can have begun at a tag, or at the head of a pull request.
            return Target(branch, objection=_say_missing(branch))
        reply, on_page = replies.render_onto_refused(job.base_branch), form_errors.say_onto_refused(job.base_branch)
        return Target(branch, objection=NotStarted(reply, on_page))
    if (branch, commit or newest) == (job.base_branch, job.base_commit):
        return Target(branch, objection=NotStarted(replies.render_up_to_date(branch, commit or newest)))
    return Target(branch, commit)


def _say_missing(branch: str) -> NotStarted:
    return NotStarted(replies.render_onto_missing(branch), form_errors.say_onto_missing(branch))


async def find_task(connection: AsyncConnection, job: Job) -> str:
    """The preset for a retry of a job. For a rebase, this is the preset of the attempt that was rebased."""
    while job.preset == REBASE and job.follows and (before := await job_rows.fetch_job(connection, job.follows)):
        job = before
    return job.preset


def left_conflicts(job: Job, report: Report | None, meter: Meter | None) -> bool:
    """Whether an agent finished and left conflicts. After any other end, no other agent tries. Pure."""
    if job.kind is not JobKind.REBASE or job.state is not JobState.FAILED or report is None or meter is None:
        return False
    by_itself = meter.ending == Ending.FINISHED and has_words(report) and not names_concern(report)
    return by_itself and bool(find_unresolved(job, report.changes))


async def is_to_be_tried_again(connection: AsyncConnection, job: Job, report: Report | None) -> bool:
    """Whether another agent should resolve the conflicts of this rebase."""
    if not left_conflicts(job, report, await job_rows.fetch_meter(connection, job.id)):
        return False
    tries, before = 1, job
    while before.replaces and (found := await job_rows.fetch_job(connection, before.replaces)):
        before = found
        tries += before.state is JobState.FAILED
    return tries < MAX_TRIES
