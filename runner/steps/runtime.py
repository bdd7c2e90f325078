"""The dependencies of a job's steps, and what several steps do: follow a log, store the job, end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from runner.agents import Agent
from runner.agents.skills import Skill
from runner.aside import run_aside, run_in_thread
from runner.changes.concerns import is_withheld
from runner.db.database import Database
from runner.model.environment import Profile
from runner.model.history import History
from runner.model.job import Job, JobState, Report
from runner.model.jobd_answers import JobdError, Poll, StageState
from runner.model.meter import Meter
from runner.model.stop_policy import KILL_PATIENCE, find_overdue
from runner.rows import job_rows
from runner.rows.calls import Account, StoredUsage
from runner.steps.gateway import Fetcher, Gateway
from runner.steps.spool import STAGES, Spool
from runner.steps.usage_reader import UsageReader
from runner.transport.jobd_client import JobdClient

log = structlog.get_logger()

LOG_CHUNK = 262_144
"""The bytes of a log that one poll requests."""


READ_ON = timedelta(seconds=10)
"""How long one step continues to read the log of an ended stage."""


class Lost(Exception):  # noqa: N818 - a fact about a job
    """A machine answers, but the job does not end there. The message is a clause for the job's report."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The dependencies of the steps."""

    db: Database
    clients: Mapping[str, JobdClient]
    profiles: Mapping[str, Profile]
    agents: Mapping[str, Agent]
    skills: Mapping[str, Skill]
    spool: Spool
    usage_reader: UsageReader
    now: Callable[[], datetime]
    gateway: Gateway
    history: History


UNCONFIGURED = "the service's configuration no longer has this job's repository, agent or machine"
"""Why a job cannot continue after a change of `ptq.toml`."""


async def end(
    runtime: Runtime,
    job: Job,
    to: JobState,
    failure: str | None,
    report: Report | None = None,
) -> Job:
    """Move a job into a final state, and store its logs and report, in one transaction."""
    account = await _close_account(runtime, job) if job.state is JobState.RUNNING else None
    stages = [stage for stage in STAGES if runtime.spool.offset(job.id, stage)]
    # In a thread, and before the transaction, because a log may have many megabytes.
    logs = {stage: await run_in_thread(job_rows.compress_log, runtime.spool.read(job.id, stage)) for stage in stages}
    withheld = report is not None and await run_aside(report.size, is_withheld, job, report)
    async with runtime.db.write() as connection:
        ended = await job_rows.move_job(connection, job, to, runtime.now(), failure)
        if account:
            meter = await job_rows.fetch_meter(connection, job.id) or Meter(job.id)
            await job_rows.save_meter(connection, account.correct(meter))
        for stage, compressed in logs.items():
            await job_rows.save_log(connection, job.id, stage, compressed)
        if report:
            await job_rows.insert_report(connection, report, withheld=withheld)
    runtime.spool.drop(job.id)
    runtime.usage_reader.forget(job.id)
    log.info("job.ended", **job.log_context(), state=str(to), failure=failure)
    return ended


async def _close_account(runtime: Runtime, job: Job) -> Account | None:
    """Close the account of a run whose end its machine does not report. No more usage is possible then."""
    account = await runtime.gateway.open(job, {}, StoredUsage())
    await runtime.gateway.close(job.id)
    return account


async def follow(
    runtime: Runtime,
    client: JobdClient,
    job: Job,
    stage: str,
    environment: str | None = None,
    wait_s: float = 0.0,
    worklog_mark: str | None = None,
) -> Poll:
    """Poll a stage, and copy the new part of its log.

    An ended stage counts as running until its whole log is here. A full piece means that there is more. It is read at
    once for up to `READ_ON`; after that the next step continues, which first checks for a cancel.

    The machine may wait up to `wait_s` seconds for new output. It limits the size of the log, and so does this
    function, because the machine is not trusted. The stage may be in another `environment` than the job's. The result
    has the agent's worklog as in `JobdClient.poll`.
    """
    limit = runtime.profiles[job.repository].limits.max_log_bytes + LOG_CHUNK
    until, worklog = runtime.now() + READ_ON, None
    while True:
        offset = runtime.spool.offset(job.id, stage)
        room = max(min(LOG_CHUNK, limit - offset), 0)
        where = environment or job.id
        poll = await client.poll(
            where, stage, log_offset=offset, log_limit=room, wait_s=wait_s, worklog_mark=worklog_mark
        )
        runtime.spool.append(job.id, stage, poll.log[:room])
        if poll.worklog:  # The next answer need not have it again.
            worklog, worklog_mark = poll.worklog, poll.worklog.mark
        poll = replace(poll, worklog=worklog)
        is_full = 0 < room <= len(poll.log)
        if poll.state in (StageState.ABSENT, StageState.RUNNING) or not is_full:
            return poll
        if runtime.now() >= until:
            return replace(poll, state=StageState.RUNNING)


async def keep_routes(runtime: Runtime, client: JobdClient, job: Job, fetcher: Fetcher | None = None) -> None:
    """Open the job's routes from its machine to the gateway again, because this may be another replica than before.

    Raises `HostError`. If the machine refuses to listen, requests of git wait.
    """
    try:
        await runtime.gateway.open_git_route(fetcher or Fetcher.of(job), client)
        if job.state is JobState.RUNNING:
            await runtime.gateway.open_package_route(Fetcher.of(job), client)
    except JobdError as error:
        log.warning("gateway.not_connected", **job.log_context(), error=error.code, reason=error.message)


async def update_job(runtime: Runtime, job: Job, **changes: Any) -> Job:
    """Store a change within the job's state."""
    async with runtime.db.write() as connection:
        return await job_rows.change_job(connection, job, **changes)


async def note_begun(runtime: Runtime, job: Job, stage: int = 1) -> Job:
    """Restart the time limit of the job's state, because its stage begins only now, such as after a wait for GitHub.

    `stage` counts the stages of the state. If a machine has forgotten one, it begins again without more time.
    """
    if stage <= job.stages_begun:
        return job
    return await update_job(runtime, job, changed_at=runtime.now(), stages_begun=stage)


def require_time_to_begin(runtime: Runtime, job: Job, stage: int = 1) -> None:
    """Raise `Lost` if a stage that is absent from its machine was begun before, and should have ended long ago."""
    if stage <= job.stages_begun:
        require_in_time(runtime, job)


def require_in_time(runtime: Runtime, job: Job) -> None:
    """Raise `Lost` if a stage should have ended long ago."""
    if reason := find_overdue(job, runtime.profiles[job.repository].limits, runtime.now()):
        raise Lost(reason)


def bear_survivors(runtime: Runtime, job: Job, since: datetime) -> Job:
    """The job, blocked because its machine has not been able to kill its processes since then.

    Raises `Lost` after `KILL_PATIENCE`.
    """
    if runtime.now() - since > KILL_PATIENCE:
        minutes = KILL_PATIENCE // timedelta(minutes=1)
        log.error("job.not_killed", **job.log_context(), since=since.isoformat())
        raise Lost(f"machine {job.machine} could not kill this job's processes within {minutes} minutes")
    log.warning("job.still_alive", **job.log_context(), since=since.isoformat())
    return replace(job, trouble=f"{job.machine} could not kill this job's processes yet; trying again")


async def set_trouble(runtime: Runtime, job: Job, trouble: str | None) -> bool:
    """Store what the job is waiting for, or None. Returns whether that has changed."""
    if job.trouble == trouble:
        return False
    await update_job(runtime, job, trouble=trouble)
    return True


async def move_on(runtime: Runtime, job: Job, to: JobState, failure: str | None = None, **changes: Any) -> Job:
    """Move a job, and log it."""
    async with runtime.db.write() as connection:
        moved = await job_rows.move_job(connection, job, to, runtime.now(), failure, **changes)
    return log_move(moved)


def log_move(moved: Job) -> Job:
    """Log a job's new state."""
    log.info("job.moved", **moved.log_context(), state=str(moved.state))
    return moved
