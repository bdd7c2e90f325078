"""The step in which the agent runs: starts it, watches it, and judges its run."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog

from runner.agents import Run
from runner.agents.events import Tally
from runner.agents.skills import place_skills
from runner.agents.verdict import judge
from runner.model.caps import Scope, say_who_raises
from runner.model.ending import Ending, RunVerdict
from runner.model.facts import tell_facts
from runner.model.job import Job, JobState
from runner.model.jobd_answers import MAX_NUMBER, JobdError, Poll, StageState, read_text
from runner.model.meter import Meter
from runner.model.stop_policy import (
    KILL_PATIENCE,
    Watched,
    bound,
    explain_own_cap,
    explain_stop,
    find_end,
    find_warning,
    is_worth_writing,
)
from runner.model.telling import Telling, add_messages, find_last_given, is_safe_point
from runner.rows import job_rows
from runner.rows.calls import Account, StoredUsage
from runner.rows.tellings import fetch_tellings, note_given
from runner.rows.worklogs import fetch_worklog_mark, save_worklog
from runner.steps.gateway import Fetcher
from runner.steps.runtime import (
    Runtime,
    bear_survivors,
    end,
    follow,
    keep_routes,
    log_move,
    move_on,
    update_job,
)
from runner.transport.jobd_client import JobdClient

log = structlog.get_logger()

SESSIONS = uuid.UUID("6c1f3c2e-6f0d-4b8e-9f0e-5d2f6a1b7c3d")
"""The namespace of session ids, which are derived from job ids."""

SESSION_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")
"""The allowed form of a session's id. An agent reports the id, and the id becomes a word of a command line."""

NEW = Tally()
"""The tally of an agent that has printed nothing yet."""

MAX_EXIT_STATUS = 255

LEAST_USD = 0.01
"""The least cost that a command line accepts as a limit. The service stops the run at its cap itself."""

KILL_AFTER_S = 10
"""An agent is killed this many seconds after twice its grace time."""


async def start_agent(runtime: Runtime, client: JobdClient, job: Job) -> Job:
    """Start the agent in a prepared environment."""
    access = runtime.gateway.grant(job)
    launch = runtime.agents[job.agent].launch(_describe_run(runtime, job, access.token if access else ""))
    launch = access.fill_in(launch) if access else launch
    skills = place_skills(job.skills, runtime.skills, launch.skills_folder)
    if access:
        stored, _ = await _fetch_stored(runtime, job)
        await _open_account(runtime, job, stored)
        await runtime.gateway.connect(job.id, client)
    routes = [
        await open_route(Fetcher.of(job), client)
        for open_route in (runtime.gateway.open_git_route, runtime.gateway.open_package_route)
    ]
    async with runtime.db.read() as connection:
        told = await fetch_tellings(connection, job.id)
    await client.start(
        job.id,
        replace(
            launch,
            env={"PTQ_PRESET": job.preset, **launch.env, **routes[0].env, **routes[1].env},
            files={**launch.files, **skills.files},
        ),
        runtime.profiles[job.repository].limits,
        prompt=add_messages(tell_facts(job.prompt, job.facts, job.base_commit or ""), told),
        told=told[-1].number if told else 0,
        relay=any(route.by_relay for route in routes) or (access is not None and not access.url),
        base_skills=skills.base_skills,
        skill_folders=skills.skill_folders,
        base_commit=job.base_commit or "",
    )
    return await move_on(runtime, job, JobState.RUNNING, started_at=runtime.now())


async def _open_account(runtime: Runtime, job: Job, stored: StoredUsage) -> Account | None:
    """Open the job's account with the gateway, with the current caps. None if the agent does not use the gateway."""
    profile = runtime.profiles[job.repository]
    return await runtime.gateway.open(job, bound(profile.caps, profile.limits, job), stored)


async def _fetch_stored(runtime: Runtime, job: Job) -> tuple[StoredUsage, Meter | None]:
    """The stored usage of other jobs, and the job's own meter."""
    accounts = runtime.gateway.list_accounts()
    async with runtime.db.read() as connection:
        others = await job_rows.fetch_spent_by_others(connection, job, runtime.profiles[job.repository].caps)
        stored = StoredUsage(others, await job_rows.fetch_stored_usage(connection, accounts))
        return stored, await job_rows.fetch_meter(connection, job.id)


def _describe_run(runtime: Runtime, job: Job, token: str, tally: Tally = NEW) -> Run:
    """The parameters of this run: a new session, or the one of the `tally`, and the caps that the backend can enforce.

    The session of another job is never resumed: that job's agent could have written to the session's file, and so
    could have invented messages of the service. An agent that does that to its own session can only deceive itself.
    """
    profile, cost_usd = runtime.profiles[job.repository], tally.usage.known_usd
    caps = bound(profile.caps, profile.limits, job)[Scope.JOB]
    return Run(
        session_id=str(uuid.uuid5(SESSIONS, job.id)),
        resumes=tally.session_id or "",
        model=job.model,
        thinking=job.thinking,
        has_skills=bool(job.skills),
        max_turns=None if caps.turns is None else max(caps.turns - tally.turns, 1),
        max_cost_usd=None if caps.cost_usd is None else max(caps.cost_usd - cost_usd, LEAST_USD),
        token=token,
    )


async def follow_agent(runtime: Runtime, client: JobdClient, job: Job) -> Job:
    """Watch a running agent. When it has ended, judge its run."""
    poll = await _follow_with_worklog(runtime, client, job)
    agent = runtime.agents[job.agent]
    waiting = await _note_told(runtime, job, poll)
    if poll.state is StageState.RUNNING:
        return await _watch(runtime, client, job, waiting)
    stored, _ = await _fetch_stored(runtime, job)
    account = await _open_account(runtime, job, stored)
    await runtime.gateway.close(job.id)
    if poll.state is StageState.FAILED:
        return await end(runtime, job, JobState.FAILED, poll.message or "the agent could not be started")
    tally, meter, _ = await runtime.usage_reader.read_aside(job, agent, whole=True)
    run_s = min(meter.usage.run_s, _read_run_s(poll.result, meter.usage.run_s))
    meter = replace(meter, usage=meter.usage.with_run_s(run_s))
    meter = account.correct(meter) if account else meter
    if poll.state is StageState.DONE:
        exit_status = _read_exit_status(poll.result)
        profile = runtime.profiles[job.repository]
        raising = explain_own_cap(job, meter.usage, bound(profile.caps, profile.limits, job))
        stopped = _find_why_stopped(runtime, job, poll.result, account)
        verdict = judge(tally, exit_status, speaks=agent.speaks, told=stopped, raising=raising)
    else:
        # Its results so far may still be useful.
        exit_status = None
        reason = poll.message or "the agent was killed from outside, or its machine was restarted"
        verdict = _find_why_stopped(runtime, job, {}, account) or RunVerdict(Ending.KILLED, reason)
    async with runtime.db.write() as connection:
        await job_rows.save_meter(connection, replace(meter, ending=str(verdict.ending)))
        failure = None if verdict.finished else verdict.reason
        moved = await job_rows.move_job(
            connection, job, JobState.COLLECTING, runtime.now(), failure, exit_status=exit_status
        )
    if doubt := poll.result.get("doubt"):
        log.warning("agent.environment_doubted", **job.log_context(), reason=read_text(doubt))
    if meter.unknown_events:
        # A new version of a command line may print events that the backend should read.
        log.warning("agent.unknown_events", **job.log_context(), agent=job.agent, count=meter.unknown_events)
    return log_move(moved)


async def _follow_with_worklog(runtime: Runtime, client: JobdClient, job: Job) -> Poll:
    """Follow the agent, and store its worklog if the worklog has changed. Readers then need not ask the machine."""
    async with runtime.db.read() as connection:
        known = await fetch_worklog_mark(connection, job.id)
    poll = await follow(runtime, client, job, "agent", worklog_mark=known)
    if poll.worklog and poll.worklog.mark != known:
        # If this write is lost in a power failure, the worklog is read again.
        async with runtime.db.relaxed_commit.write() as connection:
            await save_worklog(connection, job.id, poll.worklog)
    return poll


def _read_run_s(result: Mapping[str, Any], otherwise: float) -> float:
    """The running time from the machine, or `otherwise`. The service may have been away when the agent ended."""
    run_s = result.get("run_s")
    return float(run_s) if isinstance(run_s, int | float) and 0 <= run_s <= MAX_NUMBER else otherwise


def _read_exit_status(result: Mapping[str, Any]) -> int | None:
    """The agent's exit status, negative for a signal. None if the machine does not report a valid one."""
    status = result.get("exit_status")
    return status if type(status) is int and -MAX_EXIT_STATUS <= status <= MAX_EXIT_STATUS else None


def _find_why_stopped(
    runtime: Runtime, job: Job, result: Mapping[str, Any], account: Account | None
) -> RunVerdict | None:
    """Why a person, the service or the machine stopped the agent. None if the agent ended by itself."""
    if job.cancel_requested_at:
        return RunVerdict(Ending.CANCELLED, f"cancelled by {job.canceller}")
    if job.stopped_as:
        return RunVerdict(Ending(job.stopped_as), job.stop_reason or "")
    if verdict := _find_refusal(account):
        return verdict
    if objection := read_text(result.get("objection")):
        return RunVerdict(Ending.CAPPED, objection)
    if result.get("timed_out"):
        limit_s = runtime.profiles[job.repository].limits.timeout_s
        cap, raising = f"its cap of {limit_s:,} seconds", say_who_raises("limits.timeout_s")
        return RunVerdict(Ending.CAPPED, explain_stop(cap, raising))
    return None


def _find_refusal(account: Account | None) -> RunVerdict | None:
    """The verdict on a run whose model calls were refused. None if none was refused."""
    refusal = account and account.refusal
    return RunVerdict(Ending.CAPPED, f"the agent was stopped at {refusal}") if refusal else None


async def _note_told(runtime: Runtime, job: Job, poll: Poll) -> list[Telling]:
    """Record which messages the agent has got, and return those that it has not got."""
    async with runtime.db.read() as connection:
        told = await fetch_tellings(connection, job.id)
    given = find_last_given(told, poll)
    got = [telling for telling in told if telling.number <= given and not telling.given_at]
    lost = [telling for telling in told if telling.number > given and telling.given_at]
    if got or lost:
        async with runtime.db.write() as connection:
            await note_given(connection, job.id, given, runtime.now())
            for messages, what in ((got, "the agent got {}"), (lost, "the agent did not get {} after all")):
                if messages:
                    amount = "a message" if len(messages) == 1 else f"{len(messages)} messages"
                    await job_rows.add_event(connection, job.id, runtime.now(), what.format(amount))
    return [telling for telling in told if telling.number > given]


async def _watch(runtime: Runtime, client: JobdClient, job: Job, waiting: Sequence[Telling]) -> Job:
    """Count the usage of a running agent. Warn it before a cap, and stop it at a cap or after a cancel.

    If it may continue, tell it the messages that are `waiting`.
    """
    profile = runtime.profiles[job.repository]
    await keep_routes(runtime, client, job)
    tally, meter, idle_s = await runtime.usage_reader.read_aside(job, runtime.agents[job.agent])
    stored, stored_meter = await _fetch_stored(runtime, job)
    if account := await _open_account(runtime, job, stored):
        try:
            await runtime.gateway.connect(job.id, client)
        except JobdError as error:  # The agent's requests wait meanwhile.
            log.warning("gateway.not_connected", **job.log_context(), error=error.code, reason=error.message)
        meter = account.correct(meter)
    if is_worth_writing(stored_meter, meter):
        # If this write is lost in a power failure, the log and the model calls are counted again.
        async with runtime.db.relaxed_commit.write() as connection:
            await job_rows.save_meter(connection, meter)
    # The usage that the agent itself reports counts in full here, because that can stop only this run.
    spent = {scope: usage + meter.usage for scope, usage in stored.others.items()}
    caps, watched = bound(profile.caps, profile.limits, job), Watched(job, meter, idle_s, spent)
    verdict = find_end(watched, caps, profile.limits) or _find_refusal(account)
    if verdict and not job.stopped_as:
        log.info("job.stopping", **job.log_context(), reason=verdict.reason)
        stop = {"stopped_as": str(verdict.ending), "stop_reason": verdict.reason, "stopped_at": runtime.now()}
        job = await update_job(runtime, job, **stop)
    if job.stopped_at:
        return await _stop(runtime, client, job)
    if (warning := find_warning(watched, caps)) and runtime.usage_reader.is_first(job.id, "warning"):
        log.info("job.warned", **job.log_context(), warning=warning)
        with suppress(JobdError):  # The warning is optional.
            await client.notify(job.id, warning)
    if waiting:
        await _tell(runtime, client, job, waiting, tally)
    return job


async def _tell(runtime: Runtime, client: JobdClient, job: Job, waiting: Sequence[Telling], tally: Tally) -> None:
    """Tell a running agent the messages that are `waiting`, if its session can be interrupted now.

    If the agent has just ended, nothing happens. If its session has gone on since its log was read, a later step tells
    it the messages.
    """
    argv: Sequence[str] = ()
    if runtime.agents[job.agent].resumes:
        waited = runtime.now() - waiting[0].told_at
        if not is_safe_point(turns=tally.turns_of_process, open_calls=tally.open_calls, waited=waited):
            return
        if not SESSION_ID.fullmatch(tally.session_id or ""):
            if runtime.usage_reader.is_first(job.id, "session unknown"):
                log.warning("job.session_unknown", **job.log_context(), agent=job.agent)
            return
        access = runtime.gateway.grant(job)
        run = _describe_run(runtime, job, access.token if access else "", tally)
        launch = runtime.agents[job.agent].launch(run)
        argv = (access.fill_in(launch) if access else launch).argv
    try:
        for telling in waiting:
            if not await client.tell(job.id, telling.number, telling.message, argv, tally.processes):
                return
    except JobdError as error:  # The next step tries again.
        log.warning("job.not_told", **job.log_context(), error=error.code, reason=error.message)


async def _stop(runtime: Runtime, client: JobdClient, job: Job) -> Job:
    """Tell the agent to stop. If it does not, kill all processes of the job. Raises `Lost`.

    The agent can delay the machine-side program that should stop it, because it runs as the same user.
    """
    assert job.stopped_at
    grace_s = 2 * runtime.profiles[job.repository].limits.stop_grace_s + KILL_AFTER_S
    kill_from = job.stopped_at + timedelta(seconds=grace_s)
    if runtime.now() > kill_from:
        log.warning("job.killed", **job.log_context())
        is_alive = await client.kill(job.id) > 0
        if not is_alive and runtime.now() - kill_from > KILL_PATIENCE:
            # Nothing is left to kill. Either the machine still reports the agent as running, or the machine was away
            # and the agent has ended meanwhile.
            is_alive = (await follow(runtime, client, job, "agent")).state is StageState.RUNNING
        return bear_survivors(runtime, job, kill_from) if is_alive else job
    try:
        await client.stop(job.id)
    except JobdError as error:
        log.warning("job.not_stopped", **job.log_context(), error=error.code, reason=error.message)
    return job
