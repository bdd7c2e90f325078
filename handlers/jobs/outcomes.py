"""Updates each status comment, and writes exactly one report for every ended job.

Jobs that post nothing, or only a finding, are finished in the same way.

Each pass looks at the current rows, not at events (level-triggered), so a crash does no harm. This module only stores
what should be posted. `handlers.effects.outbox` posts it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.case import end_job
from handlers.cases.casebook import Reply
from handlers.cases.withheld import fetch_withheld
from handlers.context import Context
from handlers.jobs.preconditions import NotStarted
from handlers.jobs.rebase import is_to_be_tried_again
from handlers.jobs.start import start_again
from handlers.notices.notifications import draft_concern
from handlers.words import replies, status_comment
from handlers.words.report_comment import Draft, EndedJob, approvable, draft_report, shows_diff
from handlers.words.verified import find_outcome
from runner.aside import run_aside
from runner.changes.concerns import names_concern
from runner.model.job import Job, JobKind, JobState, Posts
from runner.rows import job_rows
from runner.rows.check_rows import fetch_checks
from runner.rows.claims import ClaimLost
from runner.rows.holds import refuse_hold
from runner.rows.notifications import insert_notification
from runner.rows.tellings import fetch_tellings
from runner.rows.worklogs import fetch_worklog

log = structlog.get_logger()

MIN_PROGRESS = timedelta(minutes=2)
"""The shortest time between updates that only change numbers, because GitHub counts every edit."""


async def report_jobs(context: Context) -> None:
    """One pass: reports for ended jobs, then outdated status comments.

    A failure is retried in the next pass, and does not delay others.
    """
    async with context.db.read() as connection:
        unreported = await casebook.fetch_unreported_job_ids(connection)
        statuses = await casebook.fetch_open_statuses(connection)
    for job_id in unreported:
        try:
            await _report(context, job_id)
        except ClaimLost:
            raise
        except Exception:
            log.exception("report.failed", job=job_id)
    for status in statuses:
        try:
            await _refresh(context, status)
        except ClaimLost:
            raise
        except Exception:
            log.exception("status.failed", reply=status.id)


async def _read_ended(context: Context, job: Job) -> EndedJob:
    """Read everything for a job's report in one transaction. Later only the job's row can still change."""
    async with context.db.read() as connection:
        report, meter = await job_rows.fetch_report(connection, job.id), await job_rows.fetch_meter(connection, job.id)
        case = await casebook.fetch_case(connection, job.case_key)
        pull_number = case.pull_number if case else None
        is_quoted = job.agent_failed and context.opens_log(job)
        log = await job_rows.fetch_compressed_log(connection, job.id, "agent") if is_quoted else None
        digest = report.digest if case and report else None
        same = await casebook.fetch_same_pull(connection, job, digest) if digest else None
        checks, tellings = await fetch_checks(connection, job.id), await fetch_tellings(connection, job.id)
        return EndedJob(job, report, meter, checks, tellings, pull_number, log, same)


async def _report(context: Context, job_id: str) -> None:
    """Store the report, move the case, and notify the operator of a confidential report, in one transaction.

    A report that names a security concern makes its case confidential, before another job of the case can be requested.
    Slow work is done before the transaction, because nobody else can write during it. If the job has changed since it
    was read, the next pass starts again. A rebase that left conflicts and is tried again gets no report, because the
    report of the last try has everything.
    """
    async with context.db.read() as connection:
        job = await job_rows.fetch_job(connection, job_id)
    if job is None:
        return
    ended = await _read_ended(context, job)
    draft = await run_aside(ended.size, _render, context, ended)
    is_new = ended.same_pull is None
    is_approvable = is_new and await run_aside(ended.size, _is_approvable, context, ended, draft)
    has_concern = await run_aside(ended.size, names_concern, ended.report)
    async with context.db.write() as connection:
        if await job_rows.fetch_job(connection, job_id) != job:
            return
        if await casebook.fetch_job_reply(connection, job_id, "report"):
            return
        case = await casebook.fetch_case(connection, job.case_key)
        if job.posts is not Posts.ALL and (case is None or case.active_job_id != job_id):
            return
        if case:
            case = end_job(case, job_id, context.now(), approvable=is_approvable)
            await casebook.save_case(connection, replace(case, confidential=case.confidential or has_concern))
        next_step = await _follow_up(connection, context, ended, draft)
        if await _is_posted(connection, ended):
            body, reply_id = draft.finish(next_step), casebook.derive_reply_id(f"report {job_id}")
            reply = casebook.draft_reply(reply_id, "report", job, body, context.now())
            await casebook.insert_reply(connection, reply)
        if has_concern or job.confidential:
            await refuse_hold(connection, job.id)
            concern = draft_concern(job, ended.report, context.now(), inherited=not has_concern)
            await insert_notification(connection, concern)
    log.info("report.written", **job.log_context(), state=str(job.state), posts=str(job.posts))
    context.notify()


def _is_approvable(context: Context, ended: EndedJob, draft: Draft) -> bool:
    """Whether a note can approve the diff. If the job has no page, the comment has to show the whole diff."""
    has_page, report = bool(context.find_page_root(ended.job)), ended.report
    return approvable(ended.job, report, context.secrets, has_page=has_page) and (
        has_page or (report is not None and shows_diff(draft.above, report, context.secrets))
    )


async def _is_posted(connection: AsyncConnection, ended: EndedJob) -> bool:
    """Whether the report of an ended job is posted in the thread."""
    job = ended.job
    has_failed = job.state is JobState.FAILED
    if job.kind is JobKind.REBASE and has_failed and await job_rows.fetch_successor(connection, job.id):
        return False
    if job.posts is not Posts.FINDING:
        return job.posts is Posts.ALL
    return not job.confidential and find_outcome(job.state, ended.checks).is_definite


async def _follow_up(connection: AsyncConnection, context: Context, ended: EndedJob, draft: Draft) -> str | None:
    """Restart a job that was lost or left conflicts. Returns a sentence about that, or None after any other end."""
    job = ended.job
    if job.state is not JobState.LOST and not await is_to_be_tried_again(connection, job, ended.report):
        return None
    try:
        again = await start_again(connection, context, job)
    except NotStarted as refused:
        return f"{refused.reply} {draft.next_step}"
    log.info("job.replaced", **job.log_context(), by=again.id)
    return replies.render_started_again(again, context.find_page_root(job))


async def render_report(context: Context, job: Job) -> str:
    """The current report of an ended job."""
    ended = await _read_ended(context, job)
    return (await run_aside(ended.size, _render, context, ended)).finish()


def _render(context: Context, ended: EndedJob) -> Draft:
    """Render the report. If an agent's text makes this fail, return a short text instead."""
    job = ended.job
    try:
        return draft_report(context, ended)
    except Exception:
        log.exception("report.not_rendered", **job.log_context())
        return Draft(replies.render_unrenderable(job, context.find_page_root(job)))


async def _refresh(context: Context, status: Reply) -> None:
    """Update a status comment. Its final text links to the report."""
    async with context.db.read() as connection:
        job = await job_rows.fetch_job(connection, status.job_id or "")
        if job is None:
            return
        body, final = await _render_status(connection, context, job)
    if (body, final) == (status.body, status.final) or _is_early(context, status, body):
        return
    async with context.db.write() as connection:
        if await job_rows.fetch_job(connection, job.id) != job:
            return  # The next pass continues.
        await casebook.change_reply(connection, status, body=body, final=final, changed_at=context.now())
    context.notify()


def _is_early(context: Context, status: Reply, body: str) -> bool:
    """Whether only numbers would change, too soon after the last update."""
    if status_comment.drop_progress(body) != status_comment.drop_progress(status.body):
        return False
    return context.now() - (status.changed_at or status.created_at) < MIN_PROGRESS


async def describe_active(connection: AsyncConnection, context: Context, job: Job) -> str:
    """The status of an active job, as everybody in its thread may read it."""
    queued_before = await job_rows.count_queued_before(connection, job)
    meter = worklog = None
    if job.state is JobState.RUNNING:
        meter = await job_rows.fetch_meter(connection, job.id)
        worklog = await fetch_worklog(connection, job.id) if context.opens_log(job) else None
    written = worklog.text if worklog else ""
    pages = context.find_page_root(job)
    return status_comment.render_status(job, pages, queued_before, meter, context.secrets, written)


async def _render_status(connection: AsyncConnection, context: Context, job: Job) -> tuple[str, bool]:
    """The text of a job's status comment, and whether it is final."""
    pages = context.find_page_root(job)
    if job.active:
        return await describe_active(connection, context, job), False
    report = await casebook.fetch_job_reply(connection, job.id, "report")
    again = await job_rows.fetch_successor(connection, job.id) if report is None else None
    if again:
        return status_comment.render_tried_again(job, again, pages), True
    if report is None or not (report.comment_url or report.abandoned):
        # The report is not posted yet, and people should see it before the final status.
        return status_comment.render_reporting(job, pages), False
    confidential = await fetch_withheld(connection, job.id)
    url = report.comment_url
    return status_comment.render_finished_status(job, pages, url, confidential=confidential), True
