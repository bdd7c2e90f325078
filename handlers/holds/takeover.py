"""Gives a person the environment of a job, and takes it back. Threads and the terminal use the same functions.

Every function takes its caller's transaction. A refused operation has changed nothing. This module does not know how
the machine gives the person access.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases.withheld import fetch_withheld
from handlers.commands.rights import Operation, Person, Surface
from handlers.holds.manual_jobs import HoldRefused, KeyHolder, Source, find_origin, start_collecting, start_worktree
from handlers.text.sanitize import one_line
from runner.model.job import Job, JobKind, JobState
from runner.rows import job_rows
from runner.rows.holds import Hold, fetch_hold, fetch_holds, save_hold


@dataclass(frozen=True, slots=True)
class Taken:
    """An accepted takeover."""

    job: Job
    """The job with the environment. If the environment was gone, this is the worktree that rebuilds it."""
    hold: Hold
    before: Hold | None
    """The hold that this one replaced."""


async def find_job(connection: AsyncConnection, named: str) -> Job | None:
    """The job with this id, or the held one with this name."""
    for hold in await fetch_holds(connection):
        held = await job_rows.fetch_job(connection, hold.job_id)
        if held and named in (held.id, held.name):
            return held
    return await job_rows.fetch_job(connection, named)


async def is_gone(connection: AsyncConnection, job: Job) -> bool:
    """Whether a job's environment is gone, so that it would have to be rebuilt."""
    return not job.active and await fetch_hold(connection, job.id) is None


async def take_over(
    connection: AsyncConnection,
    person: Person,
    job: Job,
    guest: KeyHolder,
    *,
    agent: str,
    secret: bytes,
    now: datetime,
    machine: str | None = None,
) -> Taken:
    """End a job, unless it has ended, and hold its environment for a guest. A new hold replaces an earlier one.

    If the environment is gone, a worktree rebuilds it, with the edits that were collected. The worktree has the job's
    id as its name. It is made on this `machine`, or wherever there is room.

    A person at the terminal gives access without further checks. In other cases, if the job is active or the
    environment is rebuilt, access waits until the job has ended, its report is known, and GitHub was asked again
    whether the guest may have it (`handlers.holds.held`). Raises `NotPermitted` and `HoldRefused`.
    """
    person.require(Operation.TAKE_OVER, job.repository)
    is_checked = person.surface is not Surface.TERMINAL
    before = await fetch_hold(connection, job.id)
    if await is_gone(connection, job):
        job = await _start_again(connection, job, guest, agent, machine, secret, now)
        hold = _sign(guest.hold(job.id, now), waits=is_checked, is_checked=is_checked)
    elif job.state in (JobState.QUEUED, JobState.PREPARING):
        wait = "it is being built" if job.by_hand else "wait until its agent runs"
        raise HoldRefused(f"the job has no environment yet; {wait}")
    else:
        hold = _sign(guest.hold(job.id, now), waits=is_checked and job.active, is_checked=is_checked)
    await save_hold(connection, hold)
    await job_rows.add_event(connection, job.id, now, f"taken over by {hold.mention}")
    if job.state is JobState.RUNNING:
        await job_rows.request_cancel(connection, job.id, guest.name if is_checked else person.signature, now)
    return Taken(job, hold, before)


def _sign(hold: Hold, *, waits: bool, is_checked: bool) -> Hold:
    """The hold, marked. If `is_checked`, GitHub was just asked about its person, and is asked again regularly."""
    return replace(hold, waits_for_report=waits, checked_at=hold.begun_at if is_checked else None)


async def _start_again(
    connection: AsyncConnection,
    ended: Job,
    guest: KeyHolder,
    agent: str,
    machine: str | None,
    secret: bytes,
    now: datetime,
) -> Job:
    """Rebuild the environment of an ended job."""
    if ended.kind is JobKind.WORKTREE:
        raise HoldRefused("this worktree is gone, and nothing was collected from it: create a new one")
    if await fetch_withheld(connection, ended.id):
        raise HoldRefused("its report is confidential, so its environment is not rebuilt: see ptq-bot report")
    source = Source(
        ended.repository,
        ended.private,
        ended.clone_url,
        ended.base_branch,
        ended.base_commit,
        agent,
        follows=ended.id,
        skills=ended.skills,
    )
    return await start_worktree(connection, guest, source, ended.id, machine=machine, secret=secret, now=now)


async def fetch_releasable(connection: AsyncConnection, held: Job, now: datetime) -> Hold:
    """The hold on an ended job. Raises `HoldRefused` if it cannot be released."""
    hold = await fetch_hold(connection, held.id)
    if hold is None or hold.expires_at <= now:
        raise HoldRefused("nobody holds this job")
    if held.active:
        if held.kind is JobKind.WORKTREE:
            raise HoldRefused("its environment is not ready yet. Try again when it is")
        raise HoldRefused("the job has not ended yet. Try again when its result is stored")
    if held.kind is JobKind.WORKTREE and held.state is not JobState.SUCCEEDED:
        raise HoldRefused(f"its environment could not be built: {one_line(held.failure or 'it was lost', 300)}")
    return hold


async def release(
    connection: AsyncConnection,
    person: Person,
    held: Job,
    *,
    drop: bool,
    secret: bytes,
    public_url: str,
    now: datetime,
    requested_at: datetime | None = None,
) -> Job | None:
    """End a hold. A new job collects the edits in the environment, and is returned.

    With `drop`, the edits are discarded, and None is returned. If the worktree is still being made, `drop` cancels it.
    Raises `NotPermitted` and `HoldRefused`.
    """
    person.require(Operation.RELEASE, held.repository)
    job = None
    if drop and held.active and held.kind is JobKind.WORKTREE:
        await job_rows.request_cancel(connection, held.id, person.signature, now)
        if hold := await fetch_hold(connection, held.id):  # The worktree may be ready before the cancel.
            await save_hold(connection, replace(hold, begun_at=now, expires_at=now))
    elif drop:
        hold = await fetch_releasable(connection, held, now)
        await save_hold(connection, replace(hold, expires_at=now))
    else:
        hold = await fetch_releasable(connection, held, now)
        job = await start_collecting(
            connection, held, hold, secret=secret, public_url=public_url, now=now, requested_at=requested_at
        )
    await job_rows.add_event(connection, held.id, now, f"released by {person.mention}")
    return job


async def find_held(connection: AsyncConnection, case_key: str, now: datetime) -> tuple[Job, Hold] | None:
    """The newest hold of an issue, with its job."""
    for hold in reversed(await fetch_holds(connection)):
        held = await job_rows.fetch_job(connection, hold.job_id)
        if held and hold.expires_at > now and (await find_origin(connection, held)).case_key == case_key:
            return held, hold
    return None
