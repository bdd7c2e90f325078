"""Records what a preparation shows about its machine: a base that exists now, or a failure of the machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import structlog

from runner.model.environment import Recipe
from runner.model.job import Job
from runner.model.machines import FAULTS, USABLE, WarmBase, break_circuit
from runner.rows import job_rows
from runner.rows.machine_states import count_fault, fetch_machine_states, forget_faults, save_outage, save_warm_base
from runner.rows.notifications import draft_broken_base, insert_notification
from runner.steps.runtime import Runtime
from runner.transport.ssh_metrics import SSH_METRICS

log = structlog.get_logger()

BASE_BROKEN = ("setup_failed", "smoke_test_failed", "imports_failed")
"""Error codes of a base that cannot be built."""


def name_recipe(recipe: Recipe) -> str:
    """A name for the recipe of a base. If any part of the recipe changes, jobs need another base. Pure."""
    parts = (recipe.clone_url, recipe.create_venv, recipe.setup, recipe.submodules, recipe.smoke_test, recipe.imports)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


async def note_prepared(runtime: Runtime, job: Job, result: Mapping[str, Any]) -> None:
    """Record a successful preparation: the machine works, and has the base now."""
    SSH_METRICS.count_steps(result.get("took"))
    machine, profile = job.machine or "", runtime.profiles[job.repository]
    recipe = name_recipe(profile.recipe(job.clone_url, job.base_branch))
    async with runtime.db.write() as connection:
        await forget_faults(connection, machine)
        lease = await job_rows.fetch_leased(connection, job.id)
        if not isinstance(result.get("base"), Mapping) or lease is None:
            return
        # A base that was built in a slot's folder works only there.
        base = WarmBase(machine, lease.slot if result.get("way") == "slot" else None, recipe)
        await save_warm_base(connection, base, job.repository, runtime.now())


async def note_unprepared(runtime: Runtime, job: Job, code: str | None) -> None:
    """Record a failed preparation with its error code. Too many in a row take the machine out of service."""
    machine = job.machine or ""
    if code in BASE_BROKEN:
        notification = draft_broken_base(machine, job.repository, job.failure or "", runtime.now())
        async with runtime.db.write() as connection:
            await insert_notification(connection, notification)
    if code is None or code not in FAULTS:
        return
    async with runtime.db.write() as connection:
        if (await fetch_machine_states(connection)).get(machine, USABLE).outage:
            return  # The machine gets no new jobs anyway. This job was there before.
        outage = break_circuit(await count_fault(connection, machine), code, runtime.now())
        if outage:
            await save_outage(connection, machine, outage)
    if outage:
        log.error("machine.out", machine=machine, reason=outage.reason, permanent=outage.permanent)
