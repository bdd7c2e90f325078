"""What can stand in the way of a new job: another one, nothing to carry on from, or a cap that is used up.

Every function takes the transaction in which the job is to be made.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers import casebook, replies
from handlers.context import Context
from handlers.earlier import EarlierAttempt, recall
from handlers.report import is_confidential
from runner import store
from runner.caps import find_tightest


class NotStarted(Exception):  # noqa: N818
    """No job is to be made; `reply` tells people why."""

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        self.reply = reply


async def check_free(connection: AsyncConnection, context: Context, repository: str, number: int) -> None:
    """Raise `NotStarted` while a job of the issue is active."""
    case = await casebook.fetch_case(connection, f"{repository}#{number}")
    if case and case.active_job_id:
        active = await store.fetch_job(connection, case.active_job_id)
        ending = bool(active and active.cancel_requested_at)
        raise NotStarted(replies.render_busy(replies.job_url(context.public_url, case.active_job_id), ending=ending))


async def check_caps(
    connection: AsyncConnection, context: Context, repository: str, number: int, requested_by: str
) -> None:
    """Raise `NotStarted` while a cap on this issue, this person or this repository is used up."""
    spent = await store.fetch_spent(
        connection, repository=repository, issue_number=number, requested_by=requested_by, now=context.now()
    )
    use = find_tightest(context.caps_for(repository), spent, starting=True)
    if use and use.share >= 1:
        raise NotStarted(replies.render_capped(use, requested_by))


async def find_earlier(connection: AsyncConnection, context: Context, repository: str, number: int) -> EarlierAttempt:
    """The last attempt on an issue that has no active one. Raises `NotStarted` when nobody may carry on from it."""
    # One that failed before anything came of it leaves nothing: its predecessor's work is what people mean.
    reported = await store.fetch_last_job(connection, repository, number, reported=True)
    job = reported or await store.fetch_last_job(connection, repository, number)
    if job is None:
        raise NotStarted(replies.render_nothing_to_retry())
    report = await store.fetch_report(connection, job.id)
    if report and is_confidential(report.body):
        raise NotStarted(replies.render_retry_refused())
    return recall(job, report, context.secrets)
