"""Lets a person have the environment of a job, and takes it back: one way for the command line and for threads.

Every function takes the transaction that its caller opened; what is refused has changed nothing. It refuses to know how
the person is let in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases.withheld import fetch_withheld
from handlers.holds.manual_jobs import KeyHolder, Source, find_origin, start_collecting, start_worktree
from handlers.jobs.preconditions import NotStarted
from handlers.text.sanitize import one_line
from runner.model.job import Job, JobKind, JobState
from runner.rows import job_rows
from runner.rows.holds import Hold, fetch_hold, fetch_holds, save_hold


class HoldRefused(Exception):  # noqa: N818
    """A job cannot be taken over, or released; the message says why, as a sentence without its end."""


@dataclass(frozen=True, slots=True)
class Taken:
    """That a person holds an environment from now on."""

    job: Job
    """Whose environment it is: of a job that had ended for good, a worktree in which that is made anew."""
    hold: Hold
    before: Hold | None
    """The one in whose place this came."""


async def find_job(connection: AsyncConnection, named: str) -> Job | None:
    """The job of an id, or the one that somebody holds under this name."""
    for hold in await fetch_holds(connection):
        held = await job_rows.fetch_job(connection, hold.job_id)
        if held and named in (held.id, held.name):
            return held
    return await job_rows.fetch_job(connection, named)


async def is_gone(connection: AsyncConnection, job: Job) -> bool:
    """Whether nothing is left of a job's environment, so that it would have to be made anew."""
    return not job.active and await fetch_hold(connection, job.id) is None


async def take_over(
    connection: AsyncConnection,
    job: Job,
    person: KeyHolder,
    *,
    agent: str,
    secret: bytes,
    now: datetime,
    machine: str | None = None,
    waits_for_report: bool = False,
) -> Taken:
    """End a job, unless it has ended, and keep its environment for a person; or keep for longer what is kept.

    What is gone already is made again, with the edits that were collected, as a worktree of the job's name: on this
    `machine`, or wherever there is room. With `waits_for_report`, as by a comment, nobody enters one that is at work
    before its report is known, nor any before GitHub was asked again whether they may (`handlers.holds.held`). Raises
    `HoldRefused`.
    """
    before = await fetch_hold(connection, job.id)
    if await is_gone(connection, job):
        job = await _start_again(connection, job, person, agent, machine, secret, now)
        hold = _sign(person.hold(job.id, now), waits=waits_for_report, by_comment=waits_for_report)
        await save_hold(connection, hold)
    elif job.state in (JobState.QUEUED, JobState.PREPARING):
        wait = "it is being made" if job.by_hand else "wait until its agent is at work"
        raise HoldRefused(f"the job has no environment yet; {wait}")
    else:
        waits = waits_for_report and job.active
        hold = _sign(person.hold(job.id, now), waits=waits, by_comment=waits_for_report)
        await save_hold(connection, hold)
    await job_rows.add_event(connection, job.id, now, f"taken over by @{person.name}")
    if job.state is JobState.RUNNING:
        await job_rows.request_cancel(connection, job.id, person.name, now)
    return Taken(job, hold, before)


def _sign(hold: Hold, *, waits: bool, by_comment: bool) -> Hold:
    """A hold that is looked at again, where somebody took it by a comment: GitHub was asked just now."""
    return replace(hold, waits_for_report=waits, checked_at=hold.begun_at if by_comment else None)


async def _start_again(
    connection: AsyncConnection,
    ended: Job,
    person: KeyHolder,
    agent: str,
    machine: str | None,
    secret: bytes,
    now: datetime,
) -> Job:
    """Make the environment of a job that has ended anew."""
    if ended.kind is JobKind.WORKTREE:
        raise HoldRefused("this worktree is gone, and nothing was collected from it: make a new one")
    if await fetch_withheld(connection, ended.id):
        raise HoldRefused("its report is for you alone, and a release would publish its edits: see ptq-bot report")
    source = Source(
        ended.repository, ended.private, ended.clone_url, ended.base_branch, ended.base_commit, agent, ended.id
    )
    try:
        return await start_worktree(connection, person, source, ended.id, machine=machine, secret=secret, now=now)
    except NotStarted as refused:
        raise HoldRefused(refused.reply) from None


async def fetch_releasable(connection: AsyncConnection, held: Job, now: datetime) -> Hold:
    """The hold on a job that has ended. Raises `HoldRefused`."""
    hold = await fetch_hold(connection, held.id)
    if hold is None or hold.expires_at <= now:
        raise HoldRefused("nobody holds this job, or not any more")
    if held.active:
        result = "its environment is not made yet" if held.kind is JobKind.WORKTREE else "its result is still to come"
        raise HoldRefused(f"the job has not ended yet; {result}")
    if held.kind is JobKind.WORKTREE and held.state is not JobState.SUCCEEDED:
        raise HoldRefused(f"its environment was never made: {one_line(held.failure or 'it was lost', 300)}")
    return hold


async def release(
    connection: AsyncConnection,
    held: Job,
    *,
    secret: bytes,
    public_url: str,
    now: datetime,
    requested_at: datetime | None = None,
) -> tuple[Job, Hold]:
    """End a hold: what the person changed is collected by a new attempt, which is given back. Raises `HoldRefused`."""
    hold = await fetch_releasable(connection, held, now)
    try:
        job = await start_collecting(
            connection, held, hold, secret=secret, public_url=public_url, now=now, requested_at=requested_at
        )
    except NotStarted as refused:
        raise HoldRefused(refused.reply) from None
    return job, hold


async def drop(connection: AsyncConnection, held: Job, by: str, now: datetime) -> Hold | None:
    """End a hold, and let what was changed go; or end a worktree that is being made. Raises `HoldRefused`."""
    if held.active and held.kind is JobKind.WORKTREE:
        await job_rows.request_cancel(connection, held.id, by, now)
        hold = await fetch_hold(connection, held.id)
        if hold:  # It may just have been made.
            await save_hold(connection, replace(hold, begun_at=now, expires_at=now))
        return hold
    hold = await fetch_releasable(connection, held, now)
    await save_hold(connection, replace(hold, expires_at=now))
    return hold


async def find_held(connection: AsyncConnection, case_key: str, now: datetime) -> tuple[Job, Hold] | None:
    """The newest hold on an environment that has to do with an issue, and whose that is."""
    for hold in reversed(await fetch_holds(connection)):
        held = await job_rows.fetch_job(connection, hold.job_id)
        if held and hold.expires_at > now and (await find_origin(connection, held)).case_key == case_key:
            return held, hold
    return None
