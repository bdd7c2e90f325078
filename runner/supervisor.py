"""Moves every job to its end: gives it a slot, drives its steps, frees the slot when nothing of it is alive.

Level-triggered: a pass looks at the rows and the machines as they are, so that a restart just goes on. Agents outlive
it. It refuses to know who asked for a job and who reads its report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from runner import store
from runner.bench import Bench, end
from runner.hosts import HostError
from runner.job import Job, JobState
from runner.jobd_client import JobdError
from runner.loops import Bell, Listener
from runner.machines import Lease, Machine, choose_machine, eligible
from runner.steps import take_step

log = structlog.get_logger()

MAX_FAULTS = 3
"""Unexpected exceptions in a row that a job survives: faults of this program, which must not cost it its report."""

INTERNAL = "an internal error, which the service has logged"
UNCONFIGURED = "the service's configuration no longer has this job's repository, agent or machine"

LEASED = (JobState.PREPARING, JobState.RUNNING, JobState.COLLECTING)


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a machine gets no new jobs just now, and until when."""

    reason: str
    permanent: bool
    since: datetime
    seen_at: datetime
    """When it was last found so."""
    retry_at: datetime


class Supervisor:
    """One loop for the queue and the freed slots, and one task for each job that holds a slot."""

    def __init__(self, bench: Bench, machines: Mapping[str, Machine], bell: Bell, poll_s: float) -> None:
        self._bench = bench
        self._machines = machines
        self._bell = bell
        self._poll_s = poll_s
        self._driving: dict[str, asyncio.Task[bool]] = {}
        self._freeing: dict[str, asyncio.Task[bool]] = {}
        self.outages: dict[str, Outage] = {}

    async def step(self) -> None:
        """Look once at every job and every lease; what takes long goes on in tasks of its own."""
        async with self._bench.db.read() as connection:
            jobs = await store.fetch_active_jobs(connection)
            leases = await store.fetch_leases(connection)
        for job in jobs:
            if job.id not in self._driving:
                self._begin(self._driving, job.id, self._work_on(job.id))
        active = {job.id for job in jobs}
        for lease in leases:
            if lease.job_id not in active and lease.job_id not in self._freeing:
                self._begin(self._freeing, lease.job_id, self._free(lease))

    async def stop(self) -> None:
        """Stop looking. Agents go on; the next start follows them again."""
        tasks = [*self._driving.values(), *self._freeing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, tasks: dict[str, asyncio.Task[bool]], job_id: str, work: Coroutine[None, None, bool]) -> None:
        tasks[job_id] = asyncio.create_task(work)
        tasks[job_id].add_done_callback(partial(self._finish, tasks, job_id))

    def _finish(self, tasks: dict[str, asyncio.Task[bool]], job_id: str, task: asyncio.Task[bool]) -> None:
        del tasks[job_id]
        if task.cancelled():
            return
        if error := task.exception():
            log.error("supervisor.task_failed", job=job_id, exc_info=error)
        elif task.result():
            self._bell.ring()

    async def _work_on(self, job_id: str) -> bool:
        """Move one job on. Read anew: since the look at all of them it may have ended, in a task of its own."""
        async with self._bench.db.read() as connection:
            job = await store.fetch_job(connection, job_id)
        if job is None or not job.active:
            return False
        return await (self._place(job) if job.state is JobState.QUEUED else self._drive(job))

    # The queue

    async def _place(self, job: Job) -> bool:
        """Give a queued job a slot on a machine that answers, or say why it has none. Whether the job has moved."""
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
        await self._say_why_waiting(job)
        return False

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

    async def _say_why_waiting(self, job: Job) -> None:
        fitting = eligible(self._machines.values(), self._bench.profiles[job.repository].requires)
        out = [machine for machine in fitting if machine.name in self.outages]
        trouble = self._name_outages(out) if len(out) == len(fitting) else None
        await self._set_trouble(job, trouble)

    async def _set_trouble(self, job: Job, trouble: str | None) -> None:
        if job.trouble != trouble:
            async with self._bench.db.write() as connection:
                await store.change_job(connection, job, trouble=trouble)
            self._bell.ring()

    # A job that holds a slot

    async def _drive(self, job: Job) -> bool:
        """Take step after step until the job has ended."""
        faults = 0
        gone_since: datetime | None = None
        with self._bell.listen() as listener, structlog.contextvars.bound_contextvars(**job.log_context()):
            while job.state in LEASED:
                before = job
                try:
                    job = await self._advance(job)
                    faults, gone_since = 0, None
                except HostError as error:
                    gone_since = gone_since or self._bench.now()
                    job = await self._bear(job, error, gone_since)
                except Exception:
                    faults += 1
                    log.exception("job.step_failed", faults=faults)
                    if faults >= MAX_FAULTS:
                        job = await end(self._bench, job, JobState.FAILED, INTERNAL)
                job = await self._pause(before, job, listener)
        return True

    async def _advance(self, job: Job) -> Job:
        bench = self._bench
        if job.repository not in bench.profiles or job.agent not in bench.agents or job.machine not in bench.clients:
            return await end(bench, job, JobState.FAILED, UNCONFIGURED)
        moved = await take_step(bench, job)
        if moved.active:
            await self._set_trouble(moved, None)
        return moved

    async def _pause(self, before: Job, after: Job, listener: Listener) -> Job:
        """Wait until there may be something to do, and read the job anew: somebody may have asked it to end."""
        if before.state != after.state:
            self._bell.ring()
        else:
            await listener.wait(self._poll_s)
        async with self._bench.db.read() as connection:
            return await store.fetch_job(connection, after.id) or after

    async def _bear(self, job: Job, error: HostError, gone_since: datetime) -> Job:
        """Put up with a machine that cannot be asked, for as long as the limits say; its slot stays taken."""
        patience = timedelta(seconds=self._bench.profiles[job.repository].limits.unreachable_after_s)
        if error.permanent or self._bench.now() - gone_since > patience:
            to = JobState.FAILED if job.state is JobState.PREPARING else JobState.LOST
            return await end(self._bench, job, to, f"machine {job.machine} can no longer be asked: {error}")
        log.warning("job.machine_unreachable", reason=str(error))
        await self._set_trouble(job, f"machine {job.machine} cannot be reached just now: {error}")
        return job

    # A slot whose job has ended

    async def _free(self, lease: Lease) -> bool:
        """Give the slot back once the machine says that nothing of the job is alive, and its folder is gone."""
        client = self._bench.clients.get(lease.machine)
        with self._bell.listen() as listener:
            while client:
                try:
                    await client.clean(lease.job_id)
                    break
                except (HostError, JobdError) as error:
                    log.warning("lease.kept", machine=lease.machine, job=lease.job_id, reason=str(error))
                    await listener.wait(self._poll_s * 10)
        async with self._bench.db.write() as connection:
            await store.delete_lease(connection, lease.job_id)
        log.info("lease.freed", machine=lease.machine, slot=lease.slot, job=lease.job_id)
        return True
