"""Jobs of people who work in an environment themselves: worktrees, and what becomes of an environment that they held.

A worktree is a job without an agent. Once its environment is made it has ended, and its person's hold keeps that. It
belongs to no issue, and so nobody reads of it on GitHub.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.commands.options import Choice
from handlers.jobs.brief import render_task
from handlers.jobs.preconditions import NotStarted
from handlers.jobs.start import ASKED_FOR, CLOCK_SKEW, open_job
from handlers.rules import RepositoryRules
from runner.model.job import Job, JobState, Posts, derive_job_id
from runner.rows import job_rows
from runner.rows.check_rows import copy_checks
from runner.rows.holds import Hold, end_hold, save_hold

WORKTREE, TASK = "worktree", "task"
"""In place of presets."""

AT_LEAST = timedelta(days=1)
"""For so long an environment that passed on is still held for its person, should nothing come of it."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Who is to be let in, by which key, and for how long."""

    name: str
    public_key: str
    lasts: timedelta

    def hold(self, job_id: str, now: datetime) -> Hold:
        """Their hold on a job's environment from now on."""
        return Hold(job_id, self.name, self.public_key, begun_at=now, expires_at=now + self.lasts)


@dataclass(frozen=True, slots=True)
class Source:
    """What a worktree begins from."""

    repository: str
    private: bool
    clone_url: str
    base_branch: str
    base_commit: str | None
    """None means the newest of the branch."""
    agent: str
    """One that is configured: no job is without, and this one is told which files configure it."""
    follows: str | None = None
    """The job whose edits it has."""


async def start_worktree(
    connection: AsyncConnection,
    person: KeyHolder,
    source: Source,
    name: str,
    *,
    machine: str | None,
    secret: bytes,
    now: datetime,
) -> Job:
    """Create the job that makes a worktree, on a machine or wherever there is room, and its person's hold.

    Raises `NotStarted` when somebody makes another one of the repository at this very moment.
    """
    number = await job_rows.find_unused_number(connection, source.repository)
    job = Job(
        id=derive_job_id(f"{source.repository}#{number} worktree", secret),
        repository=source.repository,
        private=source.private,
        issue_number=number,
        attempt=1,
        preset=WORKTREE,
        may_change=True,
        agent=source.agent,
        requested_by=person.name,
        clone_url=source.clone_url,
        base_branch=source.base_branch,
        base_commit=source.base_commit,
        prompt="",
        state=JobState.QUEUED,
        created_at=now,
        changed_at=now,
        requested_at=now,
        follows=source.follows,
        by_hand=True,
        name=name,
        pinned_to=machine,
    )
    if not await job_rows.insert_job(connection, job):
        raise NotStarted("somebody else is making a worktree just now: try again")
    await save_hold(connection, person.hold(job.id, now))
    return job


async def find_origin(connection: AsyncConnection, held: Job) -> Job:
    """The job of an issue whose environment this one made anew; or the job itself."""
    followed = None if held.has_thread or not held.follows else await job_rows.fetch_job(connection, held.follows)
    return followed or held


async def start_collecting(
    connection: AsyncConnection,
    held: Job,
    hold: Hold,
    *,
    secret: bytes,
    public_url: str,
    now: datetime,
    requested_at: datetime | None = None,
) -> Job:
    """Create the job that takes over the held environment, and its slot, and only collects what is there.

    It is an attempt on the issue that the environment has to do with, if any. `requested_at` is when a comment asked
    for it; None where the operator does. Raises `NotStarted` while another job of that is active.
    """
    origin = await find_origin(connection, held)
    case = await casebook.fetch_case(connection, origin.case_key)
    if case and case.active_job_id:
        raise NotStarted("another job on this issue is under way; release this one when that has ended")
    by_person = {
        "requested_by": hold.person,
        "may_change": True,
        "follows": origin.id,
        "by_hand": True,
        "agent": held.agent,
        "model": None,
        "posts": Posts.ALL,
        "requested_at": requested_at or now - CLOCK_SKEW,
    }
    job = await _adopt(connection, origin, held, f"by hand after {held.id}", by_person, secret=secret, now=now)
    if job.has_thread:
        await open_job(connection, public_url, job, case.title if case else "")
        await copy_checks(connection, origin.id, job.id)
    else:
        await _insert(connection, job)
    return await _pass_on(connection, job, held, hold, now)


async def start_task(
    connection: AsyncConnection,
    held: Job,
    hold: Hold,
    rules: RepositoryRules,
    task: str,
    choice: Choice,
    *,
    secret: bytes,
    now: datetime,
) -> Job:
    """Create the job in which an agent goes on in a held worktree, by a person's own words. Raises `NotStarted`."""
    given = {
        "preset": TASK,
        "agent": choice.agent,
        "model": choice.model,
        "requested_by": hold.person,
        "prompt": render_task(held.name or held.id, rules, task, token_hex(8)),
        "follows": None,
        "name": held.name,
        "requested_at": now,
    }
    job = await _adopt(connection, held, held, f"task after {held.id}", given, secret=secret, now=now)
    await _insert(connection, job)
    return await _pass_on(connection, job, held, hold, now)


async def _insert(connection: AsyncConnection, job: Job) -> None:
    if not await job_rows.insert_job(connection, job):
        raise NotStarted("another job of this worktree is under way")


async def _adopt(
    connection: AsyncConnection, like: Job, held: Job, what: str, other: dict[str, Any], *, secret: bytes, now: datetime
) -> Job:
    """A job that asks for what another one did, but for what is `other`, in the environment of one that is held."""
    asked = {name: getattr(like, name) for name in ASKED_FOR}
    return Job(
        id=derive_job_id(f"{held.case_key} {what}", secret),
        **{**asked, "name": like.name, **other},
        attempt=await job_rows.count_attempts(connection, like.repository, like.issue_number) + 1,
        base_commit=held.base_commit,
        conflicts=like.conflicts,
        adopts=held.id,
        state=JobState.QUEUED,
        created_at=now,
        changed_at=now,
    )


async def _pass_on(connection: AsyncConnection, job: Job, held: Job, hold: Hold, now: datetime) -> Job:
    """Give a job the slot of the one that is held, and let nobody in while it is under way.

    The hold goes with the environment: it ends once the result is stored, and not where there is none.
    """
    await end_hold(connection, hold)
    lasts = max(hold.expires_at, now + AT_LEAST)
    await save_hold(connection, replace(hold, job_id=job.id, expires_at=lasts, admitted_at=None, trouble=None))
    await job_rows.pass_lease_on(connection, held.id, job.id)
    return await job_rows.move_job(connection, job, JobState.PREPARING, now, machine=held.machine)
