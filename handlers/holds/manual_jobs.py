"""Jobs of people who work in an environment: worktrees, and the jobs that follow a hold.

A worktree is a job without an agent. It ends when its environment is ready, and the person's hold keeps the
environment. It has no issue, so it posts nothing on GitHub.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from secrets import token_hex

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.commands.options import Choice
from handlers.jobs.brief import render_task
from handlers.jobs.start import CLOCK_SKEW, open_job
from handlers.rules import RepositoryRules
from runner.model.job import Job, JobKind, JobRequest, JobState, Posts, ask_again, derive_job_id
from runner.rows import job_rows
from runner.rows.check_rows import copy_checks
from runner.rows.holds import Hold, end_hold, save_hold

AT_LEAST = timedelta(days=1)
"""How long a person's hold lasts at least after their environment passed to a job, because the job may fail."""


class HoldRefused(Exception):  # noqa: N818
    """Nothing is done with an environment. The message says why, as a sentence without its period."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """A person with their SSH key, and the duration of the hold."""

    name: str
    public_key: str
    lasts: timedelta

    def hold(self, job_id: str, now: datetime) -> Hold:
        """Their hold on a job's environment, from now."""
        return Hold(job_id, self.name, self.public_key, begun_at=now, expires_at=now + self.lasts)


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a worktree."""

    repository: str
    private: bool
    clone_url: str
    base_branch: str
    base_commit: str | None
    """None means the branch's newest commit."""
    agent: str
    """A configured agent: every job needs one, and it determines which configuration files are hidden."""
    follows: str | None = None
    """The job whose edits it contains."""
    skills: tuple[str, ...] = ()
    """The skills of agents that continue in the worktree."""


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
    """Create the job that makes a worktree, and the person's hold on it.

    If `machine` is None, the job runs wherever there is room. Raises `HoldRefused` if somebody else is creating a
    worktree of the repository at this moment.
    """
    series = await job_rows.find_unused_series(connection, source.repository)
    wanted = JobRequest(
        id=derive_job_id(f"{source.repository}~{series} worktree", secret),
        kind=JobKind.WORKTREE,
        repository=source.repository,
        private=source.private,
        thread=None,
        series=series,
        name=name,
        preset=str(JobKind.WORKTREE),
        may_change=True,
        agent=source.agent,
        requested_by=person.name,
        requested_at=now,
        clone_url=source.clone_url,
        base_branch=source.base_branch,
        base_commit=source.base_commit,
        prompt="",
        skills=source.skills,
        pinned_to=machine,
        follows=source.follows,
    )
    job = await job_rows.create_job(connection, wanted, now)
    if job is None:
        raise HoldRefused("somebody else is creating a worktree at the moment: try again")
    await save_hold(connection, person.hold(job.id, now))
    return job


async def find_origin(connection: AsyncConnection, held: Job) -> Job:
    """The job whose environment the held job rebuilt, or else the held job itself."""
    if held.thread is not None or not held.follows:
        return held
    return await job_rows.fetch_job(connection, held.follows) or held


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
    """Create the job that takes over the held environment with its slot, and only collects the edits in it.

    If the environment is from a job on an issue, the new job is an attempt on that issue. `requested_at` is the time of
    the comment that asked for it. None means that the operator asks. Raises `HoldRefused` while another job of the
    issue or the worktree is active.
    """
    origin = await find_origin(connection, held)
    case = await casebook.fetch_case(connection, origin.case_key)
    if case and case.active_job_id:
        raise HoldRefused("another job on this issue is running; release this one after it has ended")
    wanted = ask_again(
        origin,
        id=_derive_id(held, "by hand", secret),
        kind=JobKind.RELEASE,
        may_change=True,
        **Choice(held.agent).wanted(),
        requested_by=hold.person,
        requested_at=requested_at or now - CLOCK_SKEW,
        base_commit=held.base_commit,
        pinned_to=None,
        posts=Posts.ALL,
        follows=origin.id,
        replaces=None,
        adopts=held.id,
    )
    if wanted.thread is not None:
        job = await open_job(connection, public_url, wanted, now)
        await copy_checks(connection, origin.id, job.id)
    else:
        job = await _create_in_series(connection, wanted, now)
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
    """Create the job in which an agent continues in a held worktree, with a person's task. Raises `HoldRefused`."""
    wanted = ask_again(
        held,
        id=_derive_id(held, "task", secret),
        kind=JobKind.TASK,
        preset=str(JobKind.TASK),
        **choice.wanted(),
        requested_by=hold.person,
        requested_at=now,
        task=task,
        prompt=render_task(held.name or held.id, rules, task, token_hex(8), skills=held.skills),
        pinned_to=None,
        follows=None,
        adopts=held.id,
    )
    job = await _create_in_series(connection, wanted, now)
    return await _pass_on(connection, job, held, hold, now)


def _derive_id(held: Job, what: str, secret: bytes) -> str:
    return derive_job_id(f"{held.case_key} {what} after {held.id}", secret)


async def _create_in_series(connection: AsyncConnection, request: JobRequest, now: datetime) -> Job:
    job = await job_rows.create_job(connection, request, now)
    if job is None:
        raise HoldRefused("another job of this worktree is running")
    return job


async def _pass_on(connection: AsyncConnection, job: Job, held: Job, hold: Hold, now: datetime) -> Job:
    """Give a job the slot of the held job. The person has no access while the new job runs.

    The hold moves to the new job with the environment. It ends when the result of that job is stored. If there is no
    result, the hold continues.
    """
    await end_hold(connection, hold)
    lasts = max(hold.expires_at, now + AT_LEAST)
    await save_hold(connection, replace(hold, job_id=job.id, expires_at=lasts, admitted_at=None, trouble=None))
    await job_rows.pass_lease_on(connection, held.id, job.id)
    return await job_rows.move_job(connection, job, JobState.PREPARING, now, machine=held.machine)
