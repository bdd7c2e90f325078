"""`ptq-bot jobs`: operators list, show, cancel, rename and clean jobs, lift confidentiality, and read logs.

Most data is from the database. The log of a running stage is from the service's data folder. Control characters in text
from agents and strangers are made visible, so that a terminal does not execute them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.settings import Settings
from bot.operations.context import UnknownJob, find_operator, read_database, require_job, write_database
from bot.operations.holds import LOOK_EVERY_S
from bot.operations.reports import render_json, render_table
from handlers.cases import casebook
from handlers.cases.case import Case
from handlers.cases.retention import delete_logs
from handlers.commands.rights import Operation, Person
from handlers.jobs.cancel import cancel
from handlers.jobs.names import find_name_fault
from handlers.jobs.tell import NotTold, tell
from handlers.text.live_transcript import LiveTranscript, join_plain, read_transcript
from handlers.text.log_redactor import Clean, LogRedactor
from handlers.text.sanitize import one_line, redact
from handlers.text.stage_log import drop_marks, fold_runs
from handlers.text.transcript import Entry, EntryKind
from handlers.words.costs import describe_cost, describe_limits, describe_meter
from handlers.words.form_errors import strip_marks
from handlers.words.tellings import say_told
from handlers.words.verified import find_outcome, mark_confidential
from runner.agents import Agent, build_agent
from runner.changes.concerns import OUTCOME_READ, read_outcome
from runner.characters import show_for_terminal
from runner.checks.verification import Check
from runner.db.database import open_existing_database
from runner.db.schema import holds, job_logs, jobs, pulls, reports
from runner.model.job import ACTIVE, Job, JobKind, JobState
from runner.model.meter import Meter
from runner.model.telling import Telling
from runner.rows import job_rows
from runner.rows.check_rows import fetch_checks_of
from runner.rows.holds import Hold, fetch_hold
from runner.rows.tellings import fetch_tellings
from runner.steps.spool import AGENT, GROWING, STAGES, Spool

MAX_TROUBLE = 100
"""The most characters of a job's `trouble` in a list."""

NO_LOG = "There is no such log: that stage has not begun, or its log was deleted ([retention] logs_days).\n"

AT_ONCE = 1_000_000
"""The most bytes of a growing log that are read at once."""


CLEANED_AT_ONCE = 50
"""Jobs whose logs are deleted in one transaction."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The filter of a job list."""

    repository: str | None = None
    state: JobState | None = None
    only_active: bool = False
    limit: int = 50

    def conditions(self) -> list[ColumnElement[bool]]:
        """The filter in SQL, because there may be too many jobs, with their long briefs, to fetch all of them."""
        conditions: list[ColumnElement[bool]] = []
        if self.only_active:
            conditions.append(jobs.c.state.in_(sorted(map(str, ACTIVE))))
        if self.state:
            conditions.append(jobs.c.state == self.state)
        if self.repository:
            conditions.append(func.lower(jobs.c.repository) == self.repository.lower())
        return conditions


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a list says about a job's result."""

    outcome: str | None = None
    """What its report or its checks say; None if they say nothing."""
    is_confidential: bool = False
    """Whether only operators may know it."""
    pull_number: int | None = None
    pull_url: str | None = None
    meter: Meter | None = None


async def list_jobs(settings: Settings, wanted: JobFilter, *, as_json: bool = False) -> str:
    """The newest jobs that match, as a table or as JSON. Raises `DatabaseError`."""
    async with read_database(settings) as connection:
        found = await job_rows.fetch_recent_jobs(connection, wanted.limit, *wanted.conditions())
        results = await _fetch_results(connection, found)
    secrets, now = settings.secret_values(), datetime.now(UTC)
    if as_json:
        return render_json([_describe(job, results[job.id]) for job in found], secrets)
    return show_for_terminal(redact(render_jobs([(job, results[job.id]) for job in found], now), secrets))


async def _fetch_results(connection: AsyncConnection, found: Sequence[Job]) -> Mapping[str, JobResult]:
    ids = [job.id for job in found]
    beginning = func.substr(reports.c.body, 1, OUTCOME_READ).label("body")
    query = (
        select(jobs.c.id, beginning, pulls.c.number, pulls.c.url)
        .outerjoin(reports, reports.c.job_id == jobs.c.id)
        .outerjoin(pulls, pulls.c.job_id == jobs.c.id)
        .where(jobs.c.id.in_(ids))
    )
    rows = {row.id: row for row in await connection.execute(query)}
    meters = {job_id: await job_rows.fetch_meter(connection, job_id) for job_id in ids}
    confidential = await job_rows.fetch_withheld_among(connection, ids)
    checks = await fetch_checks_of(connection, [job.id for job in found if job.kind is JobKind.VERIFY])
    return {
        job.id: JobResult(
            _find_outcome(job, rows[job.id].body, checks.get(job.id, ())),
            job.id in confidential,
            rows[job.id].number,
            rows[job.id].url,
            meters[job.id],
        )
        for job in found
    }


def _find_outcome(job: Job, report: str | None, checks: Sequence[Check]) -> str | None:
    if job.kind is JobKind.VERIFY:
        return None if job.active else str(find_outcome(job.state, checks))
    return read_outcome(report) if report else None


def _describe(job: Job, result: JobResult) -> dict[str, Any]:
    names = ("id", "case_key", "attempt", "preset", "agent", "model", "machine", "requested_by", "trouble", "failure")
    times = ("created_at", "started_at", "ended_at")
    told = {
        "outcome": result.outcome,
        "confidential": result.is_confidential,
        "pull_request": result.pull_url,
        **_describe_cost(result.meter),
    }
    agent = job.agent if job.has_agent else None
    return {**_pick(job, names), "agent": agent, "state": job.state, **told, **_pick(job, times)}


def _describe_cost(meter: Meter | None) -> dict[str, Any]:
    """The cost in JSON; null if it is unknown."""
    return {"cost_usd": meter and meter.usage.cost_usd, "cost_is_estimate": meter and meter.cost_is_estimate}


def _pick(job: Job, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(job, name) for name in names}


def render_jobs(found: Sequence[tuple[Job, JobResult]], now: datetime) -> str:
    """Jobs as a table, in the given order. Pure."""
    if not found:
        return "There are none.\n"
    head = ("job", "subject", "preset", "state", "outcome", "PR", "age", "took", "cost")
    more = ("machine", "requested by", "waiting for")
    return render_table([(*head, *more), *(_cells(job, result, now) for job, result in found)])


def _cells(job: Job, result: JobResult, now: datetime) -> tuple[str, ...]:
    seconds = ((job.ended_at or now) - job.created_at).total_seconds()
    age = f"{render_span((now - job.created_at).total_seconds(), 1)} ago"
    pull = f"#{result.pull_number}" if result.pull_number else ""
    # A job without an agent costs nothing, and has no meter.
    cost = describe_cost(result.meter) if result.meter else ""
    outcome = mark_confidential(result.outcome, is_confidential=result.is_confidential)
    first = (job.id, job.case_key, job.preset, str(job.state), outcome, pull)
    trouble = one_line(job.trouble or "", MAX_TROUBLE)
    return *first, age, render_span(seconds), cost, job.machine or "", job.requested_by, trouble


def render_span(seconds: float, units: int = 2) -> str:
    """A duration in its largest units: `2 d 3 h`, `4 min 10 s`. Pure."""
    left, parts = max(int(seconds), 0), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:units])


async def cancel_jobs(settings: Settings, job_ids: Iterable[str], machine: str | None = None) -> str:
    """Request the cancellation of jobs, like `/ptq cancel`, and of all that run on a machine.

    Raises `UnknownJob` and `NotDone`, and then cancels none of them.
    """
    said, person, now = [], find_operator(), datetime.now(UTC)
    async with write_database(settings) as connection:
        found = [await require_job(connection, job_id) for job_id in job_ids]
        if machine is not None:
            running = [job for job in await job_rows.fetch_active_jobs(connection) if job.machine == machine]
            if not running:
                raise NotDone(f"no job runs on a machine {show_for_terminal(machine)!r}")
            found += [job for job in running if job.id not in {one.id for one in found}]
        for job in found:
            is_ending = await cancel(connection, person, job, now)
            how = "is being cancelled" if is_ending else f"has ended already ({job.state})"
            said.append(f"Job {job.id} {how}.\n")
    return "".join(said)


async def tell_job(settings: Settings, job_id: str, words: str) -> str:
    """Tell the agent of an active job something, like `/ptq tell`. Raises `UnknownJob` and `NotDone`."""
    async with write_database(settings) as connection:
        job = await require_job(connection, job_id)
        try:
            await tell(connection, find_operator(), job, words, f"terminal {token_hex(8)}", datetime.now(UTC))
        except NotTold as reason:
            how = f'After the job has ended: ptq-bot jobs retry {job.id} "INSTRUCTIONS"'
            raise NotDone(f"{reason} {how}" if reason.is_late else strip_marks(str(reason))) from None
    return f"{say_told(job, f'ptq-bot jobs show {job.id}')}\n"


class NotDone(Exception):  # noqa: N818
    """The request is not possible for this job or name; the message says why."""


async def rename_job(settings: Settings, job_id: str, name: str) -> str:
    """Rename a worktree or a task. Returns the text for the terminal. Raises `UnknownJob` and `NotDone`."""
    async with write_database(settings) as connection:
        job = await require_job(connection, job_id)
        await rename(connection, find_operator(), job, name, datetime.now(UTC))
    return f"{job.case_key} is called {name} from now on.\n"


async def rename(connection: AsyncConnection, person: Person, job: Job, name: str, now: datetime) -> None:
    """Rename all attempts of a worktree or a task. Raises `NotPermitted` and `NotDone`.

    A job on an issue cannot be renamed, because it is named after its issue.
    """
    person.require(Operation.RENAME)
    if job.thread is not None:
        raise NotDone(f"job {job.id} belongs to {job.case_key}, and is called by that")
    if fault := await find_name_fault(connection, job.repository, name, job.series):
        raise NotDone(fault)
    attempts = (jobs.c.repository == job.repository, jobs.c.series == job.series)
    await connection.execute(update(jobs).where(*attempts).values(name=name))
    await job_rows.add_event(connection, job.id, now, f"renamed from {job.name} by {person.mention}")


async def clean_job(settings: Settings, job_id: str) -> str:
    """Delete the logs of an ended job, earlier than `[retention]` does. Raises `UnknownJob` and `NotDone`."""
    async with write_database(settings) as connection:
        job = await require_job(connection, job_id)
        await clean(connection, find_operator(), job, datetime.now(UTC))
    return f"The logs of job {job.id} are deleted.\n"


async def clean_older_jobs(settings: Settings, keep: int) -> str:
    """Delete the logs of all ended jobs but the newest `keep`. Those whose environment a person holds keep theirs.

    Returns the text for the terminal. Raises `DatabaseError`.
    """
    ended = jobs.c.state.notin_(sorted(map(str, ACTIVE)))
    newest = select(jobs.c.id).where(ended).order_by(jobs.c.created_at.desc(), jobs.c.id).limit(keep)
    has_logs = exists().where(job_logs.c.job_id == jobs.c.id)
    is_held = exists().where(holds.c.job_id == jobs.c.id)
    older = (ended, jobs.c.id.notin_(newest), has_logs, ~is_held)
    person, cleaned = find_operator(), 0
    async with open_existing_database(settings.server.database_url) as database:
        while True:
            # In several transactions, because the service waits for each.
            async with database.write() as connection:
                found = await job_rows.fetch_recent_jobs(connection, CLEANED_AT_ONCE, *older)
                for job in found:
                    await clean(connection, person, job, datetime.now(UTC))
            cleaned += len(found)
            if len(found) < CLEANED_AT_ONCE:
                return f"The logs of {cleaned} job{'s' * (cleaned != 1)} are deleted.\n"


async def clean(connection: AsyncConnection, person: Person, job: Job, now: datetime) -> None:
    """Delete the logs and model calls of an ended job. Its report, diff, costs and history stay.

    The service removes the environment separately. Raises `NotPermitted` and `NotDone`.
    """
    person.require(Operation.CLEAN)
    if job.active:
        raise NotDone(f"job {job.id} is {job.state}: cancel it first, or wait for its end")
    if hold := await fetch_hold(connection, job.id):
        raise NotDone(f"{hold.person} holds its environment: ptq-bot release {job.id} --drop ends that")
    await delete_logs(connection, [job.id])
    await job_rows.add_event(connection, job.id, now, f"logs deleted by {person.mention}")


async def lift_job(settings: Settings, job_id: str) -> str:
    """End the confidentiality of a job's issue. Returns the text for the terminal.

    Raises `UnknownJob` and `NotDone`.
    """
    async with write_database(settings) as connection:
        job = await require_job(connection, job_id)
        await lift(connection, find_operator(), job, datetime.now(UTC))
    return f"Jobs of {job.case_key} that start from now on post their reports. What is confidential stays so.\n"


async def lift(connection: AsyncConnection, person: Person, job: Job, now: datetime) -> None:
    """Let jobs of a job's issue that start from now on post their reports again, after a confidential report.

    What is confidential already stays so. Raises `NotPermitted` and `NotDone`.
    """
    person.require(Operation.LIFT)
    confidential = await _fetch_confidential(connection, job)
    if not confidential:
        why = (
            "has no issue: only the confidentiality of an issue can be lifted"
            if job.thread is None
            else "is not confidential"
        )
        raise NotDone(f"{job.case_key} {why}")
    for case in confidential:
        await casebook.save_case(connection, replace(case, confidential=False))
    await job_rows.add_event(connection, job.id, now, f"confidentiality of the issue lifted by {person.mention}")


async def _fetch_confidential(connection: AsyncConnection, job: Job) -> list[Case]:
    return [] if job.thread is None else await casebook.fetch_confidential(connection, job.repository, job.thread)


async def show_job(settings: Settings, job_id: str, *, as_json: bool = False) -> str:
    """Everything about a job except its results, which `ptq-bot report` shows. Raises `UnknownJob`."""
    async with read_database(settings) as connection:
        job = await require_job(connection, job_id)
        events, meter = await job_rows.fetch_events(connection, job.id), await job_rows.fetch_meter(connection, job.id)
        hold, results = await fetch_hold(connection, job.id), await _fetch_results(connection, [job])
        told = await fetch_tellings(connection, job.id)
        is_confidential = bool(await _fetch_confidential(connection, job))
    page, secrets = settings.find_page(job), settings.secret_values()
    if as_json:
        return render_json(
            {
                **_describe(job, results[job.id]),
                "confidential_issue": is_confidential,
                **_describe_more(job, events, meter, hold, page),
                "told": [_pick_telling(telling) for telling in told],
            },
            secrets,
        )
    text = render_job(
        job, events, meter, hold, page or "none: nobody can sign in", told, is_confidential=is_confidential
    )
    return show_for_terminal(redact(text, secrets))


def _describe_usage(meter: Meter) -> dict[str, Any]:
    """A meter in JSON. Counts are null if they are unknown."""
    usage = meter.usage
    counts = {name: getattr(usage, name) for name in ("turns", "input_tokens", "cached_tokens", "output_tokens")}
    known = counts if any(counts.values()) else dict.fromkeys(counts)
    return {"model": meter.model, **known, "tool_calls": meter.tool_calls, "run_s": usage.run_s, "ending": meter.ending}


def _describe_more(
    job: Job, events: Sequence[tuple[datetime, str]], meter: Meter | None, hold: Hold | None, page: str | None
) -> dict[str, Any]:
    held = {"person": hold.person, "expires_at": hold.expires_at} if hold else None
    history = [{"at": at, "what": what} for at, what in events]
    names = ("base_branch", "base_commit", "follows", "thinking", "max_turns", "max_cost_usd")
    return {
        **_pick(job, names),
        "environment": dict(job.facts),
        "usage": meter and _describe_usage(meter),
        "hold": held,
        "page": page,
        "events": history,
    }


def render_job(
    job: Job,
    events: Sequence[tuple[datetime, str]],
    meter: Meter | None,
    hold: Hold | None,
    page: str,
    told: Sequence[Telling] = (),
    *,
    is_confidential: bool = False,
) -> str:
    """A job, its cost, what its agent was told, and its history with the time between steps. Pure."""
    facts = {
        "about": f"{job.case_key}, {job.preset}, attempt {job.attempt}, requested by {job.requested_by}",
        "state": f"{job.state}{f': {one_line(job.failure, 500)}' if job.failure else ''}",
        "waiting": one_line(job.trouble or "", 500),
        "agent": f"{job.agent}{f' ({job.model})' if job.model else ''}" if job.has_agent else "",
        "thinking": job.thinking or "",
        "limits": describe_limits(job),
        "machine": job.machine or "",
        "base": f"{job.base_branch} at {job.base_commit}" if job.base_commit else job.base_branch,
        "ran in": one_line("; ".join(f"{name} {value}" for name, value in job.facts), 1_000),
        "follows": job.follows or "",
        "took": describe_meter(meter) if meter else "",
        "reserved": f"for {hold.person} until {hold.expires_at:%Y-%m-%d %H:%M} UTC" if hold else "",
        "issue": f"confidential. To end that: ptq-bot jobs lift {job.id}" if is_confidential else "",
        "page": page,
    }
    rows = [(name, words) for name, words in facts.items() if words]
    rows += [("told", f"{telling.teller}: {one_line(telling.words, 500)}{_say_missed(telling)}") for telling in told]
    lines = [f"job {job.id}", *(f"  {name:<8}  {words}" for name, words in rows), ""]
    before: datetime | None = None
    for at, what in events:
        after = f"  (+{render_span((at - before).total_seconds())})" if before else ""
        lines.append(f"{at:%Y-%m-%d %H:%M:%S} UTC  {one_line(what, 300)}{after}")
        before = at
    return "\n".join(lines) + "\n"


def _say_missed(telling: Telling) -> str:
    return "" if telling.given_at else " (the agent has not got this)"


def _pick_telling(telling: Telling) -> dict[str, Any]:
    """A telling in JSON."""
    return {"by": telling.told_by, "at": telling.told_at, "words": telling.words, "given_at": telling.given_at}


async def read_log(settings: Settings, job_id: str, stage: str, *, raw: bool = False) -> str:
    """The log of a stage, without secrets. Except with `raw`, it becomes a readable transcript, if possible.

    Raises `UnknownJob`, also for an unknown stage, and `DatabaseError`.
    """
    _require_stage(stage)
    async with read_database(settings) as connection:
        job = await require_job(connection, job_id)
        kept = await job_rows.fetch_log(connection, job.id, stage)
    log = kept if kept is not None else _open_spool(settings).read(job.id, stage)
    if not log:
        return NO_LOG
    agent, is_jobds = _find_agent(settings, job, stage), stage != AGENT
    if not raw and (agent or is_jobds):
        entries = read_transcript(log, agent, settings.secret_values(), is_jobds=is_jobds)
        grows = job.active and GROWING[job.state] == stage
        return "".join(map(_render_entry, entries if grows else fold_runs(entries)))
    reader = _RawLog(settings.secret_values())
    return (reader.feed(log) + reader.finish()).rstrip("\n") + "\n"


async def follow_log(
    settings: Settings, job_id: str, stage: str, show: Callable[[str], None], tell: Callable[[str], None], *, raw: bool
) -> None:
    """Show a stage's log, and what is added to it, until the stage has ended. `tell` gets each state of the job.

    Raises `UnknownJob`, also for an unknown stage, and `DatabaseError`.
    """
    _require_stage(stage)
    spool, secrets = _open_spool(settings), settings.secret_values()
    offset, said, reader = 0, "", None
    async with open_existing_database(settings.server.database_url) as database:
        while True:
            with database.explaining():
                async with database.read() as connection:
                    job, kept = await _look(connection, job_id, stage)
            # The job is read before the log, so nothing is added after a look at a stage that has ended.
            grows = job.active and STAGES.index(GROWING[job.state]) <= STAGES.index(stage)
            if reader is None:
                agent, is_jobds = _find_agent(settings, job, stage), stage != AGENT
                can_tell = not raw and (agent or is_jobds)
                reader = _Transcript(agent, secrets, is_jobds=is_jobds) if can_tell else _RawLog(secrets)
            line = f"{job.state}{f': {job.trouble}' if job.trouble else ''}\n"
            if line != said:
                tell(show_for_terminal(redact(line, secrets)))
                said = line
            while chunk := spool.read_from(job.id, stage, offset, AT_ONCE) if kept is None else kept[offset:]:
                show(reader.feed(chunk))
                offset += len(chunk)
            if not grows:
                show(reader.finish() if offset else NO_LOG)
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def _look(connection: AsyncConnection, job_id: str, stage: str) -> tuple[Job, bytes | None]:
    job = await require_job(connection, job_id)
    return job, None if job.active else await job_rows.fetch_log(connection, job.id, stage)


def _require_stage(stage: str) -> None:
    if stage not in STAGES:
        raise UnknownJob(f"there is no stage {show_for_terminal(stage)!r}; there are {', '.join(STAGES)}")


def _open_spool(settings: Settings) -> Spool:
    return Spool(settings.server.data_dir / "spool")


def _find_agent(settings: Settings, job: Job, stage: str) -> Agent | None:
    """The agent that wrote the log, if it prints events."""
    spec = next((spec for spec in settings.agent_specs() if spec.name == job.agent), None)
    agent = build_agent(spec) if spec and stage == AGENT else None
    return agent if agent and agent.speaks else None


class _RawLog:
    """A log as it was printed, without secrets, for a terminal."""

    def __init__(self, secrets: Collection[str]) -> None:
        self._redactor = LogRedactor(secrets)

    def feed(self, chunk: bytes) -> str:
        return self._show(self._redactor.feed(chunk))

    def finish(self) -> str:
        return self._show(self._redactor.finish())

    def _show(self, found: Sequence[Clean]) -> str:
        return show_for_terminal(drop_marks("".join(one.text for one in found)))


class _Transcript:
    """The log of an agent, or of a stage of jobd's, as people read it in a terminal."""

    def __init__(self, agent: Agent | None, secrets: Collection[str], *, is_jobds: bool) -> None:
        self._transcript = LiveTranscript(agent, secrets, is_jobds=is_jobds)

    def feed(self, chunk: bytes) -> str:
        return "".join(map(_render_entry, join_plain(self._transcript.feed(chunk))))

    def finish(self) -> str:
        return "".join(map(_render_entry, join_plain(self._transcript.finish())))


_HEADS = {
    EntryKind.CALLED: "> ",
    EntryKind.RESULT: "  ",
    EntryKind.FAILED: "! ",
    EntryKind.NOTE: "-- ",
    EntryKind.RUN: "== ",
}


def _render_entry(entry: Entry) -> str:
    head = _HEADS.get(entry.kind, "")
    shown = show_for_terminal(entry.text).rstrip("\n")
    end = "\n\n" if entry.kind is EntryKind.SAID else "\n"
    return "\n".join(f"{head}{line}" for line in shown.split("\n")) + end
