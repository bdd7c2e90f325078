"""Describes the state of machines, for everybody. It leaves out who drained a machine, which is for operators only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bot.web.dashboard.rendering import Renderer
from runner.model.inventory import Sighting
from runner.model.machines import USABLE, Lease, MachineState


def describe_machines(
    slots: Mapping[str, int],
    states: Mapping[str, MachineState],
    leases: Iterable[Lease],
    sightings: Mapping[str, Sighting],
    renderer: Renderer,
) -> list[dict[str, Any]]:
    """Each configured machine, with its `slots`. Pure."""
    described, taken = [], [lease.machine for lease in leases]
    # A machine that was removed from the configuration has no slots, and is listed while jobs run there.
    gone = {machine: 0 for machine in taken if machine not in slots}
    for name, count in {**slots, **gone}.items():
        state = states.get(name, USABLE)
        trouble = renderer.redact(state.trouble) if state.trouble else None
        since = {"drained_since": state.drained_at, "out_since": state.outage and state.outage.since}
        has = describe_sighting(sightings.get(name), renderer)
        described.append(
            {"name": name, "slots": count, "leased": taken.count(name), "trouble": trouble, **since, "has": has}
        )
    return described


def describe_sighting(sighting: Sighting | None, renderer: Renderer) -> dict[str, Any] | None:
    """The last inventory of a machine. None if there is none. Pure."""
    if sighting is None:
        return None
    shown = ("name", "memory_mib", "driver")
    inventory = sighting.inventory
    return {
        "gpus": [{key: renderer.clean(getattr(gpu, key)) for key in shown} for gpu in inventory.gpus],
        "gpu_trouble": renderer.redact(inventory.gpu_trouble) if inventory.gpu_trouble else None,
        "disk": {"free_bytes": inventory.free_bytes, "total_bytes": inventory.total_bytes},
        "free_inodes": inventory.free_inodes,
        "unknown_job_folders": sighting.stranger_count,
        "seen_at": sighting.at,
    }
