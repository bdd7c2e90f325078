"""Jobs as people see them: keeps each status comment true, and writes exactly one report for every job that ended.

Level-triggered: looks at the rows as they are, so a crash between any two of them costs nothing. It only writes down
what should be posted; `handlers.outbox` posts it.
"""

from __future__ import annotations

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers import casebook, replies
from handlers.case import end_job
from handlers.casebook import Reply
from handlers.context import Context
from handlers.report_comment import approvable, render_report_comment
from runner import store
from runner.job import Job, Report

log = structlog.get_logger()


async def report_jobs(context: Context) -> None:
    """One pass: reports for the jobs that ended, then every status comment that no longer says how things stand."""
    async with context.db.read() as connection:
        unreported = await casebook.fetch_unreported_job_ids(connection)
        statuses = await casebook.fetch_open_statuses(connection)
    for job_id in unreported:
        await _report(context, job_id)
    for status in statuses:
        try:
            await _refresh(context, status)
        except Exception:
            log.exception("status.failed", reply=status.id)


async def _report(context: Context, job_id: str) -> None:
    """Write the report and move the case, in one transaction."""
    async with context.db.write() as connection:
        job = await store.fetch_job(connection, job_id)
        if job is None or await casebook.fetch_job_reply(connection, job_id, "report"):
            return
        report = await store.fetch_report(connection, job_id)
        body = _render(context, job, report)
        reply = casebook.draft_reply(casebook.derive_reply_id(f"report {job_id}"), "report", job, body, context.now())
        await casebook.insert_reply(connection, reply)
        case = await casebook.fetch_case(connection, job.case_key)
        if case:
            is_approvable = approvable(job, report, context.secrets)
            await casebook.save_case(connection, end_job(case, job_id, context.now(), approvable=is_approvable))
    log.info("report.written", **job.log_context(), state=str(job.state))
    context.ring()


def _render(context: Context, job: Job, report: Report | None) -> str:
    """The report; or, whatever an agent wrote that makes us stumble, a few words in its place."""
    model = context.model_of(job)
    try:
        return render_report_comment(job, report, model=model, public_url=context.public_url, secrets=context.secrets)
    except Exception:
        log.exception("report.not_rendered", **job.log_context())
        return replies.render_unrenderable(job, context.public_url)


async def _refresh(context: Context, status: Reply) -> None:
    """Let the status comment say what is so now; its last word is the link to the report."""
    async with context.db.write() as connection:
        job = await store.fetch_job(connection, status.job_id or "")
        if job is None:
            return
        body, final = await _say(connection, context, job)
        if (body, final) == (status.body, status.final):
            return
        await casebook.change_reply(connection, status, body=body, final=final)
    context.ring()


async def _say(connection: AsyncConnection, context: Context, job: Job) -> tuple[str, bool]:
    if job.active:
        queued_before = await store.count_queued_before(connection, job)
        return replies.render_status(job, context.public_url, queued_before), False
    report = await casebook.fetch_job_reply(connection, job.id, "report")
    if report is None or not (report.comment_url or report.abandoned):
        # The moment between the end and the posted report: the report is what people should see first.
        return replies.render_reporting(job, context.public_url), False
    return replies.render_finished_status(job, context.public_url, report.comment_url), True
