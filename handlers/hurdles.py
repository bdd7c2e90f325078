"""What can stand in the way of a new job: another one, nothing to carry on from, or a cap that is used up.

Every function takes the transaction in which the job is to be made.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers import casebook, replies
from handlers.context import Context
from handlers.earlier import EarlierAttempt, recall
from handlers.options import list_offers
from handlers.report import is_confidential
from runner import store
from runner.caps import Use, find_tightest
from runner.job import Job


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
    if use := await _find_used_up(connection, context, repository, number, requested_by):
        raise NotStarted(replies.render_capped(use, requested_by))


async def _find_used_up(
    connection: AsyncConnection, context: Context, repository: str, number: int, requested_by: str
) -> Use | None:
    spent = await store.fetch_spent(
        connection, repository=repository, issue_number=number, requested_by=requested_by, now=context.now()
    )
    use = find_tightest(context.caps_for(repository), spent, starting=True)
    return use if use and use.share >= 1 else None


async def check_may_replace(connection: AsyncConnection, context: Context, lost: Job) -> None:
    """Raise `NotStarted`, with a sentence for the report, when a lost job is not to be started again by itself."""
    if lost.replaces:
        raise NotStarted(replies.render_lost_twice(lost))
    if lost.by_hand:
        raise NotStarted(replies.render_not_again("it only collected what a person had done by hand"))
    if lost.cancel_requested_at:
        raise NotStarted(replies.render_not_again(f"@{lost.cancelled_by} had asked for its end"))
    rules = context.rules_for(lost.repository)
    offers = list_offers(rules, context.agents) if rules else {}
    if lost.agent not in offers or (lost.model and lost.model not in offers[lost.agent]):
        raise NotStarted(replies.render_not_again("its agent or its model is no longer offered here"))
    case = await casebook.fetch_case(connection, lost.case_key)
    if case is None or case.active_job_id:
        raise NotStarted(replies.render_not_again("another job on this issue is under way"))
    use = await _find_used_up(connection, context, lost.repository, lost.issue_number, lost.requested_by)
    if use:
        raise NotStarted(replies.render_not_again(f"{use.describe(lost.requested_by)} is used up"))


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
