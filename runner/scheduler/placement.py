"""Gives queued jobs their slots on machines that answer, and checks whether unreachable machines are back.

One replica at a time does this (`supervisor`). It stores what it learns about machines in the database, for all
replicas. This module does not know what a job does on its machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from runner.model.environment import Profile
from runner.model.fair_share import LONG, allot
from runner.model.inventory import Inventory, Sighting, find_shortage, is_news, overlaps, remember, share_gpus
from runner.model.job import Job, JobState
from runner.model.jobd_answers import JobdError
from runner.model.machines import (
    USABLE,
    Gpu,
    Holder,
    Lease,
    Machine,
    MachineState,
    WarmBase,
    choose_machine,
    eligible,
    find_out,
    needs,
)
from runner.rows import job_rows
from runner.rows.machine_states import (
    fetch_machine_states,
    fetch_sightings,
    fetch_warm_bases,
    forget_outage,
    save_inventory,
    save_outage,
)
from runner.rows.pauses import Pause, fetch_pauses, find_pause_of
from runner.steps.loops import finish
from runner.steps.preparations import name_recipe
from runner.steps.runtime import UNCONFIGURED, Runtime, end, set_trouble
from runner.transport.host_errors import HostError, OutputTooLarge

log = structlog.get_logger()

GPUS_IN_USE = "the slots or GPUs of {machine} have changed, and a running job still has GPUs of the free slot"


@dataclass(frozen=True, slots=True)
class _Pool:
    """The machines with a job's labels, and their states."""

    fitting: Sequence[Machine]
    states: Mapping[str, MachineState]

    def state_of(self, machine: Machine) -> MachineState:
        return self.states.get(machine.name, USABLE)

    def describe(self) -> str | None:
        """Why none of the machines can be used, as a sentence. None if one can be used."""
        if any(self.state_of(machine).takes_jobs for machine in self.fitting):
            return None
        named = "; ".join(f"{machine.name}: {self.state_of(machine).trouble}" for machine in self.fitting)
        return f"no machine can be used ({named})"


@dataclass(frozen=True, slots=True)
class _Chooser:
    """The facts on which the choice of a machine depends, at one moment."""

    runtime: Runtime
    machines: Mapping[str, Machine]
    states: Mapping[str, MachineState]
    warm: Collection[WarmBase]
    lost: Mapping[str, str | None]
    """The machines of lost jobs, by the ids of the jobs that replace them."""
    beginning: Collection[str]
    """Jobs that have a slot but are not prepared yet, so that it is unknown whether preparation succeeds there."""

    def choose(self, job: Job, leases: Sequence[Lease]) -> Lease | None:
        """A free slot for a job, or None."""
        profile = self.runtime.profiles.get(job.repository)
        if profile is None:
            return None
        trials = {lease.machine for lease in leases if lease.job_id in self.beginning}
        avoid = [
            name
            for name, state in self.states.items()
            if not state.takes_jobs or (state.is_on_trial and name in trials)
        ]
        recipe = name_recipe(profile.recipe(job.clone_url, job.base_branch))
        warm = [base for base in self.warm if base.recipe == recipe]
        machines = _list_fitting(job, profile, self.machines)
        return choose_machine(machines, leases, avoid, self.lost.get(job.id), warm)

    def alike(self, job: Job) -> tuple[object, ...]:
        """The key of a job. If there is no slot for a job, there is none for other jobs with the same key."""
        profile = self.runtime.profiles.get(job.repository)
        return (profile and profile.requires, job.requires, job.private, job.pinned_to, self.lost.get(job.id))


class Placement:
    """Places queued jobs on machines."""

    def __init__(self, runtime: Runtime, machines: Mapping[str, Machine], poll_s: float) -> None:
        self._runtime = runtime
        self._machines = machines
        self._least_rest = timedelta(seconds=poll_s)
        self._promised: dict[str, Holder] = {}
        """The slots of jobs that are being placed, by job id. They must not be given to others."""

    async def allot(self, jobs: Sequence[Job]) -> dict[str, Lease]:
        """Choose fairly which of these queued jobs get a slot, and which slot.

        Each slot is reserved for its job until `release`, so that many jobs can be placed at the same time.
        """
        if not jobs:
            return {}
        async with self._runtime.db.read() as connection:
            held = {holder.lease.job_id: holder for holder in await job_rows.fetch_holders(connection)}
            states = await fetch_machine_states(connection)
            warm = await fetch_warm_bases(connection)
            turns = await job_rows.fetch_turns(connection, self._runtime.now() - LONG)
            lost = {job.id: await job_rows.fetch_job(connection, job.replaces) for job in jobs if job.replaces}
            pauses = await fetch_pauses(connection)
        jobs = [job for job in jobs if not find_pause_of(pauses, job)]
        holders = {**self._promised, **held}
        beginning = {job_id for job_id, holder in holders.items() if holder.begins} | {job.id for job in jobs}
        machines = {job_id: job.machine for job_id, job in lost.items() if job}
        chooser = _Chooser(self._runtime, self._machines, states, warm, machines, beginning)
        allotted = allot(jobs, holders.values(), turns, self._runtime.now(), chooser.choose, chooser.alike)
        for job in jobs:
            if lease := allotted.get(job.id):
                self._promised[job.id] = Holder(lease, job.repository, job.requested_by, begins=True)
        return allotted

    def release(self, job_id: str) -> None:
        """Drop the reservation: the job has its slot, or will not get it."""
        self._promised.pop(job_id, None)

    async def place(self, job: Job, lease: Lease | None) -> bool:
        """Give a queued job its allotted slot if the machine answers, or record why it waits.

        Returns whether something changed.
        """
        if job.cancel_requested_at:
            await end(self._runtime, job, JobState.CANCELLED, f"cancelled by {job.canceller}")
            return True
        if pause := await self._find_pause(job):
            return await set_trouble(self._runtime, job, pause.describe())
        if failure := self._find_failure(job, await self._find_pool(job)):
            await end(self._runtime, job, JobState.FAILED, failure)
            return True
        if lease and await self.answers(lease.machine):
            return await finish(self._lease(job, lease))
        return await set_trouble(self._runtime, job, (await self._find_pool(job)).describe())

    async def fetch_due(self) -> list[str]:
        """The machines that are out of service and whose next `probe` is due."""
        async with self._runtime.db.read() as connection:
            states = await fetch_machine_states(connection)
        now = self._runtime.now()
        outages = {name: state.outage for name, state in states.items() if name in self._machines}
        return [name for name, outage in outages.items() if outage and outage.is_due(now)]

    async def probe(self, machine: str) -> bool:
        """Check whether a machine that is out of service is back. Returns whether it is."""
        if not await self.answers(machine):
            return False
        return await finish(self._note_back(machine))

    async def note_gone(self, machine: str, error: HostError) -> None:
        """Record that a machine did not answer about a job. Other jobs avoid it until a probe succeeds."""
        if not isinstance(error, OutputTooLarge):  # Only that command failed; the machine answers.
            await finish(self._note_outage(machine, str(error), permanent=error.permanent, only_news=True))

    async def _find_pause(self, job: Job) -> Pause | None:
        async with self._runtime.db.read() as connection:
            return find_pause_of(await fetch_pauses(connection), job)

    async def _find_pool(self, job: Job) -> _Pool:
        profile = self._runtime.profiles.get(job.repository)
        async with self._runtime.db.read() as connection:
            states = await fetch_machine_states(connection)
        return _Pool(_list_fitting(job, profile, self._machines) if profile else (), states)

    def _find_failure(self, job: Job, pool: _Pool) -> str | None:
        """Why waiting cannot help this job, as a sentence. None if the job may still run."""
        profile = self._runtime.profiles.get(job.repository)
        if profile is None or job.agent not in self._runtime.agents:
            return UNCONFIGURED
        if not pool.fitting:
            wanted = ", ".join(needs((*profile.requires, *job.requires), private=job.private))
            which = f"there is no machine {job.pinned_to} that" if job.pinned_to else "no machine"
            return f"{which} has what this job requires: {wanted}"
        waited = self._runtime.now() - job.created_at > timedelta(seconds=profile.limits.unreachable_after_s)
        for state in map(pool.state_of, pool.fitting):
            outage = state.outage
            # Ignore outages from before the job, because an operator may have fixed them. A drained machine may come
            # back, because its operator is at work on it.
            if state.drained_at or not outage or outage.seen_at < job.created_at or not (outage.permanent or waited):
                return None
        return pool.describe()

    async def answers(self, machine: str) -> bool:
        """Ask a machine whether it can take jobs, so that no job gets a slot where it cannot run."""
        try:
            inventory = await self._runtime.clients[machine].check()
        except HostError as error:
            await finish(self._note_outage(machine, str(error), permanent=error.permanent))
            return False
        except JobdError as error:
            await finish(self._note_outage(machine, str(error), permanent=True))
            return False
        shortage = await finish(self._note_inventory(machine, inventory))
        if shortage:
            await finish(self._note_outage(machine, shortage, permanent=False))
        return shortage is None

    async def _note_inventory(self, machine: str, inventory: Inventory) -> str | None:
        """Save a machine's inventory. Returns what it lacks to take jobs, as a clause, or None."""
        async with self._runtime.db.read() as connection:
            before = (await fetch_sightings(connection)).get(machine)
        now, inventory = self._runtime.now(), remember(before.inventory if before else None, inventory)
        if is_news(before, inventory, now):
            async with self._runtime.db.write() as connection:
                await save_inventory(connection, machine, inventory, now)
        configured = self._machines.get(machine)
        return find_shortage(configured, inventory) if configured else None

    async def _note_back(self, machine: str) -> bool:
        async with self._runtime.db.write() as connection:
            is_news = await forget_outage(connection, machine)
        if is_news:
            log.info("machine.back", machine=machine)
        return is_news

    async def _note_outage(self, machine: str, reason: str, *, permanent: bool, only_news: bool = False) -> None:
        async with self._runtime.db.write() as connection:
            before = (await fetch_machine_states(connection)).get(machine, USABLE).outage
            if before and only_news:
                return
            now, least = self._runtime.now(), self._least_rest
            outage = find_out(before, reason, permanent=permanent, now=now, least=least)
            await save_outage(connection, machine, outage)
        if not before:
            log.error("machine.out", machine=machine, reason=reason, permanent=permanent)

    async def _lease(self, job: Job, lease: Lease) -> bool:
        """Take the slot and move the job in one transaction.

        Returns False if another job, a drain or a pause came first, or if a running job has GPUs that now belong to the
        slot.
        """
        now = self._runtime.now()
        async with self._runtime.db.write() as connection:
            leases = await job_rows.fetch_leases(connection)
            states = await fetch_machine_states(connection)
            is_taken = any((taken.machine, taken.slot) == (lease.machine, lease.slot) for taken in leases)
            if is_taken or not states.get(lease.machine, USABLE).takes_jobs:
                return False
            if find_pause_of(await fetch_pauses(connection), job):
                return False
            others = [taken for taken in leases if taken.machine == lease.machine]
            gpus = self._share((await fetch_sightings(connection)).get(lease.machine), lease, others)
            if gpus is None:
                await job_rows.change_job(connection, job, trouble=GPUS_IN_USE.format(machine=lease.machine))
                return False
            await job_rows.insert_lease(connection, replace(lease, job_id=job.id, gpus=gpus), now)
            await job_rows.note_turn(connection, job, now)
            moved = await job_rows.move_job(connection, job, JobState.PREPARING, now, machine=lease.machine)
        log.info("job.leased", **moved.log_context(), slot=lease.slot)
        return True

    def _share(self, sighting: Sighting | None, lease: Lease, others: Sequence[Lease]) -> tuple[Gpu, ...] | None:
        """The GPUs of a slot. None while a running job has some of them."""
        machine = self._machines.get(lease.machine)
        if machine is None or sighting is None:
            return ()
        gpus = sighting.inventory.gpus
        share = share_gpus(gpus, lease.slot, machine.slots, machine.gpus_per_slot)
        return None if overlaps(share, machine, gpus, others) else share


def _list_fitting(job: Job, profile: Profile, machines: Mapping[str, Machine]) -> list[Machine]:
    """The machines that a job may run on."""
    allowed = [machine for machine in machines.values() if job.pinned_to in (None, machine.name)]
    return eligible(allowed, (*profile.requires, *job.requires), private=job.private)
