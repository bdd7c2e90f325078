"""Rows of jobs, leases, reports and logs. Every function takes its caller's transaction.

Jobs are written only here. The updates are guarded: a write changes nothing if the job's row is no longer in the
expected state.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, case, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import file_changes, job_events, job_logs, jobs, leases, meters, reports, turns
from runner.db.sql import insert_new, mark_long, upsert
from runner.model.caps import Caps, Scope, bound_self_reported
from runner.model.fair_share import Turns
from runner.model.job import (
    ACTIVE,
    KINDS,
    OPERATOR,
    FileChange,
    IllegalMove,
    Job,
    JobKind,
    JobRequest,
    JobState,
    Posts,
    Report,
    ReportHead,
    Topic,
    move,
    queue_job,
)
from runner.model.machines import Holder, Lease, restore_gpus
from runner.model.meter import Meter
from runner.model.usage import NOTHING, Usage
from runner.rows.usage_columns import COLUMNS, cut_self_reported, read_usage, sum_usage, write_usage
from runner.rows.worklogs import delete_worklog

BEGINNING = 1000
"""How many characters at the beginning of a report are read, to find out whether the report has words."""

_ACTIVE = [str(state) for state in ACTIVE]
_ENDABLE = [*_ACTIVE, str(JobState.LOST)]
_BY_AGENTS = jobs.c.kind.in_([kind for kind, row in KINDS.items() if not row.by_hand])
_HAVE_AGENTS = jobs.c.kind.in_([kind for kind, row in KINDS.items() if row.has_agent])
_IN_VAIN = (jobs.c.kind == JobKind.REBASE) & (jobs.c.state != JobState.SUCCEEDED)

# Built once, because the service runs them all the time.
_JOB = select(jobs).where(jobs.c.id == bindparam("job_id"))
_ACTIVE_JOBS = select(jobs).where(jobs.c.state.in_(_ACTIVE)).order_by(jobs.c.created_at, jobs.c.id)
_LEASES = select(leases)


def _job(row: Row[Any]) -> Job:
    return _to_job(row._asdict())


def _to_job(values: Mapping[str, Any]) -> Job:
    conflicts = None if values["conflicts"] is None else tuple(values["conflicts"])
    facts = tuple((name, value) for name, value in values["facts"])
    names = {name: tuple(values[name]) for name in ("skills", "requires")}
    lists = {**names, "conflicts": conflicts, "facts": facts}
    words = {"kind": JobKind(values["kind"]), "state": JobState(values["state"]), "posts": Posts(values["posts"])}
    return Job(**{**values, **lists, **words})


async def create_job(connection: AsyncConnection, request: JobRequest, now: datetime) -> Job | None:
    """Create the job of a request. None if the job exists already, or if its issue or series has an active job."""
    job = queue_job(request, await _find_next_attempt(connection, request), now)
    return job if await insert_job(connection, job) else None


async def insert_job(connection: AsyncConnection, job: Job) -> bool:
    """Store a job. False if its id exists already, or if its issue or series has an active job."""
    created = await insert_new(connection, jobs, asdict(job))
    if created:
        await add_event(connection, job.id, job.created_at, f"queued by {job.requester}", JobState.QUEUED)
    return created


async def fetch_job(connection: AsyncConnection, job_id: str) -> Job | None:
    """The job with this id."""
    return await _fetch_one(connection, _JOB, job_id=job_id)


async def _fetch_one(connection: AsyncConnection, query: Select[Any], **parameters: Any) -> Job | None:
    row = (await connection.execute(query, parameters)).one_or_none()
    return _job(row) if row else None


async def fetch_with_successors(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, Job]:
    """Job id -> job. For a lost job with a successor, the value is the successor."""
    query = select(jobs).where(jobs.c.id.in_(job_ids) | jobs.c.replaces.in_(job_ids))
    found = [_job(row) for row in await connection.execute(query)]
    return {job.id: job for job in found} | {job.replaces: job for job in found if job.replaces}


async def fetch_newest_job(connection: AsyncConnection, repository: str, before: datetime) -> Job | None:
    """The newest job of a repository that was created before this time. None if there is none.

    Only jobs on issues count, because a worktree may begin at any commit.
    """
    query = select(jobs).where(jobs.c.repository == repository, jobs.c.thread.is_not(None), jobs.c.created_at < before)
    return await _fetch_one(connection, query.order_by(jobs.c.created_at.desc(), jobs.c.id).limit(1))


async def fetch_active_jobs(connection: AsyncConnection) -> list[Job]:
    """All active jobs, oldest first."""
    return [_job(row) for row in await connection.execute(_ACTIVE_JOBS)]


async def fetch_recent_jobs(connection: AsyncConnection, limit: int, *which: ColumnElement[bool]) -> list[Job]:
    """The newest jobs that meet all conditions, newest first."""
    query = select(jobs).where(*which).order_by(jobs.c.created_at.desc(), jobs.c.id).limit(limit)
    return [_job(row) for row in await connection.execute(query)]


async def fetch_last_job(connection: AsyncConnection, topic: Topic, *, reported: bool = False) -> Job | None:
    """The newest attempt at a topic. With `reported`, the newest attempt that has a report or a worklog.

    A rebase that did not succeed does not count as reported, because it leaves the attempt before it unchanged.
    """
    query = select(jobs).where(belong_to(topic))
    if reported:
        told = (reports.c.body != "") | (reports.c.worklog != "")
        query = query.where(jobs.c.id.in_(select(reports.c.job_id).where(told)), ~_IN_VAIN)
    return await _fetch_one(connection, query.order_by(jobs.c.attempt.desc()).limit(1))


async def fetch_told(
    connection: AsyncConnection, repository: str, thread: int, *, private: bool, limit: int
) -> list[Job]:
    """The newest jobs of an issue whose reports later jobs may use: they have words, and are not withheld.

    Without `private`, jobs from a time when the repository was private are left out. Rebases that did not succeed are
    always left out, as in `fetch_last_job`.
    """
    told = select(reports.c.job_id).where(func.trim(reports.c.body, " \t\r\n") != "", ~reports.c.withheld)
    which = [jobs.c.repository == repository, jobs.c.thread == thread, jobs.c.id.in_(told), ~_IN_VAIN]
    if not private:
        which.append(~jobs.c.private)
    query = select(jobs).where(*which).order_by(jobs.c.attempt.desc()).limit(limit)
    return [_job(row) for row in await connection.execute(query)]


async def fetch_last_worktree(connection: AsyncConnection, job_id: str) -> Job | None:
    """The newest worktree job that replaces a job's environment. None if there is none."""
    query = select(jobs).where(jobs.c.follows == job_id, jobs.c.kind == JobKind.WORKTREE)
    return await _fetch_one(connection, query.order_by(jobs.c.created_at.desc(), jobs.c.id).limit(1))


async def fetch_successor(connection: AsyncConnection, job_id: str) -> Job | None:
    """The job that replaces this one. None if there is none."""
    return await _fetch_one(connection, select(jobs).where(jobs.c.replaces == job_id))


async def fetch_author(connection: AsyncConnection, job: Job) -> Job:
    """The job in which the report and the edits were written. For a rebase without an agent, it is an earlier job."""
    while job.kind is JobKind.REBASE and not job.has_agent and job.follows:
        earlier = await fetch_job(connection, job.follows)
        if earlier is None:
            break
        job = earlier
    return job


def belong_to(topic: Topic) -> ColumnElement[bool]:
    """The condition that a job is an attempt at this topic."""
    return and_(jobs.c.repository == topic.repository, jobs.c.thread == topic.thread, jobs.c.series == topic.series)


async def _find_next_attempt(connection: AsyncConnection, request: JobRequest) -> int:
    query = select(func.max(jobs.c.attempt)).where(belong_to(request.topic))
    return ((await connection.execute(query)).scalar_one() or 0) + 1


async def find_unused_series(connection: AsyncConnection, repository: str) -> int:
    """The number of a repository's next series."""
    query = select(func.max(jobs.c.series)).where(jobs.c.repository == repository)
    return ((await connection.execute(query)).scalar_one() or 0) + 1


async def count_queued_before(connection: AsyncConnection, job: Job) -> int:
    """The number of jobs that have waited longer for a slot."""
    query = select(func.count()).where(jobs.c.state == JobState.QUEUED, jobs.c.created_at < job.created_at)
    return (await connection.execute(query)).scalar_one()


async def change_job(connection: AsyncConnection, job: Job, **changes: Any) -> Job:
    """Change a job, but not its state, and return the changed job. A row that has left `job.state` is not changed."""
    statement = update(jobs).where(jobs.c.id == job.id, jobs.c.state == job.state).values(**changes)
    await connection.execute(statement)
    return replace(job, **changes)


async def move_job(
    connection: AsyncConnection, job: Job, to: JobState, now: datetime, failure: str | None = None, **changes: Any
) -> Job:
    """Move a job, record the move in its history, and return it.

    If the move is illegal, or the row has left `job.state` meanwhile, this raises `runner.model.job.IllegalMove` and
    changes nothing.
    """
    moved = replace(move(job, to, now, failure), **changes)
    written = {name: value for name, value in asdict(moved).items() if value != getattr(job, name)}
    written["trouble"] = moved.trouble  # Always written, because `job` may have an old value.
    statement = update(jobs).where(jobs.c.id == job.id, jobs.c.state == job.state).values(**written)
    if (await connection.execute(statement)).rowcount != 1:
        raise IllegalMove(job.id, job.state, to)
    await add_event(connection, job.id, now, f"{to}: {failure}" if failure else str(to), to)
    return moved


async def request_cancel(connection: AsyncConnection, job_id: str, by: str, now: datetime) -> bool:
    """Cancel a job, or the restart of a lost job. False if that is not possible, or if the job was cancelled before."""
    statement = (
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.state.in_(_ENDABLE), jobs.c.cancel_requested_at.is_(None))
        .values(cancel_requested_at=now, cancelled_by=by)
    )
    requested = (await connection.execute(statement)).rowcount == 1
    if requested:
        await add_event(connection, job_id, now, f"cancel requested by {by if by == OPERATOR else f'@{by}'}")
    return requested


async def add_event(
    connection: AsyncConnection, job_id: str, at: datetime, what: str, state: JobState | None = None
) -> None:
    """Add a line to the job's history. If the job has moved, `state` is the state that it reached."""
    await connection.execute(insert(job_events).values(job_id=job_id, at=at, what=what, state=state))


async def fetch_events(connection: AsyncConnection, job_id: str) -> list[tuple[datetime, str]]:
    """The job's history, oldest first."""
    query = select(job_events.c.at, job_events.c.what).where(job_events.c.job_id == job_id).order_by(job_events.c.id)
    return [(row.at, row.what) for row in await connection.execute(query)]


async def fetch_moves(connection: AsyncConnection, job_id: str) -> list[tuple[datetime, JobState]]:
    """The states that a job reached, each with its time, oldest first."""
    is_move = (job_events.c.job_id == job_id) & job_events.c.state.is_not(None)
    query = select(job_events.c.at, job_events.c.state).where(is_move).order_by(job_events.c.id)
    return [(row.at, JobState(row.state)) for row in await connection.execute(query)]


async def fetch_leases(connection: AsyncConnection) -> list[Lease]:
    """All leases."""
    return [_lease(row) for row in await connection.execute(_LEASES)]


def _lease(row: Row[Any]) -> Lease:
    return Lease(row.machine, row.slot, row.job_id, restore_gpus(row.gpus))


async def note_turn(connection: AsyncConnection, job: Job, now: datetime) -> None:
    """Record that the job's repository and requester got a slot."""
    for kind, name in (("repository", job.repository), ("person", job.requested_by)):
        await upsert(connection, turns, {"kind": kind, "name": name, "at": now})


async def fetch_turns(connection: AsyncConnection, since: datetime) -> Turns:
    """When repositories and people last got a slot. Those that got none since then are missing."""
    found: dict[str, dict[str, datetime]] = {"repository": {}, "person": {}}
    for row in await connection.execute(select(turns).where(turns.c.at >= since)):
        found[row.kind][row.name] = row.at
    return Turns(found["repository"], found["person"])


async def fetch_holders(connection: AsyncConnection) -> list[Holder]:
    """All leases, with the repository and person of each job."""
    query = select(leases, jobs.c.repository, jobs.c.requested_by, jobs.c.state).join(
        jobs, jobs.c.id == leases.c.job_id
    )
    return [
        Holder(_lease(row), row.repository, row.requested_by, row.state == JobState.PREPARING)
        for row in await connection.execute(query)
    ]


async def fetch_leased(connection: AsyncConnection, job_id: str) -> Lease | None:
    """The lease of a job. None if it has none."""
    row = (await connection.execute(select(leases).where(leases.c.job_id == job_id))).one_or_none()
    return _lease(row) if row else None


async def fetch_standing(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, bool]:
    """Job id -> whether the job has ended and has no lease. Unknown jobs are missing."""
    query = select(jobs.c.id, jobs.c.state, leases.c.job_id).outerjoin(leases, leases.c.job_id == jobs.c.id)
    rows = await connection.execute(query.where(jobs.c.id.in_(job_ids)))
    return {row.id: row.state not in _ACTIVE and row.job_id is None for row in rows}


async def insert_lease(connection: AsyncConnection, lease: Lease, now: datetime) -> None:
    """Take a slot. Raises `sqlalchemy.exc.IntegrityError` if it is taken."""
    values = {"machine": lease.machine, "slot": lease.slot, "job_id": lease.job_id, "leased_at": now}
    await connection.execute(insert(leases).values(**values, gpus=[asdict(gpu) for gpu in lease.gpus]))


async def pass_lease_on(connection: AsyncConnection, job_id: str, to: str) -> None:
    """Transfer a lease to another job."""
    await connection.execute(update(leases).where(leases.c.job_id == job_id).values(job_id=to))


async def delete_lease(connection: AsyncConnection, job_id: str) -> None:
    """Release the job's slot."""
    await connection.execute(delete(leases).where(leases.c.job_id == job_id))


async def insert_report(connection: AsyncConnection, report: Report, *, withheld: bool) -> None:
    """Store a job's report. `withheld` is the result of `runner.changes.concerns.is_withheld`, and is stored for lists.

    Callers compute `withheld` before their transaction, because that takes a while for a long report.
    """
    values = {
        field.name: getattr(report, field.name)
        for field in fields(Report)
        if field.name not in ("changes", "refusals", "warnings")
    }
    lists = {"refusals": list(report.refusals), "warnings": list(report.warnings)}
    await connection.execute(insert(reports).values(**values, **lists, withheld=withheld))
    await delete_worklog(connection, report.job_id)
    if report.changes:
        rows: Sequence[Mapping[str, Any]] = [
            {"job_id": report.job_id, "number": number, **asdict(change)}
            for number, change in enumerate(sorted(report.changes, key=lambda change: change.path))
        ]
        await connection.execute(insert(file_changes), rows)


async def fetch_report(connection: AsyncConnection, job_id: str) -> Report | None:
    """A job's report. None if nothing was collected."""
    query = mark_long(select(reports).where(reports.c.job_id == job_id))
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    query = mark_long(select(file_changes).where(file_changes.c.job_id == job_id).order_by(file_changes.c.number))
    changes = tuple(
        FileChange(change.path, change.mode, change.content, change.old_mode)
        for change in await connection.execute(query)
    )
    texts = {name: value for name, value in row._mapping.items() if name != "withheld"}
    lists = {"refusals": tuple(row.refusals), "warnings": tuple(row.warnings)}
    return Report(**{**texts, **lists, "changes": changes})


async def fetch_report_head(connection: AsyncConnection, job_id: str) -> ReportHead | None:
    """A job's report without its long texts. This is quick even if the diff is large. None if nothing was collected."""
    table = reports.c
    beginning = func.substr(table.body, 1, BEGINNING).label("beginning")
    query = select(table.withheld, table.digest, table.pr_title, beginning).where(table.job_id == job_id)
    row = (await connection.execute(query)).one_or_none()
    return ReportHead(row.withheld, row.digest, row.pr_title, bool(row.beginning.strip())) if row else None


async def fetch_withheld_among(connection: AsyncConnection, job_ids: Collection[str]) -> set[str]:
    """The ids of those of these jobs whose result only operators may see."""
    query = select(jobs.c.id).outerjoin(reports, reports.c.job_id == jobs.c.id)
    query = query.where(jobs.c.id.in_(job_ids), or_(jobs.c.confidential, reports.c.withheld))
    return set((await connection.execute(query)).scalars())


async def save_meter(connection: AsyncConnection, meter: Meter) -> None:
    """Store a job's meter."""
    values = asdict(meter) | write_usage(meter.usage, meters)
    del values["usage"]
    await upsert(connection, meters, values)


async def fetch_meter(connection: AsyncConnection, job_id: str) -> Meter | None:
    """A job's meter. None if its agent never started."""
    row = (await connection.execute(select(meters).where(meters.c.job_id == job_id))).one_or_none()
    return read_meter(row._asdict()) if row else None


async def fetch_stored_usage(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, Usage]:
    """Job id -> the job's stored usage. It is `NOTHING` for a job without a meter."""
    rows = await connection.execute(select(meters).where(meters.c.job_id.in_(job_ids)))
    return dict.fromkeys(job_ids, NOTHING) | {row.job_id: read_meter(row._asdict()).usage for row in rows}


def read_meter(row: Mapping[str, Any]) -> Meter:
    """The meter in a row of `meters`."""
    others = {name: value for name, value in row.items() if name not in COLUMNS}
    return Meter(usage=read_usage(row), **others)


BILL = (
    *(jobs.c.id.label("job"), jobs.c.created_at, jobs.c.repository),
    jobs.c.thread.label("issue"),
    *(jobs.c.requested_by, jobs.c.preset, jobs.c.attempt, case((_HAVE_AGENTS, jobs.c.agent)).label("agent")),
    func.coalesce(meters.c.model, jobs.c.model).label("model"),
    *(jobs.c.state, meters.c.ending, meters.c.turns, meters.c.tool_calls, meters.c.retries, meters.c.unknown_events),
    *(meters.c.input_tokens, meters.c.cached_tokens, meters.c.output_tokens),
    *(meters.c.cost_usd, meters.c.cost_is_estimate, meters.c.run_s),
)
"""The columns of the cost list. A meter's columns are None if the agent never started. The agent is None for a job
without an agent, and the issue is None for a job without an issue."""


async def fetch_bill(
    connection: AsyncConnection, since: datetime | None, until: datetime | None
) -> list[Mapping[str, Any]]:
    """The costs of the jobs that were created from `since` on and before `until`, oldest first."""
    query = select(*BILL).select_from(jobs.outerjoin(meters, meters.c.job_id == jobs.c.id))
    query = query if since is None else query.where(jobs.c.created_at >= since)
    query = query if until is None else query.where(jobs.c.created_at < until)
    rows = await connection.execute(query.order_by(jobs.c.created_at, jobs.c.id))
    return [row._asdict() for row in rows]


async def fetch_spent(
    connection: AsyncConnection,
    topic: Topic,
    *,
    requested_by: str,
    now: datetime,
    caps: Mapping[Scope, Caps],
    without: str = "",
) -> dict[Scope, Usage]:
    """The usage so far in each scope of an attempt at this topic by this person, in the day and month of `now`.

    The job with the id `without` is left out. A topic with neither thread nor series has no attempts. Self-reported
    usage is cut as `runner.model.caps.bound_self_reported` says for these `caps`.
    """
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    today, of_repository = jobs.c.created_at >= day, jobs.c.repository == topic.repository
    which: Mapping[Scope, Sequence[ColumnElement[bool]]] = {
        Scope.ISSUE: (belong_to(topic),),
        Scope.USER_DAY: (jobs.c.requested_by == requested_by, today),
        Scope.REPOSITORY_DAY: (of_repository, today),
        Scope.REPOSITORY_MONTH: (of_repository, jobs.c.created_at >= day.replace(day=1)),
    }
    return {
        scope: await _sum_up(connection, bound_self_reported(caps, scope), jobs.c.id != without, *conditions)
        for scope, conditions in which.items()
    }


async def fetch_spent_by_others(
    connection: AsyncConnection, job: Job, caps: Mapping[Scope, Caps]
) -> dict[Scope, Usage]:
    """The usage of the other jobs in each scope of a job, in the day and month in which the job was requested.

    With the current day, a job that waits until after midnight would share no cap with the jobs of either day.
    """
    return await fetch_spent(
        connection,
        job.topic,
        requested_by=job.requested_by,
        now=job.created_at,
        caps=caps,
        without=job.id,
    )


async def _sum_up(connection: AsyncConnection, bounds: Caps, *which: ColumnElement[bool]) -> Usage:
    return Usage(**(await connection.execute(_sum_of(bounds).where(*which))).one()._mapping)


@lru_cache
def _sum_of(bounds: Caps) -> Select[Any]:
    query = select(func.count().label("jobs"), *sum_usage(meters, cut_self_reported(meters, bounds)))
    # Work by people is not a run of an agent.
    return query.select_from(jobs.outerjoin(meters, meters.c.job_id == jobs.c.id)).where(_BY_AGENTS)


def compress_log(log: bytes) -> bytes:
    """Compress a log for `save_log`."""
    return zlib.compress(log)


async def save_log(connection: AsyncConnection, job_id: str, stage: str, compressed: bytes) -> None:
    """Store a stage's log. A second call replaces it."""
    await upsert(connection, job_logs, {"job_id": job_id, "stage": stage, "compressed": compressed})


async def fetch_log(connection: AsyncConnection, job_id: str, stage: str) -> bytes | None:
    """A stage's stored log. None while the job is active, or if there is none."""
    compressed = await fetch_compressed_log(connection, job_id, stage)
    return zlib.decompress(compressed) if compressed is not None else None


async def fetch_compressed_log(connection: AsyncConnection, job_id: str, stage: str) -> bytes | None:
    """A stage's stored log, compressed with `zlib`. Callers can decompress it in a thread, which may take long."""
    query = mark_long(select(job_logs.c.compressed).where(job_logs.c.job_id == job_id, job_logs.c.stage == stage))
    found: bytes | None = (await connection.execute(query)).scalar_one_or_none()
    return found
