"""What a preparation tells about its machine: that a base is there now, or that something is wrong with it."""

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
from runner.steps.runtime import Bench
from runner.transport.ssh_metrics import SSH_METRICS

log = structlog.get_logger()

BASE_BROKEN = ("setup_failed", "smoke_test_failed")
"""Why a base cannot be made, by the protocol's name."""


def name_recipe(recipe: Recipe) -> str:
    """Names what a repository's base is made by: with any of it changed, jobs begin from another one. Pure."""
    parts = (recipe.clone_url, recipe.create_venv, recipe.setup, recipe.submodules, recipe.smoke_test)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


async def note_prepared(bench: Bench, job: Job, result: Mapping[str, Any]) -> None:
    """A job's environment was made: its machine is well, and has the base from now on."""
    SSH_METRICS.count_steps(result.get("took"))
    machine, profile = job.machine or "", bench.profiles[job.repository]
    recipe = name_recipe(profile.recipe(job.clone_url, job.base_branch))
    async with bench.db.write() as connection:
        await forget_faults(connection, machine)
        lease = await job_rows.fetch_leased(connection, job.id)
        if not isinstance(result.get("base"), Mapping) or lease is None:
            return
        # Made in place, a base is good for that place alone.
        base = WarmBase(machine, lease.slot if result.get("way") == "slot" else None, recipe)
        await save_warm_base(connection, base, job.repository, bench.now())


async def note_unprepared(bench: Bench, job: Job, code: str | None) -> None:
    """A job could not be prepared, for the reason with this name. Too many in a row put the machine out."""
    machine = job.machine or ""
    if code in BASE_BROKEN:
        notification = draft_broken_base(machine, job.repository, job.failure or "", bench.now())
        async with bench.db.write() as connection:
            await insert_notification(connection, notification)
    if code is None or code not in FAULTS:
        return
    async with bench.db.write() as connection:
        if (await fetch_machine_states(connection)).get(machine, USABLE).outage:
            return  # It gets no jobs as it is; this one was there before.
        outage = break_circuit(await count_fault(connection, machine), code, bench.now())
        if outage:
            await save_outage(connection, machine, outage)
    if outage:
        log.error("machine.out", machine=machine, reason=outage.reason, permanent=outage.permanent)
