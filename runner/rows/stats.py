"""Statistics for monitoring, counted in the database.

Totals only grow, also across replicas and restarts. Every function only reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import deliveries, holds, job_events, jobs, meters, notifications, pulls
from runner.model.job import FINAL, NEXT, JobState
from runner.model.usage import Usage
from runner.rows.usage_columns import sum_usage

WINDOW = timedelta(hours=1)
"""The time window for durations of phases."""

MAX_EVENTS = 20_000
"""The most history entries that are read, the newest."""


@dataclass(frozen=True, slots=True)
class Readings:
    """The statistics of one moment."""

    active: Mapping[str, int]
    """State -> number of jobs."""
    ended: Mapping[tuple[str, str, str], int]
    """State, preset and agent -> number of jobs."""
    oldest_queued_at: datetime | None
    deliveries: Mapping[str, int]
    oldest_pending_at: datetime | None
    pulls: Mapping[str, int]
    """State (waiting, brought, abandoned) -> number of pull requests."""
    holds: int
    notifications: int
    """Notifications that were not sent yet."""
    taken: Mapping[tuple[str, str], Usage]
    """Agent and model -> usage of all runs."""
    phases: Mapping[str, Sequence[float]]
    """Phase -> durations in seconds, for phases that ended in the window."""


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
        phases=measure_phases(await _fetch_steps(connection, now - WINDOW)),
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


async def _fetch_steps(connection: AsyncConnection, since: datetime) -> list[tuple[str, datetime, str]]:
    """Every step of the jobs that took one lately: job, time, words; each job's in their order."""
    lately = select(job_events.c.job_id).where(job_events.c.at >= since).distinct()
    columns = (job_events.c.job_id, job_events.c.at, job_events.c.what)
    query = select(*columns).where(job_events.c.job_id.in_(lately)).order_by(job_events.c.id.desc()).limit(MAX_EVENTS)
    rows = [(str(job_id), at, str(what)) for job_id, at, what in await connection.execute(query)]
    rows.reverse()
    return sorted(rows, key=lambda row: row[0])  # Stable: what came later stays later.


def measure_phases(steps: Iterable[tuple[str, datetime, str]]) -> Mapping[str, Sequence[float]]:
    """How many seconds jobs spent in each phase, from their steps, those of each job together and in order. Pure."""
    took: defaultdict[str, list[float]] = defaultdict(list)
    for _, of_job in groupby(steps, lambda step: step[0]):
        phase, since = "", None
        for _, at, what in of_job:
            state = find_state(what)
            if state is None:
                continue
            if since is not None:
                took[phase].append((at - since).total_seconds())
            phase, since = state, at
    return took


def find_state(what: str) -> str | None:
    """The state into which a step led, if it led into another one."""
    word = what.split(":", maxsplit=1)[0].split(" by ", maxsplit=1)[0]
    return word if word in set(map(str, JobState)) else None
