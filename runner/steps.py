"""What moves a job on, one step for each state. Every step may be repeated after a crash: it looks, then acts.

A step asks the machine-side program how things stand, does at most one thing about it, and returns the job as it now
is. It raises `HostError` when the machine cannot be asked; `runner.supervisor` decides how long that may last.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from runner import store
from runner.agents import Agent, Run
from runner.agents.events import Tally
from runner.agents.verdict import judge
from runner.artifacts import BadArtifacts, read_report
from runner.db import Database
from runner.environment import Profile
from runner.job import Job, JobState, Report
from runner.jobd_client import JobdClient, JobdError, Poll, StageState
from runner.spool import STAGES, Spool

log = structlog.get_logger()

SESSIONS = uuid.UUID("6c1f3c2e-6f0d-4b8e-9f0e-5d2f6a1b7c3d")
"""The namespace of the session ids that we choose: the same job always has the same one."""

LOG_CHUNK = 262_144
"""Bytes of a log that one poll asks for."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What the steps work with."""

    db: Database
    clients: Mapping[str, JobdClient]
    profiles: Mapping[str, Profile]
    agents: Mapping[str, Agent]
    spool: Spool
    now: Callable[[], datetime]


async def take_step(bench: Bench, job: Job) -> Job:
    """Move a leased job on as far as it can go just now. Raises `HostError` when its machine cannot be asked."""
    client = bench.clients[job.machine or ""]
    step = _cancel if job.cancel_requested_at else _STEPS[job.state]
    try:
        return await step(bench, client, job)
    except JobdError as error:
        log.warning("job.refused_by_machine", **job.log_context(), error=error.code, reason=error.message)
        return await end(bench, job, JobState.FAILED, error.message)


async def end(bench: Bench, job: Job, to: JobState, failure: str | None, report: Report | None = None) -> Job:
    """Put a job into a final state, with everything of it that must outlive the spool, in one transaction."""
    stages = [stage for stage in STAGES if bench.spool.offset(job.id, stage)]
    # Not on the event loop, and not while the transaction is open: a log may have many megabytes.
    logs = {stage: await asyncio.to_thread(store.compress_log, bench.spool.read(job.id, stage)) for stage in stages}
    async with bench.db.write() as connection:
        for stage, compressed in logs.items():
            await store.save_log(connection, job.id, stage, compressed)
        if report:
            await store.insert_report(connection, report)
        ended = await store.move_job(connection, job, to, bench.now(), failure)
    bench.spool.drop(job.id)
    log.info("job.ended", **job.log_context(), state=str(to), failure=failure)
    return ended


async def _prepare(bench: Bench, client: JobdClient, job: Job) -> Job:
    poll = await _follow(bench, client, job, "prepare")
    profile = bench.profiles[job.repository]
    if poll.state is StageState.ABSENT:
        await client.prepare(
            job.id,
            clone_url=job.clone_url,
            base_branch=job.base_branch,
            base_commit="",
            changes=(),
            held_back=(),
            create_venv=profile.create_venv,
            setup=profile.setup,
            timeout_s=profile.limits.prepare_timeout_s,
            max_log_bytes=profile.limits.max_log_bytes,
        )
    elif poll.state is StageState.DONE:
        # Recorded before the agent starts: from then on the machine's own word on it would be the agent's word.
        job = await _record_base_commit(bench, job, poll.result)
        return await _start_agent(bench, client, job)
    elif poll.state in (StageState.FAILED, StageState.LOST):
        return await end(bench, job, JobState.FAILED, _why(poll, "the preparation of the environment was killed"))
    return job


async def _record_base_commit(bench: Bench, job: Job, result: Mapping[str, Any]) -> Job:
    if job.base_commit:
        return job
    base_commit = str(result.get("base_commit"))
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", base_commit):
        raise JobdError("internal", "the machine did not say which commit it checked out")
    return await _update(bench, job, base_commit=base_commit)


async def _start_agent(bench: Bench, client: JobdClient, job: Job) -> Job:
    launch = bench.agents[job.agent].launch(Run(session_id=str(uuid.uuid5(SESSIONS, job.id))))
    limits = bench.profiles[job.repository].limits
    await client.start(
        job.id,
        argv=launch.argv,
        env={"PTQ_PRESET": job.preset, **launch.env},
        prompt=job.prompt,
        prompt_on_stdin=launch.prompt_on_stdin,
        drop_lines=launch.drop_lines,
        files={},
        base_skills={},
        base_commit="",
        tail_glob="",
        tail_word="",
        stop_grace_s=limits.stop_grace_s,
        timeout_s=limits.timeout_s,
        max_log_bytes=limits.max_log_bytes,
    )
    return await _move(bench, job, JobState.RUNNING, started_at=bench.now())


async def _run(bench: Bench, client: JobdClient, job: Job) -> Job:
    poll = await _follow(bench, client, job, "agent")
    if poll.state is StageState.DONE:
        failure = _judge(bench, job, poll.result)
        return await _move(bench, job, JobState.COLLECTING, failure, exit_status=poll.result.get("exit_status"))
    if poll.state is StageState.FAILED:
        return await end(bench, job, JobState.FAILED, _why(poll, "the agent could not be started"))
    if poll.state in (StageState.LOST, StageState.ABSENT):
        # What it had done by then may still be worth reading.
        failure = _why(poll, "the agent was killed from outside, or its machine was restarted")
        return await _move(bench, job, JobState.COLLECTING, failure)
    return job


def _judge(bench: Bench, job: Job, result: Mapping[str, Any]) -> str | None:
    """Why the run does not count as a success, as a sentence; None when it does."""
    if result.get("timed_out"):
        limit_s = bench.profiles[job.repository].limits.timeout_s
        return f"the agent was stopped after {limit_s} seconds, its time limit"
    agent, tally = bench.agents[job.agent], Tally()
    for line in bench.spool.read(job.id, "agent").decode(errors="replace").splitlines():
        tally = tally.add(agent.read_line(line))
    exit_status = result.get("exit_status")
    verdict = judge(tally, exit_status if isinstance(exit_status, int) else None, speaks=agent.speaks)
    return None if verdict.finished else verdict.reason


async def _collect(bench: Bench, client: JobdClient, job: Job) -> Job:
    poll = await _follow(bench, client, job, "collect")
    profile = bench.profiles[job.repository]
    if poll.state is StageState.ABSENT:
        limits = profile.limits
        await client.collect(
            job.id,
            base_commit=job.base_commit or "",
            lint=profile.lint,
            session_glob="",
            max_session_bytes=0,
            timeout_s=limits.collect_timeout_s,
            max_change_bytes=limits.max_change_bytes,
            max_changes=limits.max_changes,
            max_text_bytes=limits.max_text_bytes,
            max_log_bytes=limits.max_log_bytes,
        )
        return job
    if poll.state is StageState.RUNNING:
        return job
    failure = job.failure
    if poll.state is not StageState.DONE:
        failure = failure or _why(poll, "the collection of the result was killed")
    return await _finish(bench, client, job, profile, failure)


async def _finish(bench: Bench, client: JobdClient, job: Job, profile: Profile, failure: str | None) -> Job:
    """Read what was collected, distrustfully, and end the job with it."""
    report = None
    try:
        report = read_report(job, await client.result(job.id), profile)
    except (BadArtifacts, JobdError) as error:
        failure = failure or f"the result could not be read: {error}"
    if report and not report.body.strip():
        failure = failure or "the agent ended without writing a report"
    return await end(bench, job, JobState.FAILED if failure else JobState.SUCCEEDED, failure, report)


async def _cancel(bench: Bench, client: JobdClient, job: Job) -> Job:
    if await client.kill(job.id):
        return job
    for stage in STAGES:
        await _follow(bench, client, job, stage)
    return await end(bench, job, JobState.CANCELLED, f"cancelled by @{job.cancelled_by}")


async def _follow(bench: Bench, client: JobdClient, job: Job, stage: str) -> Poll:
    """Ask how a stage stands, and copy what its log has grown by. A finished stage is read to its end.

    Its size is bounded by the machine; and here again, for a machine may lie.
    """
    limit = bench.profiles[job.repository].limits.max_log_bytes + LOG_CHUNK
    while True:
        offset = bench.spool.offset(job.id, stage)
        room = max(min(LOG_CHUNK, limit - offset), 0)
        poll = await client.poll(job.id, stage, log_offset=offset, log_limit=room)
        bench.spool.append(job.id, stage, poll.log[:room])
        if poll.state in (StageState.ABSENT, StageState.RUNNING) or not poll.log or not room:
            return poll


def _why(poll: Poll, otherwise: str) -> str:
    return poll.message or otherwise


async def _update(bench: Bench, job: Job, **changes: Any) -> Job:
    async with bench.db.write() as connection:
        return await store.change_job(connection, job, **changes)


async def _move(bench: Bench, job: Job, to: JobState, failure: str | None = None, **changes: Any) -> Job:
    async with bench.db.write() as connection:
        moved = await store.move_job(connection, job, to, bench.now(), failure, **changes)
    log.info("job.moved", **moved.log_context(), state=str(to))
    return moved


_STEPS: Mapping[JobState, Callable[[Bench, JobdClient, Job], Awaitable[Job]]] = {
    JobState.PREPARING: _prepare,
    JobState.RUNNING: _run,
    JobState.COLLECTING: _collect,
}
