"""Carries out holds: grants a person's SSH key access to a job's environment, and ends it.

Level-triggered, like everything in the supervisor: it makes the machine match the hold's row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import structlog

from runner.characters import show_invisible
from runner.model.environment import Profile
from runner.model.facts import tell_facts
from runner.model.job import Job, JobKind, JobState, Report
from runner.model.jobd_answers import JobdError
from runner.model.machines import Lease
from runner.rows import job_rows
from runner.rows.holds import Hold, change_hold, end_hold, fetch_hold
from runner.steps.loops import Wakeup
from runner.steps.runtime import Runtime
from runner.transport.host_errors import HostError
from runner.transport.jobd_client import JobdClient

log = structlog.get_logger()


async def keep_for_person(runtime: Runtime, wakeup: Wakeup, lease: Lease, *, retry_s: float) -> bool:
    """Carry out the hold on an ended job's environment. False if there is none, so that the environment can be removed.

    If the machine fails, the reason is stored, and the next try is after `retry_s`.
    """
    async with runtime.db.read() as connection:
        leased = lease.job_id in {other.job_id for other in await job_rows.fetch_leases(connection)}
        hold = await fetch_hold(connection, lease.job_id)
        job = await job_rows.fetch_job(connection, lease.job_id)
        report = await job_rows.fetch_report(connection, lease.job_id)
    if not leased:
        return True  # The lease moved to another job, which carries out the hold.
    client = runtime.clients.get(lease.machine)
    if hold is None or job is None or client is None:
        return False
    if job.kind is JobKind.WORKTREE and job.state is not JobState.SUCCEEDED:  # The environment was never made.
        return False
    if job.adopts and report and hold.begun_at < job.created_at:  # The person's edits are stored.
        async with runtime.db.write() as connection:
            await end_hold(connection, hold)
        return False
    try:
        if job.adopts:
            await client.adopt(job.id, job.adopts)
        if job.kind is JobKind.WORKTREE and not hold.admitted_at:
            hold = await _begin_now(runtime, hold)
        if hold.expires_at <= runtime.now():
            return not await _let_out(runtime, client, hold)
        if not hold.admitted_at and not hold.waits_for_report:
            await _let_in(runtime, client, job, hold, await _find_context(runtime, job, report))
            wakeup.notify()
    except (HostError, JobdError) as error:
        if isinstance(error, JobdError) and error.code == "gone":
            return False  # The environment is gone.
        log.warning("hold.trouble", job=hold.job_id, machine=lease.machine, reason=str(error))
        async with runtime.db.write() as connection:
            await change_hold(connection, hold, trouble=str(error))
        with wakeup.listen() as listener:
            await listener.wait(retry_s)
    return True


async def _begin_now(runtime: Runtime, hold: Hold) -> Hold:
    """Start the time of a hold now, because its environment has just become ready."""
    now = runtime.now()
    expires_at = now + (hold.expires_at - hold.begun_at)
    async with runtime.db.write() as connection:
        await change_hold(connection, hold, begun_at=now, expires_at=expires_at)
    return replace(hold, begun_at=now, expires_at=expires_at)


async def _find_context(runtime: Runtime, job: Job, report: Report | None) -> str:
    """The description of a job. If the job only rebuilt an environment, the description of the first job."""
    if job.kind is JobKind.WORKTREE and job.follows:
        async with runtime.db.read() as connection:
            job = await job_rows.fetch_job(connection, job.follows) or job
            report = await job_rows.fetch_report(connection, job.id)
    return describe_context(job, report, runtime.profiles.get(job.repository))


async def end_vain_holds(runtime: Runtime, holds: Iterable[Hold], kept: Collection[str]) -> None:
    """End holds whose environments do not exist and never will. `kept` are the jobs that may have an environment."""
    for hold in (hold for hold in holds if hold.job_id not in kept):
        async with runtime.db.write() as connection:
            ended = await end_hold(connection, hold)
        if ended:
            log.warning("hold.in_vain", job=hold.job_id, person=hold.person)


async def _let_in(runtime: Runtime, client: JobdClient, job: Job, hold: Hold, context: str) -> None:
    if job.state is JobState.LOST and await client.kill(job.id):
        raise JobdError("still_alive", "processes of the job are still running")
    lasts_s = int((hold.expires_at - runtime.now()).total_seconds())
    await client.admit(job.id, hold.public_key, max(lasts_s, 1), context)
    async with runtime.db.write() as connection:
        await change_hold(connection, hold, admitted_at=runtime.now(), trouble=None)
        await job_rows.add_event(
            connection, job.id, runtime.now(), f"reserved for {hold.mention} until {hold.expires_at:%F %R}"
        )
    log.info("hold.admitted", **job.log_context(), person=hold.person)


async def _let_out(runtime: Runtime, client: JobdClient, hold: Hold) -> bool:
    """End an expired hold. Returns False if it was released or extended meanwhile."""
    await client.dismiss(hold.job_id)
    async with runtime.db.write() as connection:
        ended = await end_hold(connection, hold)
        if ended:
            await job_rows.add_event(connection, hold.job_id, runtime.now(), f"no longer reserved for {hold.mention}")
    log.info("hold.over", job=hold.job_id, person=hold.person)
    return ended


def describe_context(job: Job, report: Report | None, profile: Profile | None) -> str:
    """A description of the job for the person, or for an agent that they start. Pure.

    Parts of it are untrusted. Control characters for terminals are shown as text.
    """
    commands = {
        "Rebuild": ((profile.setup if profile.update is None else profile.update) if profile else ()),
        "Check that the environment works": profile.smoke_test if profile else (),
        "Lint, which also runs before the change is collected": profile.lint if profile else (),
    }
    facts = [
        f"# Job {job.id}",
        f"{job.case_key}, {job.preset}, attempt {job.attempt}, requested by {job.requester}; state: {job.state}.",
        f"Base commit: {job.base_commit}, of `{job.base_branch}`.",
        *([f"Failure: {job.failure}"] if job.failure else []),
        "Your changes in the worktree are collected when the job is released, with the report in "
        "`$PTQ_OUTPUT_DIR/report.md`. You can edit the agent's report there.",
    ]
    shown = [f"## {title}\n\n{_indent(commands[title])}" for title in commands if commands[title]]
    texts = {"Last report": report.body, "Last worklog": report.worklog} if report else {}
    texts["The agent's brief, with the issue and the test command"] = tell_facts(
        job.prompt, job.facts, job.base_commit or ""
    )
    shown += [f"## {title}\n\n{text.strip()}" for title, text in texts.items() if text.strip()]
    return show_invisible("\n\n".join([*facts, *shown])) + "\n"


def _indent(commands: tuple[str, ...]) -> str:
    return "\n".join(f"    {line}" for command in commands for line in command.splitlines())
