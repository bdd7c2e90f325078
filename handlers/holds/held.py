"""Checks the permissions of people with holds again on GitHub: before access is granted, and every few minutes after.

Only holds from comments are checked, because people to whom the operator gave access need no GitHub account.
"""

from __future__ import annotations

from datetime import timedelta

import structlog

from handlers.cases import casebook
from handlers.commands.permissions import identify
from handlers.commands.rights import Operation, Surface
from handlers.context import Context
from handlers.effects.outbox import write_reply
from handlers.holds import hold_replies
from handlers.holds.manual_jobs import find_origin
from handlers.ports import GitHubError, GitHubUnavailable
from runner.model.job import Job
from runner.rows import job_rows
from runner.rows.claims import ClaimLost
from runner.rows.holds import Hold, change_hold, end_hold, fetch_hold, fetch_holds

log = structlog.get_logger()

CHECK_EVERY = timedelta(minutes=5)


async def check_holds(context: Context) -> None:
    """Check all holds that are due. If GitHub does not answer about a hold, the next pass asks again.

    Until then, the person keeps access if they have it, and gets none if they do not.
    """
    async with context.db.read() as connection:
        holds = [hold for hold in await fetch_holds(connection) if hold.waits_for_report or hold.checked_at]
        unreported = await casebook.fetch_unreported_job_ids(connection) if holds else ()
    for hold in holds:
        try:
            async with context.db.read() as connection:
                job = await job_rows.fetch_job(connection, hold.job_id)
            if job and not job.active and job.id not in unreported and _is_due(context, hold):
                await _check(context, hold, job)
        except ClaimLost:
            raise
        except (GitHubError, GitHubUnavailable) as error:
            log.warning("hold.not_checked", job=hold.job_id, person=hold.person, reason=str(error))
        except Exception:  # A failure of one hold does not affect others.
            log.exception("hold.not_checked", job=hold.job_id)


def _is_due(context: Context, hold: Hold) -> bool:
    now = context.now()
    if hold.waits_for_report or hold.checked_at is None:
        return True
    # A clock that was ahead must not delay checks.
    return now < hold.expires_at and not hold.checked_at <= now < hold.checked_at + CHECK_EVERY


async def _check(context: Context, hold: Hold, job: Job) -> None:
    """Grant or continue access if the person may open pull requests; otherwise end the hold, and say so."""
    may = False
    if rules := context.rules_for(job.repository):
        person = await identify(context, rules, hold.person, Surface.THREAD, Operation.TAKE_OVER)
        may = person.may(Operation.TAKE_OVER)
    async with context.db.write() as connection:
        now = context.now()
        asked, found = hold, await fetch_hold(connection, job.id)
        if found is None or (found.person, found.checked_at) != (asked.person, asked.checked_at):
            return  # The next pass reads it again.
        hold = found  # Its time may have started meanwhile.
        if may:
            await change_hold(connection, hold, checked_at=now, waits_for_report=False)
            return
        if hold.waits_for_report:
            await end_hold(connection, hold)
        else:  # The machine may have granted access: the hold ends when that is revoked.
            await change_hold(connection, hold, expires_at=now)
        await job_rows.add_event(connection, job.id, now, f"@{hold.person} may no longer hold this: GitHub says so")
        origin = await find_origin(connection, job)
        if origin.thread is not None:
            body = hold_replies.render_no_longer_allowed(hold)
            occasion = f"hold {job.id} {hold.begun_at.isoformat()} is not allowed"
            await write_reply(connection, context, origin.repository, origin.thread, occasion, body)
    log.warning("hold.not_allowed", **job.log_context(), person=hold.person)
    context.notify()
