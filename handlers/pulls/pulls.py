"""From a human note to a draft pull request.

`ask_for_pull` checks a note and writes down what it approves; `open_pulls` has that carried out (`pull_steps`), again
and again until it is, or can never be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.case import open_pull
from handlers.cases.casebook import Pull, Reply
from handlers.commands.table import Command
from handlers.context import Context
from handlers.effects.outbox import is_as_posted, write_again, write_reply
from handlers.effects.retry_policy import MAX_COUNTED, choose_outage_wait_s, describe_trouble
from handlers.events import IssueComment
from handlers.ports import GitHubError, GitHubUnavailable, NotFound
from handlers.pulls.note import (
    NoteText,
    find_digest_fault,
    find_note_fault,
    find_option_fault,
    matches_digest,
    parse_note,
)
from handlers.pulls.pull_steps import Brought, PullAbandoned, bring, change, name_branch
from handlers.rules import RepositoryRules
from handlers.words import replies
from runner.aside import run_aside
from runner.model.job import DIGEST_SHOWN, Job, Report
from runner.rows import job_rows
from runner.rows.claims import ClaimLost

log = structlog.get_logger()

MAX_COMPARED = 300_000
"""Characters of each of an agent's texts that a note is compared with."""

MAX_REFUSALS = 3
"""Times that GitHub may refuse a step before the pull request is given up."""


# The note


async def ask_for_pull(
    context: Context, rules: RepositoryRules, issue_number: int, comment: IssueComment, command: Command
) -> str | None:
    """Accept a maintainer's note and write down the pull request it approves; else why not, as a reply."""
    if rules.fault:
        return replies.render_broken_rules(rules.fault)
    note = parse_note(command)
    async with context.db.read() as connection:
        case = await casebook.fetch_case(connection, f"{rules.name}#{issue_number}")
        if await casebook.is_accepted(connection, comment.html_url):
            return None
        reports = await casebook.fetch_reports_of(connection, rules.name, issue_number)
        newest = await casebook.fetch_newest_pull(connection, rules.name, issue_number)
        standing = case.standing_job_id if case else None
        report = await job_rows.fetch_report(connection, standing) if standing else None
    if report is None or report.digest is None:
        return replies.render_pull_exists(newest.number) if newest and newest.number else replies.render_no_diff()
    stood = [reply for reply in reports if _stood(reply, comment)]
    fault = await run_aside(report.size, find_fault, note, report, stood)
    if fault:
        return fault
    refusal = await _check_report(context, reports, report)
    if refusal:
        return refusal
    return await _write_down(context, rules, issue_number, comment, note, report)


async def _check_report(context: Context, reports: Sequence[Reply], report: Report) -> str | None:
    """Why what stands on the issue is not what we reported, as a reply, once our comment is on its way there again.

    A note approves what its author read. One whose report could never be posted was read on the job's page.
    """
    reply = next((reply for reply in reports if reply.job_id == report.job_id), None)
    if reply is None:
        return None
    try:
        if await is_as_posted(context, reply):
            return None
        is_gone = False
    except NotFound:
        is_gone = True
    async with context.db.write() as connection:
        await write_again(connection, context, reply, is_gone=is_gone)
    context.ring()
    log.warning("note.report_changed", job=report.job_id, comment=reply.comment_id, deleted=is_gone)
    return replies.render_report_changed(is_gone=is_gone)


def _stood(reply: Reply, comment: IssueComment) -> bool:
    """Whether a report was there when a comment was written. GitHub's times are whole seconds; its ids only grow."""
    if reply.commented_at is None or reply.comment_id is None:
        return False
    return (reply.commented_at, reply.comment_id) < (comment.created_at, comment.id)


def find_fault(note: NoteText, report: Report, stood: list[Reply]) -> str | None:
    """Why a note approves nothing, as a reply; None when it approves the report's diff. `stood` are the reports that
    could be read when it was written, for one that names no digest."""
    digest = report.digest or ""
    shown = digest[:DIGEST_SHOWN]
    if note.digest is not None and not matches_digest(note.digest, digest):
        return find_digest_fault(note.digest) or replies.render_stale_digest(note.digest[:DIGEST_SHOWN], shown)
    if note.digest is None and (not stood or stood[0].job_id != report.job_id):
        return replies.render_newer_report(shown)
    texts = [text[:MAX_COMPARED] for _, text in (*report.texts(), ("Title", report.pr_title))]
    return find_option_fault(note) or find_note_fault(note.text, texts)


async def _write_down(
    context: Context, rules: RepositoryRules, number: int, comment: IssueComment, note: NoteText, report: Report
) -> str | None:
    now = context.now()
    pull = Pull(
        job_id=report.job_id,
        digest=report.digest or "",
        note=note.text,
        title=note.title,
        approver=comment.user.login if comment.user else "ghost",
        note_url=comment.html_url,
        branch=name_branch(number, report.job_id),
        created_at=now,
        next_attempt_at=now,
    )
    async with context.db.write() as connection:
        # Read again, inside the transaction that decides: a newer report may stand by now.
        case = await casebook.fetch_case(connection, f"{rules.name}#{number}")
        if case is None or case.standing_job_id != report.job_id:
            return replies.render_no_diff()
        # Another attempt may have come to the same diff: one pull request is enough for both.
        before = await casebook.fetch_newest_pull(connection, rules.name, number)
        if before is None or before.digest != pull.digest or not await _goes_to_same(connection, before, pull):
            # The branch may be there already, at the commit of the first try.
            given_up = await casebook.fetch_pull(connection, pull.job_id)
            if given_up:
                pull = replace(pull, branch=given_up.branch, commit_sha=given_up.commit_sha)
            await casebook.save_pull(connection, pull)
            before = pull
    context.ring()
    if before.note_url == pull.note_url:
        log.info("note.accepted", job=pull.job_id, by=pull.approver, digest=pull.digest[:DIGEST_SHOWN])
        return None
    return replies.render_pull_exists(before.number) if before.number else replies.render_pull_pending()


async def _goes_to_same(connection: AsyncConnection, one: Pull, other: Pull) -> bool:
    """Whether two are meant for one branch: a rebase onto another may leave a diff as it was."""
    jobs = [await job_rows.fetch_job(connection, pull.job_id) for pull in (one, other)]
    return len({job.base_branch for job in jobs if job}) == 1


# The pull request


async def open_pulls(context: Context) -> None:
    """Carry every accepted note one step further, or to its end. One that fails waits; the others go on."""
    async with context.db.read() as connection:
        due = await casebook.fetch_due_pulls(connection, context.now())
    for pull in due:
        try:
            await _open(context, await change(context, pull, attempts=min(pull.attempts + 1, MAX_COUNTED)))
        except ClaimLost:
            raise
        except Exception as error:
            log.exception("pull.failed", job=pull.job_id)
            await _put_off(context, pull, error)


async def _open(context: Context, pull: Pull) -> None:
    async with context.db.read() as connection:
        job = await job_rows.fetch_job(connection, pull.job_id)
        report = await job_rows.fetch_report(connection, pull.job_id)
        case = await casebook.fetch_case(connection, job.case_key) if job else None
    if job is None or report is None or case is None:
        raise LookupError(f"the report that pull request {pull.job_id} approves is gone")
    with structlog.contextvars.bound_contextvars(**job.log_context()):
        try:
            brought = await bring(context, pull, job, report, case)
        except (GitHubUnavailable, GitHubError, PullAbandoned) as error:
            await _put_off(context, pull, error, job)
        else:
            await context.github.assign(job.repository, brought.request.number, pull.approver)
            await _record(context, pull, job, brought)


async def _record(context: Context, pull: Pull, job: Job, brought: Brought) -> None:
    now, found = context.now(), brought.request
    async with context.db.write() as connection:
        await casebook.change_pull(connection, pull, number=found.number, url=found.url, trouble=None)
        case = await casebook.fetch_case(connection, job.case_key)
        if case:
            await casebook.save_case(connection, open_pull(case, job.id, found.number, now))
        await job_rows.add_event(
            connection, job.id, now, f"draft pull request #{found.number} by @{pull.approver}'s note"
        )
        body = replies.render_pull_opened(found.number, pull.approver, updated=brought.updated)
        await write_reply(connection, context, job.repository, job.issue_number, f"pull of {job.id}", body)
    log.info("pull.opened", number=found.number, branch=pull.branch, by=pull.approver)
    context.ring()


async def _put_off(context: Context, pull: Pull, error: Exception, job: Job | None = None) -> None:
    """Try again later, unless this can never work, or GitHub keeps saying no: then say so on the issue."""
    refusals = pull.refusals + (not isinstance(error, GitHubUnavailable))
    if not job or not (isinstance(error, PullAbandoned) or refusals >= MAX_REFUSALS):
        asked_s = error.retry_after_s if isinstance(error, GitHubUnavailable) else 0.0
        wait_s = choose_outage_wait_s(pull.attempts, asked_s)
        log.warning("pull.waits", reason=str(error), wait_s=wait_s)
        at = context.now() + timedelta(seconds=wait_s)
        trouble = describe_trouble(error)
        await change(context, pull, refusals=refusals, trouble=trouble, next_attempt_at=at)
        return
    log.error("pull.abandoned", reason=str(error))
    async with context.db.write() as connection:
        await casebook.change_pull(connection, pull, abandoned=str(error), trouble=None)
        body, occasion = replies.render_pull_failed(str(error)), f"pull of {job.id} failed, {pull.note_url}"
        await write_reply(connection, context, job.repository, job.issue_number, occasion, body)
    context.ring()
