"""`ptq-bot jobs`: operators list, show, cancel, rename and clean jobs, and read their logs.

Most data is from the database. The logs of a running stage are from the service's data folder. Control characters in
text from agents and strangers are made visible, so that a terminal does not execute them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, func, update
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.settings import Settings
from bot.operations.context import find_operator
from bot.operations.holds import NAME
from bot.operations.reports import UnknownJob, render_table
from bot.operations.worktrees import JOB_ID
from handlers.cases.retention import delete_logs
from handlers.commands.rights import Operation, Person
from handlers.jobs.cancel import cancel
from handlers.text.live_transcript import read_transcript
from handlers.text.log_redactor import LogRedactor
from handlers.text.sanitize import one_line, redact
from handlers.text.transcript import Entry, EntryKind
from handlers.words.costs import describe_meter
from runner.agents import build_agent
from runner.characters import show_for_terminal
from runner.db.database import open_existing_database
from runner.db.schema import jobs
from runner.model.job import ACTIVE, Job, JobState
from runner.model.meter import Meter
from runner.rows import job_rows
from runner.rows.holds import Hold, fetch_hold
from runner.steps.spool import STAGES, Spool

MAX_TROUBLE = 100
"""The most characters of a job's `trouble` in a list."""

NO_LOG = "There is no such log: that stage has not begun, or its log was deleted ([retention] logs_days).\n"


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


async def list_jobs(settings: Settings, wanted: JobFilter, *, as_json: bool = False) -> str:
    """The newest jobs that match, as a table or as JSON. Raises `DatabaseError`."""
    async with open_existing_database(settings.server.database_url) as database, database.read() as connection:
        found = await job_rows.fetch_recent_jobs(connection, wanted.limit, *wanted.conditions())
    secrets, now = settings.secret_values(), datetime.now(UTC)
    if as_json:
        return redact(json.dumps([_describe(job) for job in found], indent=2) + "\n", secrets, shapes=())
    return show_for_terminal(redact(render_jobs(found, now), secrets))


def _describe(job: Job) -> dict[str, Any]:
    names = ("id", "case_key", "attempt", "preset", "agent", "model", "machine", "requested_by", "trouble", "failure")
    times = ("created_at", "started_at", "ended_at")
    values = {name: getattr(job, name) for name in names}
    said = {name: at.isoformat() if (at := getattr(job, name)) else None for name in times}
    return {**values, "state": str(job.state), **said}


def render_jobs(found: Sequence[Job], now: datetime) -> str:
    """Jobs as a table, in the given order. Pure."""
    if not found:
        return "There are none.\n"
    head = ("job", "about", "preset", "state", "for", "machine", "asked by", "held up")
    return render_table([head, *(_cells(job, now) for job in found)])


def _cells(job: Job, now: datetime) -> tuple[str, ...]:
    lasts = render_span(((job.ended_at or now) - job.created_at).total_seconds())
    trouble = one_line(job.trouble or "", MAX_TROUBLE)
    return job.id, job.case_key, job.preset, str(job.state), lasts, job.machine or "", job.requested_by, trouble


def render_span(seconds: float) -> str:
    """A duration in its two largest units: `2 d 3 h`, `4 min 10 s`. Pure."""
    left, parts = max(int(seconds), 0), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


async def cancel_jobs(settings: Settings, job_ids: Iterable[str]) -> str:
    """Request the cancellation of jobs, like `/ptq cancel`. Raises `UnknownJob`, and then cancels none of them."""
    said, person, now = [], find_operator(), datetime.now(UTC)
    async with open_existing_database(settings.server.database_url) as database, database.write() as connection:
        for job in [await _fetch(connection, job_id) for job_id in job_ids]:
            is_ending = await cancel(connection, person, job, now)
            how = "is asked to end" if is_ending else f"has ended already ({job.state})"
            said.append(f"Job {job.id} {how}.\n")
    return "".join(said)


class NotDone(Exception):  # noqa: N818
    """The request is not possible for this job or name; the message says why."""


async def rename_job(settings: Settings, job_id: str, name: str) -> str:
    """Rename a worktree or a task. Returns the text for the terminal. Raises `UnknownJob` and `NotDone`."""
    async with open_existing_database(settings.server.database_url) as database, database.write() as connection:
        job = await _fetch(connection, job_id)
        await rename(connection, find_operator(), job, name, datetime.now(UTC))
    return f"{job.case_key} is called {name} from now on.\n"


async def rename(connection: AsyncConnection, person: Person, job: Job, name: str, now: datetime) -> None:
    """Rename all attempts of a worktree or a task. Raises `NotPermitted` and `NotDone`.

    A job on an issue cannot be renamed, because it is named after its issue.
    """
    person.require(Operation.RENAME)
    if not NAME.fullmatch(name) or JOB_ID.fullmatch(name):
        raise NotDone("a name has letters, digits, dots, dashes and underscores, 50 at most, and is no job's id")
    if job.thread is not None:
        raise NotDone(f"job {job.id} belongs to {job.case_key}, and is called by that")
    same = (jobs.c.name == name, jobs.c.repository == job.repository, jobs.c.series != job.series)
    if others := await job_rows.fetch_recent_jobs(connection, 1, *same):
        raise NotDone(f"{others[0].repository} has a job of that name: {others[0].id}")
    attempts = (jobs.c.repository == job.repository, jobs.c.series == job.series)
    await connection.execute(update(jobs).where(*attempts).values(name=name))
    await job_rows.add_event(connection, job.id, now, f"renamed from {job.name} by {person.mention}")


async def clean_job(settings: Settings, job_id: str) -> str:
    """Delete the logs of an ended job, earlier than `[retention]` does. Raises `UnknownJob` and `NotDone`."""
    async with open_existing_database(settings.server.database_url) as database, database.write() as connection:
        job = await _fetch(connection, job_id)
        await clean(connection, find_operator(), job, datetime.now(UTC))
    return f"The logs of job {job.id} are deleted.\n"


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


async def show_job(settings: Settings, job_id: str) -> str:
    """Everything about a job except its results, which `ptq-bot report` shows. Raises `UnknownJob`."""
    async with open_existing_database(settings.server.database_url) as database, database.read() as connection:
        job = await _fetch(connection, job_id)
        events, meter = await job_rows.fetch_events(connection, job.id), await job_rows.fetch_meter(connection, job.id)
        hold = await fetch_hold(connection, job.id)
    text = render_job(job, events, meter, hold, settings.find_page(job) or "none: nobody can sign in")
    return show_for_terminal(redact(text, settings.secret_values()))


async def _fetch(connection: AsyncConnection, job_id: str) -> Job:
    job = await job_rows.fetch_job(connection, job_id)
    if job is None:
        raise UnknownJob(f"there is no job {show_for_terminal(job_id)!r}")
    return job


def render_job(
    job: Job, events: Sequence[tuple[datetime, str]], meter: Meter | None, hold: Hold | None, page: str
) -> str:
    """A job, its cost, and its history with the time between steps. Pure."""
    facts = {
        "about": f"{job.case_key}, {job.preset}, attempt {job.attempt}, requested by {job.requested_by}",
        "state": f"{job.state}{f': {one_line(job.failure, 500)}' if job.failure else ''}",
        "held up": one_line(job.trouble or "", 500),
        "agent": f"{job.agent}{f' ({job.model})' if job.model else ''}" if job.has_agent else "",
        "machine": job.machine or "",
        "base": f"{job.base_branch} at {job.base_commit}" if job.base_commit else job.base_branch,
        "follows": job.follows or "",
        "took": describe_meter(meter) if meter else "",
        "held for": f"{hold.person} until {hold.expires_at:%Y-%m-%d %H:%M} UTC" if hold else "",
        "page": page,
    }
    lines = [f"job {job.id}", *(f"  {name:<8}  {words}" for name, words in facts.items() if words), ""]
    before: datetime | None = None
    for at, what in events:
        after = f"  (+{render_span((at - before).total_seconds())})" if before else ""
        lines.append(f"{at:%Y-%m-%d %H:%M:%S} UTC  {one_line(what, 300)}{after}")
        before = at
    return "\n".join(lines) + "\n"


async def read_log(settings: Settings, job_id: str, stage: str, *, raw: bool = False) -> str:
    """The log of a stage, without secrets. An agent's log becomes a readable transcript, except with `raw`.

    Raises `UnknownJob`, also for an unknown stage, and `DatabaseError`.
    """
    if stage not in STAGES:
        raise UnknownJob(f"there is no stage {show_for_terminal(stage)!r}; there are {', '.join(STAGES)}")
    async with open_existing_database(settings.server.database_url) as database, database.read() as connection:
        job = await _fetch(connection, job_id)
        kept = await job_rows.fetch_log(connection, job.id, stage)
    log = kept if kept is not None else Spool(settings.server.data_dir / "spool").read(job.id, stage)
    if not log:
        return NO_LOG
    secrets = settings.secret_values()
    spec = next((spec for spec in settings.agent_specs() if spec.name == job.agent), None)
    agent = build_agent(spec) if spec and stage == "agent" else None
    if raw or agent is None or not agent.speaks:
        redactor = LogRedactor(secrets)
        text = "".join(one.text for one in [*redactor.feed(log), *redactor.finish()])
        return show_for_terminal(text).rstrip("\n") + "\n"
    return "".join(map(_render_entry, read_transcript(log, agent, secrets)))


_HEADS = {
    EntryKind.CALLED: "> ",
    EntryKind.RESULT: "  ",
    EntryKind.FAILED: "! ",
    EntryKind.NOTE: "-- ",
}


def _render_entry(entry: Entry) -> str:
    head = _HEADS.get(entry.kind, "")
    shown = show_for_terminal(entry.text).rstrip("\n")
    end = "\n\n" if entry.kind is EntryKind.SAID else "\n"
    return "\n".join(f"{head}{line}" for line in shown.split("\n")) + end
