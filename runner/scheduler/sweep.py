"""Looks for leftovers on the machines: folders of ended jobs, and unknown folders.

A folder is removed only if the database says that its job has ended and holds no slot. Unknown folders may belong to
another service, so they are only reported. One replica does this (`runner.scheduler.supervisor`), folder by folder.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

import structlog

from runner.checks.verification import name_environment
from runner.model.jobd_answers import JobdError
from runner.model.machines import USABLE, Machine
from runner.rows import job_rows
from runner.rows.machine_states import fetch_machine_states, fetch_sightings, save_strangers
from runner.scheduler.refresh import name_refreshes
from runner.steps.loops import finish
from runner.steps.runtime import Runtime
from runner.transport.host_errors import HostError

log = structlog.get_logger()

INTERVAL_S = 600.0
"""The interval between passes, in seconds."""

MAX_CLEANED = 20
"""The most folders that one pass removes from a machine."""


class Sweep:
    """Passes over all machines. `answers` checks whether a machine can be used, and saves what it finds."""

    def __init__(
        self,
        runtime: Runtime,
        machines: Mapping[str, Machine],
        answers: Callable[[str], Awaitable[bool]],
        interval_s: float,
    ) -> None:
        self._runtime = runtime
        self._machines = machines
        self._answers = answers
        self._interval_s = interval_s
        self._last: float | None = None

    def take_turn(self) -> bool:
        """Whether a pass is due. If so, the next one is due after the interval."""
        now = time.monotonic()
        if self._last is not None and now - self._last < self._interval_s:
            return False
        self._last = now
        return True

    async def run(self) -> bool:
        """Run one pass. Returns False, because nobody waits for its result."""
        for name in [*self._machines]:
            try:
                await self._clean_machine(name)
            except (HostError, JobdError) as error:
                log.warning("sweep.machine_left_out", machine=name, reason=str(error))
        return False

    async def _clean_machine(self, name: str) -> None:
        async with self._runtime.db.read() as connection:
            state = (await fetch_machine_states(connection)).get(name, USABLE)
        if state.outage or not await self._answers(name):
            return
        client = self._runtime.clients[name]
        found = await client.list_jobs()
        # Read the database only now, so that it knows each job whose folder was found.
        async with self._runtime.db.read() as connection:
            standing = await job_rows.fetch_standing(connection, found)
            leases = await job_rows.fetch_leases(connection)
        for job_id in [job_id for job_id in found if standing.get(job_id)][:MAX_CLEANED]:
            await client.clean(job_id)
            log.info("sweep.cleaned", machine=name, job=job_id)
        known = standing.keys() | name_refreshes(self._runtime, self._machines[name])
        known |= {name_environment(lease.job_id) for lease in leases}
        await finish(self._report_strangers(name, [job_id for job_id in found if job_id not in known]))

    async def _report_strangers(self, name: str, strangers: list[str]) -> None:
        async with self._runtime.db.write() as connection:
            before = (await fetch_sightings(connection)).get(name)
            await save_strangers(connection, name, strangers)
        if strangers and before and before.stranger_count != len(strangers):
            log.warning("sweep.unknown_folders", machine=name, count=len(strangers), jobs=strangers[:5])
