"""The steps of a job, one for each state. Every step can be repeated after a crash, because it looks before it acts.

A step asks `jobd` on the machine for the current state, does at most one thing, and returns the job. It raises
`HostError` if the machine cannot be reached; `supervisor` decides how long that may last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from runner.agents import Run
from runner.agents.configuration import configures_agents
from runner.aside import run_in_thread
from runner.changes.artifacts import BadArtifacts, find_max_answer, is_plain, read_report
from runner.changes.rebase import find_unresolved, read_conflicts, refuse_unresolved, tell_rebased
from runner.checks.verification import name_environment
from runner.model.environment import Profile
from runner.model.facts import Facts, read_companions, read_facts
from runner.model.history import HistoryError
from runner.model.job import FileChange, Job, JobKind, JobState, Report
from runner.model.jobd_answers import JobdError, StageState
from runner.model.machines import Lease
from runner.model.stop_policy import KILL_PATIENCE
from runner.rows import job_rows
from runner.rows.machine_states import fetch_sightings
from runner.steps.agent_step import follow_agent, start_agent
from runner.steps.base_commit import NoBaseCommit, choose_base_commit, find_branch, read_base_commit
from runner.steps.gateway import Fetcher
from runner.steps.preparations import note_prepared, note_unprepared
from runner.steps.runtime import (
    Lost,
    Runtime,
    bear_survivors,
    end,
    follow,
    keep_routes,
    move_on,
    note_begun,
    require_in_time,
    require_time_to_begin,
    set_trouble,
    update_job,
)
from runner.steps.spool import CHECK, STAGES
from runner.steps.verify_step import (
    begin_only,
    begin_verification,
    finish_unverified,
    follow_verification,
)
from runner.transport.host_errors import OutputTooLarge
from runner.transport.jobd_client import JobdClient

log = structlog.get_logger()

PHASES: Mapping[str, str] = {
    "base": "machine {machine} is building this repository's base environment. This takes a while, but only once"
}
"""Why a preparation takes long, for people, by the name of the phase in the protocol."""


async def take_step(runtime: Runtime, job: Job) -> Job:
    """Take the next step of a leased job. Raises `HostError` if its machine cannot be reached.

    The `trouble` of the returned job is what the job waits for, or None.
    """
    moved = await _take_step(runtime, replace(job, trouble=None))
    if moved.state is job.state:
        await set_trouble(runtime, replace(moved, trouble=job.trouble), moved.trouble)
    return moved


async def _take_step(runtime: Runtime, job: Job) -> Job:
    client = runtime.clients[job.machine or ""]
    step = _cancel if _is_to_be_killed(job) else _STEPS[job.state]
    try:
        return await step(runtime, client, job)
    except JobdError as error:
        log.warning("job.refused_by_machine", **job.log_context(), error=error.code, reason=error.message)
        ended = await end(runtime, job, JobState.FAILED, error.message)
        if job.state is JobState.PREPARING:
            await note_unprepared(runtime, ended, error.code)
        return ended
    except NoBaseCommit as reason:
        return await end(runtime, job, JobState.FAILED, str(reason))
    except Lost as reason:
        return await give_up(runtime, job, JobState.LOST, str(reason))
    except HistoryError as error:
        if error.permanent:
            return await end(runtime, job, JobState.FAILED, str(error))
        log.warning("job.base_unknown", **job.log_context(), reason=str(error))
        return replace(job, trouble=str(error))


async def give_up(runtime: Runtime, job: Job, to: JobState, reason: str) -> Job:
    """End a job that cannot continue. If only its verification is missing, it keeps its result."""
    if job.state is JobState.VERIFYING:
        return await finish_unverified(runtime, job, reason)
    return await end(runtime, job, to, reason)


def _is_to_be_killed(job: Job) -> bool:
    """Whether a cancelled job is killed at once.

    A running agent is not killed: it may first report its cost, and its result is then collected. If the collection had
    begun before the cancel, the job is killed.
    """
    if job.cancel_requested_at is None or job.state is JobState.RUNNING:
        return False
    return job.state in (JobState.PREPARING, JobState.VERIFYING) or job.cancel_requested_at > job.changed_at


async def _prepare(runtime: Runtime, client: JobdClient, job: Job) -> Job:
    if job.adopts:
        await client.adopt(job.id, job.adopts)
        async with runtime.db.read() as connection:
            adopted = await job_rows.fetch_job(connection, job.adopts)
        job = await update_job(runtime, job, facts=adopted.facts) if adopted else job
        return await _leave_preparing(runtime, client, job)
    poll = await follow(runtime, client, job, "prepare")
    profile = runtime.profiles[job.repository]
    if poll.state is StageState.ABSENT:
        require_time_to_begin(runtime, job)
        earlier, changes = await _fetch_earlier(runtime, job)
        async with runtime.db.read() as connection:
            lease = await job_rows.fetch_leased(connection, job.id) or Lease(job.machine or "", 0, job.id)
        # A missing base is built from `trunk`, and other jobs use the base, too. Worktrees and jobs after a rebase may
        # begin at any commit, and other jobs must not begin from there.
        trunk = profile.trunk
        if job.thread is not None and not job.follows and not profile.environment_branch:
            trunk = job.base_branch
        begun_at = (earlier and earlier.base_commit) or ""
        job = await choose_base_commit(runtime, job, "" if job.kind is JobKind.REBASE else begun_at)
        route = await runtime.gateway.open_git_route(Fetcher.of(job), client)
        branch = job.base_branch if job.base_commit else find_branch(profile, job)
        recipe = profile.recipe(job.clone_url, branch, job.base_commit or "", lease.slot, trunk)
        await client.prepare(
            job.id,
            replace(recipe, git=route.env, relay=route.by_relay),
            gpus=lease.gpus,
            changes=[change for change in changes if not configures_agents(change.path)],
            changes_from=begun_at if job.kind is JobKind.REBASE else "",
            held_back=[change for change in changes if configures_agents(change.path)],
            # Scripts that the service runs see no companion, so that a repro needs none.
            companions=() if job.kind is JobKind.VERIFY else profile.companions,
        )
        return await note_begun(runtime, job)
    if poll.state is StageState.RUNNING:
        require_in_time(runtime, job)
        await keep_routes(runtime, client, job)
        return replace(job, trouble=PHASES.get(poll.phase, "").format(machine=job.machine) or None)
    if poll.state is StageState.DONE:
        # Stored before the agent starts. After that, the machine's answer may come from the agent.
        job = await _record_prepared(runtime, job, poll.result)
        await note_prepared(runtime, job, poll.result)
        return await _leave_preparing(runtime, client, job)
    ended = await end(runtime, job, JobState.FAILED, poll.message or "the preparation of the environment was killed")
    await note_unprepared(runtime, ended, poll.error)
    return ended


async def _leave_preparing(runtime: Runtime, client: JobdClient, job: Job) -> Job:
    """Start the next step of this kind of job."""
    match job.after_preparing:
        case JobState.RUNNING:
            return await start_agent(runtime, client, job)
        case JobState.VERIFYING:
            return await begin_only(runtime, job)
        case JobState.COLLECTING:
            return await move_on(runtime, job, JobState.COLLECTING)
        case end_state:
            return await end(runtime, job, end_state, None)


async def _fetch_earlier(runtime: Runtime, job: Job) -> tuple[Job | None, list[FileChange]]:
    """The attempt that this one continues, and the part of its change that can be applied again."""
    if not job.follows:
        return None, []
    async with runtime.db.read() as connection:
        report = await job_rows.fetch_report(connection, job.follows)
        changes = [change for change in (report.changes if report else ()) if is_plain(change)]
        return await job_rows.fetch_job(connection, job.follows), changes


async def _record_prepared(runtime: Runtime, job: Job, result: Mapping[str, Any]) -> Job:
    found: dict[str, Any] = {}
    commit = await read_base_commit(runtime, job, result)
    if not job.base_commit:
        found["base_commit"] = commit
    if job.kind is JobKind.REBASE and job.conflicts is None:
        found["conflicts"] = read_conflicts(result)
    if not job.facts:
        found["facts"] = await _read_facts(runtime, job, result)
    return await update_job(runtime, job, **found) if found else job


async def _read_facts(runtime: Runtime, job: Job, result: Mapping[str, Any]) -> Facts:
    async with runtime.db.read() as connection:
        lease = await job_rows.fetch_leased(connection, job.id)
        sighting = (await fetch_sightings(connection)).get(job.machine or "")
    # A job without GPUs of its own sees all GPUs of the machine.
    own = lease.gpus if lease else ()
    companions = [companion.name for companion in runtime.profiles[job.repository].companions]
    facts = read_facts(result.get("facts"), own or (sighting.inventory.gpus if sighting else None))
    return (*facts, *read_companions(result.get("companions"), companions))


async def _collect(runtime: Runtime, client: JobdClient, job: Job) -> Job:
    poll = await follow(runtime, client, job, "collect")
    profile = runtime.profiles[job.repository]
    if poll.state is StageState.ABSENT:
        require_time_to_begin(runtime, job)
        await client.collect(
            job.id,
            base_commit=job.base_commit or "",
            # No linting after a cancel: somebody waits, and the diff will not be proposed.
            lint=() if job.cancel_requested_at else profile.lint,
            # These files are the same for every run of the job's agent.
            hidden=runtime.agents[job.agent].launch(Run(session_id="")).hidden,
            limits=profile.limits,
        )
        return await note_begun(runtime, job)
    if poll.state is StageState.RUNNING:
        require_in_time(runtime, job)
        return job
    failure = job.failure
    if poll.state is not StageState.DONE:
        failure = failure or poll.message or "the collection of the result was killed"
    return await _finish(runtime, client, job, profile, failure)


async def _finish(runtime: Runtime, client: JobdClient, job: Job, profile: Profile, failure: str | None) -> Job:
    """Read the untrusted result, and end the job with it."""
    report = None
    try:
        result = await client.result(job.id, find_max_answer(profile.limits))
        # In a thread, because any part of the machine's answer may be long.
        report = await run_in_thread(read_report, job, result, profile, runtime.db.secret)
        report = await _tell_origin(runtime, job, report)
    except (BadArtifacts, JobdError, OutputTooLarge) as error:
        failure = failure or f"the result could not be read: {error}"
    if job.cancel_requested_at:
        failure = failure or f"cancelled by {job.canceller}"
        return await end(runtime, job, JobState.CANCELLED, failure, report)
    if report and not report.body.strip():
        failure = failure or "the agent ended without writing a report"
    if report and (left := find_unresolved(job, report.changes)):
        failure = failure or f"unresolved conflicts in {len(left)} file{'s' * (len(left) != 1)}"
    if report and not failure and (verifying := await begin_verification(runtime, job, report)):
        return verifying
    return await end(runtime, job, JobState.FAILED if failure else JobState.SUCCEEDED, failure, report)


async def _tell_origin(runtime: Runtime, job: Job, report: Report) -> Report:
    """The report, with a warning if its change is not only an agent's."""
    if job.kind is JobKind.RELEASE:
        return refuse_unresolved(job, _tell_by_hand(job, report))
    if job.kind is not JobKind.REBASE or not job.follows:
        return report
    async with runtime.db.read() as connection:
        earlier = await job_rows.fetch_job(connection, job.follows)
        before = await job_rows.fetch_report(connection, job.follows)
    return tell_rebased(job, report, earlier, before) if earlier and before else report


def _tell_by_hand(job: Job, report: Report) -> Report:
    """The report of a release, with the warning that a person has edited files, and that the text may be older."""
    by_hand = f"{job.requester} has edited files in this environment"
    body = report.body if report.body.strip() else f"{by_hand}. No report was written."
    return replace(report, body=body, warnings=(f"{by_hand}: the report may be older", *report.warnings))


async def _cancel(runtime: Runtime, client: JobdClient, job: Job) -> Job:
    """Kill all processes of the job, read the rest of its logs, and end it. Raises `Lost`."""
    assert job.cancel_requested_at
    verified = [name_environment(job.id)] if job.state is JobState.VERIFYING else []
    alive = [await client.kill(environment) for environment in (job.id, *verified)]
    since = job.stopped_at
    if since is None or since < job.cancel_requested_at:
        since = runtime.now()
        job = await update_job(runtime, job, stopped_at=since)
    if any(alive):
        return bear_survivors(runtime, job, since)
    polls = [await follow(runtime, client, job, stage) for stage in STAGES if stage != CHECK]
    polls += [await follow(runtime, client, job, CHECK, environment) for environment in verified]
    # No process is alive any more. A stage that is still reported as running has a long log, or the machine lies.
    if any(poll.state is StageState.RUNNING for poll in polls) and runtime.now() - since <= KILL_PATIENCE:
        return job
    return await end(runtime, job, JobState.CANCELLED, f"cancelled by {job.canceller}")


_STEPS: Mapping[JobState, Callable[[Runtime, JobdClient, Job], Awaitable[Job]]] = {
    JobState.PREPARING: _prepare,
    JobState.RUNNING: follow_agent,
    JobState.COLLECTING: _collect,
    JobState.VERIFYING: follow_verification,
}
