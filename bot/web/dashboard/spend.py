"""The costs by day, repository and agent. Each sum has the number of runs whose cost is unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import jobs, meters
from runner.model.usage import NOTHING, Usage
from runner.rows.usage_columns import COLUMNS, read_usage

DAYS = 30
"""The number of days on the page."""


@dataclass(frozen=True, slots=True)
class SpendRow:
    """The usage of one run."""

    day: str
    repository: str
    agent: str
    usage: Usage


async def fetch_runs(connection: AsyncConnection, since: datetime) -> list[SpendRow]:
    """The runs of jobs that were created at or after `since`."""
    query = select(jobs.c.created_at, jobs.c.repository, jobs.c.agent, *(meters.c[name] for name in COLUMNS))
    query = query.join(meters, meters.c.job_id == jobs.c.id).where(jobs.c.created_at >= since)
    return [
        SpendRow(f"{row.created_at:%Y-%m-%d}", row.repository, row.agent, read_usage(row._asdict()))
        for row in await connection.execute(query)
    ]


def sum_up(runs: Iterable[SpendRow], name: Callable[[SpendRow], str]) -> dict[str, Usage]:
    """The runs grouped by `name`, the most expensive first. Pure."""
    sums: defaultdict[str, Usage] = defaultdict(lambda: NOTHING)
    for run in runs:
        sums[name(run)] += run.usage
    return dict(sorted(sums.items(), key=lambda named: -named[1].known_usd))


def sum_all(runs: list[SpendRow]) -> Mapping[str, Mapping[str, Usage]]:
    """The tables of the page: title -> sums. Pure."""
    return {
        "Day": dict(sorted(sum_up(runs, lambda run: run.day).items(), reverse=True)),
        "Repository": sum_up(runs, lambda run: run.repository),
        "Agent": sum_up(runs, lambda run: run.agent),
    }
