"""Gives queued jobs their slots, on machines that answer, and remembers which do not.

One replica at a time does it (`runner.supervisor`). It refuses to know what a job does on its machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from runner import store
from runner.bench import UNCONFIGURED, Bench, end, set_trouble
from runner.hosts import HostError
from runner.job import Job, JobState
from runner.jobd_client import JobdError
from runner.machines import Lease, Machine, choose_machine, eligible

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a machine gets no new jobs just now, and until when."""

    reason: str
    permanent: bool
    since: datetime
    seen_at: datetime
    """When it was last found so."""
    retry_at: datetime


class Placement:
    """The queue's side of the machines."""

    def __init__(self, bench: Bench, machines: Mapping[str, Machine], poll_s: float) -> None:
        self._bench = bench
        self._machines = machines
        self._poll_s = poll_s
        self.outages: dict[str, Outage] = {}

    async def place(self, job: Job) -> bool:
        """Give a queued job a slot on a machine that answers, or say why it has none. Whether there is news of it."""
        failure = self._impossible(job)
        if job.cancel_requested_at:
            await end(self._bench, job, JobState.CANCELLED, f"cancelled by @{job.cancelled_by}")
            return True
        if failure:
            await end(self._bench, job, JobState.FAILED, failure)
            return True
        lease = await self._choose(job)
        if lease and await self._answers(lease.machine):
            return await self._lease(job, lease)
        return await self._say_why_waiting(job)

    def _impossible(self, job: Job) -> str | None:
        """Why no waiting will help this job, as a sentence; None when it may still run."""
        profile = self._bench.profiles.get(job.repository)
        if profile is None or job.agent not in self._bench.agents:
            return UNCONFIGURED
        fitting = eligible(self._machines.values(), profile.requires)
        if not fitting:
            return f"no machine has the labels that this repository requires: {', '.join(profile.requires)}"
        out = [self.outages[machine.name] for machine in fitting if machine.name in self.outages]
        waited = self._bench.now() - job.created_at > timedelta(seconds=profile.limits.unreachable_after_s)
        # Only what was seen since the job was made counts: an operator may have mended it before.
        hopeless = [outage for outage in out if outage.seen_at >= job.created_at and (outage.permanent or waited)]
        return self._name_outages(fitting) if len(hopeless) == len(fitting) else None

    def _name_outages(self, machines: list[Machine]) -> str:
        named = [f"{machine.name}: {self.outages[machine.name].reason}" for machine in machines]
        return f"no machine can be used ({'; '.join(named)})"

    async def _choose(self, job: Job) -> Lease | None:
        now = self._bench.now()
        resting = [name for name, outage in self.outages.items() if outage.retry_at > now]
        async with self._bench.db.read() as connection:
            leases = await store.fetch_leases(connection)
        requires = self._bench.profiles[job.repository].requires
        return choose_machine(self._machines.values(), leases, requires, avoid=resting)

    async def _answers(self, machine: str) -> bool:
        """Ask a machine whether it is there, so that no job gets a slot on one that is not."""
        try:
            await self._bench.clients[machine].version()
        except (HostError, JobdError) as error:
            self._note_outage(machine, error)
            return False
        if self.outages.pop(machine, None):
            log.info("machine.back", machine=machine)
        return True

    def _note_outage(self, machine: str, error: HostError | JobdError) -> None:
        now = self._bench.now()
        before = self.outages.get(machine)
        since = before.since if before else now
        # Rest for as long as it has been gone, within bounds: quick to see a hiccup end, gentle on a dead host.
        rest = min(max(now - since, timedelta(seconds=self._poll_s)), timedelta(seconds=60))
        permanent = isinstance(error, JobdError) or error.permanent
        self.outages[machine] = Outage(str(error), permanent, since, now, now + rest)
        if not before:
            log.error("machine.out", machine=machine, reason=str(error), permanent=permanent)

    async def _lease(self, job: Job, lease: Lease) -> bool:
        """Take the slot and move the job in one transaction. False when another job was quicker."""
        now = self._bench.now()
        async with self._bench.db.write() as connection:
            leases = await store.fetch_leases(connection)
            if any((taken.machine, taken.slot) == (lease.machine, lease.slot) for taken in leases):
                return False
            await store.insert_lease(connection, replace(lease, job_id=job.id), now)
            moved = await store.move_job(connection, job, JobState.PREPARING, now, machine=lease.machine)
        log.info("job.leased", **moved.log_context(), slot=lease.slot)
        return True

    async def _say_why_waiting(self, job: Job) -> bool:
        fitting = eligible(self._machines.values(), self._bench.profiles[job.repository].requires)
        out = [machine for machine in fitting if machine.name in self.outages]
        trouble = self._name_outages(out) if len(out) == len(fitting) else None
        return await set_trouble(self._bench, job, trouble)
