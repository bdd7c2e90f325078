"""Rows of a job's checks and of their results. Every function takes its caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.checks.verification import Check, CheckKind, CheckRun, Side
from runner.db.schema import checks
from runner.db.sql import mark_long


async def add_checks(connection: AsyncConnection, job_id: str, found: Sequence[tuple[CheckKind, str, str]]) -> None:
    """Add checks (kind, origin and script) after the job's existing ones."""
    query = select(func.count()).where(checks.c.job_id == job_id)
    first = (await connection.execute(query)).scalar_one()
    rows: list[Mapping[str, Any]] = [
        {"job_id": job_id, "number": first + at, "kind": str(kind), "origin": origin, "script": script, "runs": {}}
        for at, (kind, origin, script) in enumerate(found, 1)
    ]
    if rows:
        await connection.execute(insert(checks), rows)


async def copy_checks(connection: AsyncConnection, source: str, job_id: str) -> None:
    """Copy the checks with which a job (`source`) began to a job that replaces it or follows it."""
    found = await fetch_checks(connection, source)
    await add_checks(
        connection,
        job_id,
        [
            (check.kind, check.origin, check.script)
            for check in found
            if check.kind in (CheckKind.ISSUE, CheckKind.KEPT)
        ],
    )


async def fetch_checks(connection: AsyncConnection, job_id: str) -> list[Check]:
    """A job's checks, in order."""
    query = select(checks).where(checks.c.job_id == job_id).order_by(checks.c.number)
    return [_read(row._asdict()) for row in await connection.execute(query)]


async def fetch_checks_of(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, list[Check]]:
    """Job id -> the job's checks, in order. Jobs without checks are missing."""
    if not job_ids:
        return {}
    query = mark_long(select(checks).where(checks.c.job_id.in_(job_ids)).order_by(checks.c.job_id, checks.c.number))
    found = [_read(row._asdict()) for row in await connection.execute(query)]
    return {job_id: [*of_job] for job_id, of_job in groupby(found, lambda check: check.job_id)}


async def save_runs(connection: AsyncConnection, check: Check) -> None:
    """Store the result of a check, or why it has none."""
    runs = {str(side): [asdict(run) for run in runs] for side, runs in check.runs.items()}
    statement = update(checks).where(checks.c.job_id == check.job_id, checks.c.number == check.number)
    await connection.execute(statement.values(runs=runs, trouble=check.trouble))


def _read(row: Mapping[str, Any]) -> Check:
    runs = {Side(side): tuple(CheckRun(**run) for run in runs) for side, runs in row["runs"].items()}
    return Check(**{**row, "kind": CheckKind(row["kind"]), "runs": runs})
