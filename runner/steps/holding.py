"""Keeps a job's environment for the person who holds it: lets their key in, and out again when the hold is over.

Level-triggered like all that the supervisor does: it looks at the hold's row, and makes the machine like it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import structlog

from runner.characters import show_invisible
from runner.model.environment import Profile
from runner.model.job import Job, JobKind, JobState, Report
from runner.model.jobd_answers import JobdError
from runner.model.machines import Lease
from runner.rows import job_rows
from runner.rows.holds import Hold, change_hold, end_hold, fetch_hold
from runner.steps.loops import Bell
from runner.steps.runtime import Bench
from runner.transport.host_errors import HostError
from runner.transport.jobd_client import JobdClient

log = structlog.get_logger()


async def keep_for_person(bench: Bench, bell: Bell, lease: Lease, *, retry_s: float) -> bool:
    """See to the hold on the environment of a job that has ended. False when nobody holds it, so that it may go.

    Where the machine does not do what is wanted of it, that is written down, and `retry_s` passes.
    """
    async with bench.db.read() as connection:
        leased = lease.job_id in {other.job_id for other in await job_rows.fetch_leases(connection)}
        hold = await fetch_hold(connection, lease.job_id)
        job = await job_rows.fetch_job(connection, lease.job_id)
        report = await job_rows.fetch_report(connection, lease.job_id)
    if not leased:
        return True  # It passed on to another job, which looks after it.
    client = bench.clients.get(lease.machine)
    if hold is None or job is None or client is None:
        return False
    if job.kind is JobKind.WORKTREE and job.state is not JobState.SUCCEEDED:  # It was never made.
        return False
    if job.adopts and report and hold.begun_at < job.created_at:  # All that was edited by its person is stored.
        async with bench.db.write() as connection:
            await end_hold(connection, hold)
        return False
    try:
        if job.adopts:
            await client.adopt(job.id, job.adopts)
        if job.kind is JobKind.WORKTREE and not hold.admitted_at:
            hold = await _begin_now(bench, hold)
        if hold.expires_at <= bench.now():
            return not await _let_out(bench, client, hold)
        if not hold.admitted_at and not hold.waits_for_report:
            await _let_in(bench, client, job, hold, await _find_context(bench, job, report))
            bell.ring()
    except (HostError, JobdError) as error:
        if isinstance(error, JobdError) and error.code == "gone":
            return False  # Somebody else has removed it.
        log.warning("hold.trouble", job=hold.job_id, machine=lease.machine, reason=str(error))
        async with bench.db.write() as connection:
            await change_hold(connection, hold, trouble=str(error))
        with bell.listen() as listener:
            await listener.wait(retry_s)
    return True


async def _begin_now(bench: Bench, hold: Hold) -> Hold:
    """Count a hold's time from now on: until now its environment was only being made."""
    now = bench.now()
    expires_at = now + (hold.expires_at - hold.begun_at)
    async with bench.db.write() as connection:
        await change_hold(connection, hold, begun_at=now, expires_at=expires_at)
    return replace(hold, begun_at=now, expires_at=expires_at)


async def _find_context(bench: Bench, job: Job, report: Report | None) -> str:
    """What is known of a job; of one whose environment was made anew, what is known of the first."""
    if job.kind is JobKind.WORKTREE and job.follows:
        async with bench.db.read() as connection:
            job = await job_rows.fetch_job(connection, job.follows) or job
            report = await job_rows.fetch_report(connection, job.id)
    return describe_context(job, report, bench.profiles.get(job.repository))


async def end_vain_holds(bench: Bench, holds: Iterable[Hold], kept: Collection[str]) -> None:
    """End the holds on environments that are not there, and never will be; `kept` are the jobs that may have one."""
    for hold in (hold for hold in holds if hold.job_id not in kept):
        async with bench.db.write() as connection:
            ended = await end_hold(connection, hold)
        if ended:
            log.warning("hold.in_vain", job=hold.job_id, person=hold.person)


async def _let_in(bench: Bench, client: JobdClient, job: Job, hold: Hold, context: str) -> None:
    if job.state is JobState.LOST and await client.kill(job.id):
        raise JobdError("still_alive", "something of the job is still at work")
    lasts_s = int((hold.expires_at - bench.now()).total_seconds())
    await client.admit(job.id, hold.public_key, max(lasts_s, 1), context)
    async with bench.db.write() as connection:
        await change_hold(connection, hold, admitted_at=bench.now(), trouble=None)
        await job_rows.add_event(
            connection, job.id, bench.now(), f"held for @{hold.person} until {hold.expires_at:%F %R}"
        )
    log.info("hold.admitted", **job.log_context(), person=hold.person)


async def _let_out(bench: Bench, client: JobdClient, hold: Hold) -> bool:
    """End a hold whose time is over; False when it was released or made longer meanwhile."""
    await client.dismiss(hold.job_id)
    async with bench.db.write() as connection:
        ended = await end_hold(connection, hold)
        if ended:
            await job_rows.add_event(connection, hold.job_id, bench.now(), f"no longer held for @{hold.person}")
    log.info("hold.over", job=hold.job_id, person=hold.person)
    return ended


def describe_context(job: Job, report: Report | None, profile: Profile | None) -> str:
    """What a person, or an agent that they start, should know of a job. Pure.

    Strangers and an agent wrote parts of it: they are shown so that a terminal does nothing of them.
    """
    commands = {
        "Rebuild": ((profile.setup if profile.update is None else profile.update) if profile else ()),
        "Try whether the environment works": profile.smoke_test if profile else (),
        "Lint, as is done before the change is collected": profile.lint if profile else (),
    }
    facts = [
        f"# Job {job.id}",
        f"{job.case_key}, {job.preset}, attempt {job.attempt}, asked for by @{job.requested_by}; it is {job.state}.",
        f"Base commit: {job.base_commit}, of `{job.base_branch}`.",
        *([f"How it ended: {job.failure}"] if job.failure else []),
        "What you change in the worktree is collected when the job is released. `$PTQ_OUTPUT_DIR/report.md` is the "
        "report that goes with it: what the agent wrote there stands until you change it.",
    ]
    shown = [f"## {title}\n\n{_indent(commands[title])}" for title in commands if commands[title]]
    texts = {"Last report": report.body, "Last worklog": report.worklog} if report else {}
    texts["The brief that the agent had, with the issue and how tests are run"] = job.prompt
    shown += [f"## {title}\n\n{text.strip()}" for title, text in texts.items() if text.strip()]
    return show_invisible("\n\n".join([*facts, *shown])) + "\n"


def _indent(commands: tuple[str, ...]) -> str:
    return "\n".join(f"    {line}" for command in commands for line in command.splitlines())
