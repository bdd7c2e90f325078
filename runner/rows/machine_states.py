"""Rows of the states and inventories of machines. Every function takes its caller's transaction.

All replicas and the command line share these rows. A machine without a row gets jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import machine_sightings, machine_states, warm_bases
from runner.db.sql import upsert
from runner.model.inventory import MAX_STRANGERS, Inventory, Sighting
from runner.model.machines import USABLE, MachineState, Outage, WarmBase, restore_gpus

ANY_SLOT = -1
"""The slot number of a base that all slots can use."""

_IN_ORDER = {"reason": None, "permanent": None, "since": None, "seen_at": None, "retry_at": None}


_ALL_STATES = select(machine_states)


async def fetch_machine_states(connection: AsyncConnection) -> dict[str, MachineState]:
    """Name of a machine -> its stored state. Machines without a row are missing."""
    return {row.name: _state(row) for row in await connection.execute(_ALL_STATES)}


def _state(row: Row[Any]) -> MachineState:
    outage = None if row.reason is None else Outage(row.reason, row.permanent, row.since, row.seen_at, row.retry_at)
    return MachineState(row.drained_at, row.drained_by, outage, row.faults)


async def save_outage(connection: AsyncConnection, name: str, outage: Outage) -> None:
    """Store the outage of a machine."""
    await _save(connection, name, asdict(outage))


async def forget_outage(connection: AsyncConnection, name: str) -> bool:
    """End the outage of a machine. False if there was none."""
    is_out = (machine_states.c.name == name, machine_states.c.reason.is_not(None))
    return (await connection.execute(update(machine_states).where(*is_out).values(**_IN_ORDER))).rowcount == 1


async def drain(connection: AsyncConnection, name: str, by: str, now: datetime) -> None:
    """Drain a machine. A drained machine keeps the time of the first call."""
    found = (await fetch_machine_states(connection)).get(name)
    if found is None or found.drained_at is None:
        await _save(connection, name, {"drained_at": now, "drained_by": by})


async def resume(connection: AsyncConnection, name: str) -> None:
    """End the drain of a machine, and clear its failures."""
    await connection.execute(delete(machine_states).where(machine_states.c.name == name))
    # Forget its GPUs, because they may be gone for good, and no job should wait for them.
    await connection.execute(delete(machine_sightings).where(machine_sightings.c.name == name))


async def count_fault(connection: AsyncConnection, name: str) -> int:
    """Count a preparation that failed because of the machine. Returns how many have failed since the last success."""
    faults = (await fetch_machine_states(connection)).get(name, USABLE).faults + 1
    await _save(connection, name, {"faults": faults})
    return faults


async def forget_faults(connection: AsyncConnection, name: str) -> None:
    """Reset the count of failed preparations after a success."""
    has_faults = (machine_states.c.name == name, machine_states.c.faults > 0)
    await connection.execute(update(machine_states).where(*has_faults).values(faults=0))


async def _save(connection: AsyncConnection, name: str, values: dict[str, Any]) -> None:
    await upsert(connection, machine_states, {"name": name, **values})


# Inventories


async def fetch_sightings(connection: AsyncConnection) -> dict[str, Sighting]:
    """Name of a machine -> its last inventory."""
    return {row.name: _sighting(row) for row in await connection.execute(select(machine_sightings))}


def _sighting(row: Row[Any]) -> Sighting:
    gpus = restore_gpus(row.gpus)
    inventory = Inventory(gpus, row.gpu_trouble, row.free_bytes, row.total_bytes, row.free_inodes, bool(row.sealed))
    return Sighting(row.at, inventory, tuple(row.strangers or ()), row.stranger_count)


async def save_inventory(connection: AsyncConnection, name: str, inventory: Inventory, at: datetime) -> None:
    """Store a machine's inventory. The stored list of unknown folders does not change."""
    await upsert(connection, machine_sightings, {"name": name, "at": at, **asdict(inventory)})


async def save_strangers(connection: AsyncConnection, name: str, strangers: Sequence[str]) -> None:
    """Store how many unknown folders a machine has, and the first `MAX_STRANGERS` of them."""
    values = {"strangers": list(strangers[:MAX_STRANGERS]), "stranger_count": len(strangers)}
    await connection.execute(update(machine_sightings).where(machine_sightings.c.name == name).values(**values))


async def fetch_warm_bases(connection: AsyncConnection) -> set[WarmBase]:
    """All bases that are stored."""
    rows = await connection.execute(select(warm_bases))
    return {WarmBase(row.machine, None if row.slot == ANY_SLOT else row.slot, row.recipe) for row in rows}


async def save_warm_base(connection: AsyncConnection, base: WarmBase, repository: str, at: datetime) -> None:
    """Store a repository's base. It replaces a base with another recipe."""
    slot = ANY_SLOT if base.slot is None else base.slot
    key = {"machine": base.machine, "repository": repository, "slot": slot}
    await upsert(connection, warm_bases, {**key, "recipe": base.recipe, "seen_at": at})
