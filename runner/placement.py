"""Gives queued jobs their slots, on machines that answer, and asks those that do not whether they are back.

One replica at a time does it (`runner.supervisor`). What it finds out about machines is in the database, for everybody
to see. It refuses to know what a job does on its machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from runner import store
from runner.bench import UNCONFIGURED, Bench, end, set_trouble
from runner.hosts import HostError, OutputTooLarge
from runner.job import Job, JobState
from runner.jobd_client import JobdError
from runner.loops import finish
from runner.machine_states import fetch_machine_states, forget_outage, save_outage
from runner.machines import USABLE, Lease, Machine, MachineState, choose_machine, eligible, find_out

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Pool:
    """The machines that carry a job's labels, and how they stand."""

    fitting: Sequence[Machine]
    states: Mapping[str, MachineState]

    def of(self, machine: Machine) -> MachineState:
        return self.states.get(machine.name, USABLE)

    def describe(self) -> str | None:
        """Why none of them can be used, as a sentence; None when one can."""
        if any(self.of(machine).takes_jobs for machine in self.fitting):
            return None
        named = "; ".join(f"{machine.name}: {self.of(machine).trouble}" for machine in self.fitting)
        return f"no machine can be used ({named})"


class Placement:
    """The queue's side of the machines."""

    def __init__(self, bench: Bench, machines: Mapping[str, Machine], poll_s: float) -> None:
        self._bench = bench
        self._machines = machines
        self._least_rest = timedelta(seconds=poll_s)

    async def place(self, job: Job) -> bool:
        """Give a queued job a slot on a machine that answers, or say why it has none. Whether there is news of it."""
        if job.cancel_requested_at:
            await end(self._bench, job, JobState.CANCELLED, f"cancelled by @{job.cancelled_by}")
            return True
        if failure := self._impossible(job, await self._look(job)):
            await end(self._bench, job, JobState.FAILED, failure)
            return True
        lease = await self._choose(job)
        if lease and await self._answers(lease.machine):
            return await finish(self._lease(job, lease))
        return await set_trouble(self._bench, job, (await self._look(job)).describe())

    async def fetch_due(self) -> list[str]:
        """The machines that are out and have rested: it is time to `probe` them."""
        async with self._bench.db.read() as connection:
            states = await fetch_machine_states(connection)
        now = self._bench.now()
        outages = {name: state.outage for name, state in states.items() if name in self._machines}
        return [name for name, outage in outages.items() if outage and outage.is_due(now)]

    async def probe(self, machine: str) -> bool:
        """Ask a machine that is out whether it is back. Whether it is."""
        if not await self._answers(machine):
            return False
        return await finish(self._note_back(machine))

    async def note_gone(self, machine: str, error: HostError) -> None:
        """A job on a machine cannot be followed: until a probe says otherwise, others need not try it."""
        if not isinstance(error, OutputTooLarge):  # That one command failed; the machine is there.
            await finish(self._note_outage(machine, error, only_news=True))

    async def _look(self, job: Job) -> _Pool:
        profile = self._bench.profiles.get(job.repository)
        async with self._bench.db.read() as connection:
            states = await fetch_machine_states(connection)
        return _Pool(eligible(self._machines.values(), profile.requires) if profile else (), states)

    def _impossible(self, job: Job, pool: _Pool) -> str | None:
        """Why no waiting will help this job, as a sentence; None when it may still run."""
        profile = self._bench.profiles.get(job.repository)
        if profile is None or job.agent not in self._bench.agents:
            return UNCONFIGURED
        if not pool.fitting:
            return f"no machine has the labels that this repository requires: {', '.join(profile.requires)}"
        waited = self._bench.now() - job.created_at > timedelta(seconds=profile.limits.unreachable_after_s)
        for state in map(pool.of, pool.fitting):
            outage = state.outage
            # Only what was seen since the job was made counts: an operator may have mended it before. And one that is
            # drained is in an operator's hands.
            if state.drained_at or not outage or outage.seen_at < job.created_at or not (outage.permanent or waited):
                return None
        return pool.describe()

    async def _choose(self, job: Job) -> Lease | None:
        async with self._bench.db.read() as connection:
            leases = await store.fetch_leases(connection)
            states = await fetch_machine_states(connection)
            lost = await store.fetch_job(connection, job.replaces) if job.replaces else None
        unusable = [name for name, state in states.items() if not state.takes_jobs]
        requires = self._bench.profiles[job.repository].requires
        return choose_machine(self._machines.values(), leases, requires, unusable, lost.machine if lost else None)

    async def _answers(self, machine: str) -> bool:
        """Ask a machine whether it is there, so that no job gets a slot on one that is not."""
        try:
            await self._bench.clients[machine].check()
        except (HostError, JobdError) as error:
            await finish(self._note_outage(machine, error))
            return False
        return True

    async def _note_back(self, machine: str) -> bool:
        async with self._bench.db.write() as connection:
            is_news = await forget_outage(connection, machine)
        if is_news:
            log.info("machine.back", machine=machine)
        return is_news

    async def _note_outage(self, machine: str, error: HostError | JobdError, *, only_news: bool = False) -> None:
        permanent = isinstance(error, JobdError) or error.permanent
        async with self._bench.db.write() as connection:
            before = (await fetch_machine_states(connection)).get(machine, USABLE).outage
            if before and only_news:
                return
            now, least = self._bench.now(), self._least_rest
            outage = find_out(before, str(error), permanent=permanent, now=now, least=least)
            await save_outage(connection, machine, outage)
        if not before:
            log.error("machine.out", machine=machine, reason=str(error), permanent=permanent)

    async def _lease(self, job: Job, lease: Lease) -> bool:
        """Take the slot and move the job in one transaction. False when another job, or a drain, was quicker."""
        now = self._bench.now()
        async with self._bench.db.write() as connection:
            leases = await store.fetch_leases(connection)
            states = await fetch_machine_states(connection)
            is_taken = any((taken.machine, taken.slot) == (lease.machine, lease.slot) for taken in leases)
            if is_taken or not states.get(lease.machine, USABLE).takes_jobs:
                return False
            await store.insert_lease(connection, replace(lease, job_id=job.id), now)
            moved = await store.move_job(connection, job, JobState.PREPARING, now, machine=lease.machine)
        log.info("job.leased", **moved.log_context(), slot=lease.slot)
        return True
