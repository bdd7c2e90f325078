"""What runs took by day, repository and agent: what is known of it, and of how many nobody knows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import jobs, meters

DAYS = 30
"""How far back it goes."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run took. `cost_usd` is None where nobody knows it."""

    day: str
    repository: str
    agent: str
    cost_usd: float | None
    input_tokens: int
    output_tokens: int
    run_s: float


@dataclass(frozen=True, slots=True)
class Sum:
    """What several took together."""

    name: str
    runs: int
    cost_usd: float
    unknown_costs: int
    """Runs of which nobody knows the cost: they are in no sum of money."""
    tokens: int
    run_s: float


async def fetch_runs(connection: AsyncConnection, since: datetime) -> list[Run]:
    """The runs of jobs that were made since then."""
    taken = (meters.c.cost_usd, meters.c.input_tokens, meters.c.output_tokens, meters.c.run_s)
    query = select(jobs.c.created_at, jobs.c.repository, jobs.c.agent, *taken)
    query = query.join(meters, meters.c.job_id == jobs.c.id).where(jobs.c.created_at >= since)
    return [
        Run(f"{at:%Y-%m-%d}", repository, agent, cost, read, written, run_s)
        for at, repository, agent, cost, read, written, run_s in await connection.execute(query)
    ]


def sum_up(runs: Iterable[Run], name: Callable[[Run], str]) -> list[Sum]:
    """The runs by what `name` says of each, the dearest first. Pure."""
    groups: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[name(run)].append(run)
    return sorted((_add(name, found) for name, found in groups.items()), key=lambda sum_: -sum_.cost_usd)


def _add(name: str, runs: list[Run]) -> Sum:
    known = [run.cost_usd for run in runs if run.cost_usd is not None]
    tokens = sum(run.input_tokens + run.output_tokens for run in runs)
    return Sum(name, len(runs), sum(known), len(runs) - len(known), tokens, sum(run.run_s for run in runs))


def sum_all(runs: list[Run]) -> Mapping[str, list[Sum]]:
    """Every table of the page, by its title. Pure."""
    days = sorted(sum_up(runs, lambda run: run.day), key=lambda day: day.name, reverse=True)
    return {
        "Day": days,
        "Repository": sum_up(runs, lambda run: run.repository),
        "Agent": sum_up(runs, lambda run: run.agent),
    }
