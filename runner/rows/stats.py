"""Statistics for monitoring, counted in the database. Every function only reads.

Totals only grow, also after a restart, and from one replica to another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import deliveries, holds, job_events, jobs, meters, notifications, pulls
from runner.model.job import FINAL, NEXT, JobState
from runner.model.usage import Usage
from runner.rows.usage_columns import sum_usage

WINDOW = timedelta(hours=1)
"""The time window in which a phase must have ended, so that its duration is reported."""

MAX_MOVES = 20_000
"""The most moves of jobs that are read. The newest moves are read."""


@dataclass(frozen=True, slots=True)
class Readings:
    """The statistics of one moment."""

    active: Mapping[str, int]
    """Active state -> number of jobs."""
    ended: Mapping[tuple[str, str, str], int]
    """Final state, preset and agent -> number of jobs."""
    oldest_queued_at: datetime | None
    deliveries: Mapping[str, int]
    oldest_pending_at: datetime | None
    pulls: Mapping[str, int]
    """State (waiting, brought, abandoned) -> number of pull requests."""
    holds: int
    notifications: int
    """The number of notifications that were not sent yet."""
    taken: Mapping[tuple[str, str], Usage]
    """Agent and model -> usage of all runs."""
    phases: Mapping[str, Sequence[float]]
    """Phase (a job's state) -> durations in seconds, for phases that ended within `WINDOW`."""


async def take_readings(connection: AsyncConnection, now: datetime) -> Readings:
    """Read all statistics in one transaction."""
    by_kind = await _group(connection, jobs.c.state, jobs.c.preset, jobs.c.agent)
    counted: dict[tuple[str, str, str], int] = {
        (state, preset, agent): count for state, preset, agent, count in by_kind
    }
    active: dict[str, int] = dict.fromkeys(map(str, NEXT), 0)
    for (state, _, _), count in counted.items():
        if state in active:
            active[state] += count
    oldest_queued = select(func.min(jobs.c.created_at)).where(jobs.c.state == JobState.QUEUED)
    oldest_pending = select(func.min(deliveries.c.received_at)).where(deliveries.c.state == "pending")
    return Readings(
        active=active,
        ended={key: count for key, count in counted.items() if key[0] in FINAL},
        oldest_queued_at=(await connection.execute(oldest_queued)).scalar_one(),
        deliveries=dict(await _group(connection, deliveries.c.state)),
        oldest_pending_at=(await connection.execute(oldest_pending)).scalar_one(),
        pulls=await _count_pulls(connection),
        holds=await _count(connection, holds.c.job_id),
        notifications=await _count(connection, notifications.c.key, notifications.c.delivered_at.is_(None)),
        taken=await _sum_up(connection),
        phases=measure_phases(await _fetch_moves(connection, now - WINDOW)),
    )


async def _group(connection: AsyncConnection, *columns: ColumnElement[Any]) -> list[tuple[Any, ...]]:
    found = await connection.execute(select(*columns, func.count()).group_by(*columns))
    return [tuple(row) for row in found]


async def _count(connection: AsyncConnection, column: ColumnElement[Any], *where: ColumnElement[bool]) -> int:
    return (await connection.execute(select(func.count(column)).where(*where))).scalar_one()


async def _count_pulls(connection: AsyncConnection) -> Mapping[str, int]:
    counted = {
        "brought": pulls.c.number.is_not(None),
        "abandoned": pulls.c.abandoned.is_not(None) & pulls.c.number.is_(None),
        "waiting": pulls.c.abandoned.is_(None) & pulls.c.number.is_(None),
    }
    return {state: await _count(connection, pulls.c.job_id, where) for state, where in counted.items()}


async def _sum_up(connection: AsyncConnection) -> Mapping[tuple[str, str], Usage]:
    model = func.coalesce(meters.c.model, jobs.c.model, "").label("by_model")
    query = select(jobs.c.agent, model, func.count().label("jobs"), *sum_usage(meters))
    query = query.join(jobs, jobs.c.id == meters.c.job_id).group_by(jobs.c.agent, model)
    rows = [dict(row._mapping) for row in await connection.execute(query)]
    return {(row.pop("agent"), row.pop("by_model")): Usage(**row) for row in rows}


async def _fetch_moves(connection: AsyncConnection, since: datetime) -> list[tuple[str, datetime, str]]:
    """All moves (job id, time, state) of the jobs that have moved since then, sorted by job and then by time."""
    lately = select(job_events.c.job_id).where(job_events.c.at >= since, job_events.c.state.is_not(None)).distinct()
    query = select(job_events.c.job_id, job_events.c.at, job_events.c.state)
    query = query.where(job_events.c.job_id.in_(lately), job_events.c.state.is_not(None))
    found = await connection.execute(query.order_by(job_events.c.id.desc()).limit(MAX_MOVES))
    rows = [(row.job_id, row.at, row.state) for row in found]
    rows.reverse()
    return sorted(rows, key=lambda row: row[0])  # The sort is stable, so a job's moves stay in order.


def measure_phases(moves: Iterable[tuple[str, datetime, str]]) -> Mapping[str, Sequence[float]]:
    """State -> how many seconds each job spent in it. The moves of a job must be together, and in order. Pure."""
    took: defaultdict[str, list[float]] = defaultdict(list)
    for _, of_job in groupby(moves, lambda move: move[0]):
        for (_, since, state), (_, until, _) in pairwise(of_job):
            took[state].append((until - since).total_seconds())
    return took
