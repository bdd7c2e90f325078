"""Rows of how machines stand. Every function takes the transaction that its caller opened.

All replicas and the command line read and write them. A machine without a row takes jobs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.machines import MachineState, Outage
from runner.schema import machine_states
from runner.sql import upsert

_IN_ORDER = {"reason": None, "permanent": None, "since": None, "seen_at": None, "retry_at": None}


async def fetch_machine_states(connection: AsyncConnection) -> dict[str, MachineState]:
    """How every machine stands of which anything was said, by name."""
    return {row.name: _state(row) for row in await connection.execute(select(machine_states))}


def _state(row: Row[Any]) -> MachineState:
    outage = None if row.reason is None else Outage(row.reason, row.permanent, row.since, row.seen_at, row.retry_at)
    return MachineState(row.drained_at, row.drained_by, outage)


async def save_outage(connection: AsyncConnection, name: str, outage: Outage) -> None:
    """Write down that a machine is out."""
    values = {"reason": outage.reason, "permanent": outage.permanent, "since": outage.since}
    await _save(connection, name, {**values, "seen_at": outage.seen_at, "retry_at": outage.retry_at})


async def forget_outage(connection: AsyncConnection, name: str) -> bool:
    """A machine is in order again; False when it was so before."""
    is_out = (machine_states.c.name == name, machine_states.c.reason.is_not(None))
    return (await connection.execute(update(machine_states).where(*is_out).values(**_IN_ORDER))).rowcount == 1


async def drain(connection: AsyncConnection, name: str, by: str, now: datetime) -> None:
    """Let a machine have no new jobs. Drained twice, it keeps the first time."""
    found = (await fetch_machine_states(connection)).get(name)
    if found is None or found.drained_at is None:
        await _save(connection, name, {"drained_at": now, "drained_by": by})


async def resume(connection: AsyncConnection, name: str) -> None:
    """Let a machine have jobs, and forget whatever was found wrong with it."""
    await connection.execute(delete(machine_states).where(machine_states.c.name == name))


async def _save(connection: AsyncConnection, name: str, values: dict[str, Any]) -> None:
    await upsert(connection, machine_states, {"name": name, **values})
