"""Moves every job to its end: gives it a slot, runs its steps, and frees the slot when its processes are gone.

Each pass looks at the current rows and machines, not at events (level-triggered), so that a restart just continues.
Agents outlive the service. The supervisor does not know who requested a job or who reads its report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

import structlog

from runner.checks.verification import name_environment
from runner.model.job import Job, JobState
from runner.model.jobd_answers import JobdError
from runner.model.machines import Lease, Machine
from runner.rows import job_rows
from runner.rows.check_rows import fetch_checks
from runner.rows.claims import ClaimLost, Claims, fetch_claimed, require_claim
from runner.rows.holds import fetch_holds
from runner.scheduler.placement import Placement
from runner.scheduler.sweep import INTERVAL_S, Sweep
from runner.steps.holding import end_vain_holds, keep_for_person
from runner.steps.loops import Listener, Wakeup
from runner.steps.runtime import UNCONFIGURED, Runtime, set_trouble
from runner.steps.steps import give_up, take_step
from runner.steps.watching import rest
from runner.transport.host_errors import HostError
from runner.transport.jobd_client import JobdClient

log = structlog.get_logger()

MAX_EXCEPTIONS = 3
"""After this many unexpected exceptions in a row, a job is given up. Earlier ones are retried, because a bug in this
program must not cost a job its report."""

INTERNAL = "an internal error, which the service has logged"
LEASED = (JobState.PREPARING, JobState.RUNNING, JobState.COLLECTING, JobState.VERIFYING)


def name_claim(job_id: str) -> str:
    """The name of the claim on a job."""
    return f"job:{job_id}"


class Supervisor:
    """One loop for the queue, freed slots and machines out of service; one task for each job that holds a slot."""

    def __init__(
        self,
        runtime: Runtime,
        machines: Mapping[str, Machine],
        wakeup: Wakeup,
        claims: Claims,
        poll_s: float,
        sweep_s: float = INTERVAL_S,
    ) -> None:
        self._runtime = runtime
        self._wakeup = wakeup
        self._poll_s = poll_s
        self._claims = claims
        self._working: dict[str, asyncio.Task[bool]] = {}
        self.placement = Placement(runtime, machines, poll_s)
        self._sweep = Sweep(runtime, machines, self.placement.answers, sweep_s)

    async def step(self) -> None:
        """Look once at all jobs and leases. Long work continues in tasks."""
        async with self._runtime.db.read() as connection:
            jobs = await job_rows.fetch_active_jobs(connection)
            leases = await job_rows.fetch_leases(connection)
            claimed = await fetch_claimed(connection)
            holds = await fetch_holds(connection)
        for job in jobs:
            if job.is_ending:  # The job's own task may have to wait for its machine before it sees this.
                self._runtime.gateway.cut_off(job.id)
        now = self._runtime.now()
        busy = claimed | {name_claim(hold.job_id) for hold in holds if hold.rests(now)}
        await end_vain_holds(self._runtime, holds, {job.id for job in jobs} | {lease.job_id for lease in leases})
        queued = [job for job in jobs if job.state is JobState.QUEUED and job.id not in self._working]
        await self._place(queued, await self.placement.fetch_due())
        for lease in leases:
            if name_claim(lease.job_id) not in busy:
                self._begin(lease.job_id, self._with_claim(lease.job_id, partial(self._look_after, lease)))

    async def stop(self) -> None:
        """Stop following jobs. Agents continue; the next start, or another replica, follows them again."""
        tasks = [*self._working.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _place(self, queued: Sequence[Job], to_probe: Sequence[str]) -> None:
        """Place queued jobs, probe machines that are out of service, and sweep leftovers.

        One replica at a time does this.
        """
        sweeps = self._sweep.take_turn()
        if not queued and not to_probe and not sweeps:
            return
        async with self._claims.keep("queue") as mine:
            if not mine:
                return
            allotted = await self.placement.allot(queued)
            for job in queued:
                self._begin(job.id, self._place_one(job.id, allotted.get(job.id)))
            for machine in to_probe:
                self._begin(f"machine:{machine}", self.placement.probe(machine))
            if sweeps:
                self._begin("sweep", self._sweep.run())

    async def _place_one(self, job_id: str, lease: Lease | None) -> bool:
        try:
            job = await self._read(job_id)
            return job is not None and job.state is JobState.QUEUED and await self.placement.place(job, lease)
        finally:
            self.placement.release(job_id)

    def _begin(self, subject: str, work: Coroutine[None, None, bool]) -> None:
        """Start work on a job or a machine, unless work on it is already running."""
        if subject in self._working:
            work.close()
            return
        self._working[subject] = asyncio.create_task(work)
        self._working[subject].add_done_callback(partial(self._finish, subject))

    def _finish(self, subject: str, task: asyncio.Task[bool]) -> None:
        del self._working[subject]
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, ClaimLost):
            log.warning("work.passed_on", subject=subject, reason=str(error))
        elif error:
            log.error("supervisor.task_failed", subject=subject, exc_info=error)
        elif task.result():
            self._wakeup.notify()

    async def _with_claim(self, job_id: str, work: Callable[[], Awaitable[bool]]) -> bool:
        async with self._claims.hold(name_claim(job_id)) as mine:
            return mine and await work()

    async def _read(self, job_id: str) -> Job | None:
        async with self._runtime.db.read() as connection:
            return await job_rows.fetch_job(connection, job_id)

    async def _look_after(self, lease: Lease) -> bool:
        """Run the job that holds a slot to its end; then free the slot, unless a person holds its environment."""
        job = await self._read(lease.job_id)
        if job and job.active:
            await self._drive(job)
        if await keep_for_person(self._runtime, self._wakeup, lease, retry_s=10 * self._poll_s):
            return False
        return await self._free(lease, [job.adopts] if job and job.adopts else [])

    async def _drive(self, job: Job) -> None:
        """Run step after step until the job has ended."""
        with structlog.contextvars.bound_contextvars(**job.log_context()):
            try:
                await self._take_steps(job)
            finally:
                for environment in (job.id, name_environment(job.id)):
                    await self._runtime.gateway.close(environment)
                self._runtime.gateway.forget(job.id)

    async def _take_steps(self, job: Job) -> None:
        exceptions = 0
        gone_since: datetime | None = None
        with self._wakeup.listen() as listener:
            while job.state in LEASED:
                before = job
                try:
                    job = await self._advance(job)
                    exceptions, gone_since = 0, None
                except HostError as error:
                    gone_since = gone_since or self._runtime.now()
                    job = await self._wait_for_machine(job, error, gone_since)
                except ClaimLost:
                    raise
                except Exception:
                    exceptions += 1
                    log.exception("job.step_failed", faults=exceptions)
                    if exceptions >= MAX_EXCEPTIONS:
                        job = await give_up(self._runtime, job, JobState.FAILED, INTERNAL)
                job = await self._wait_for_change(before, job, listener)

    async def _advance(self, job: Job) -> Job:
        runtime = self._runtime
        if (
            job.repository not in runtime.profiles
            or job.agent not in runtime.agents
            or job.machine not in runtime.clients
        ):
            return await give_up(runtime, job, JobState.FAILED, UNCONFIGURED)
        return await take_step(runtime, job)

    async def _wait_for_change(self, before: Job, after: Job, listener: Listener) -> Job:
        """Wait until there may be something to do. Then read the job again, because somebody may have cancelled it."""
        if (before.state, before.trouble) != (after.state, after.trouble):
            self._wakeup.notify()
        if before.state == after.state:
            await rest(self._runtime, after, listener, self._poll_s)
        require_claim(0)
        return await self._read(after.id) or after

    async def _wait_for_machine(self, job: Job, error: HostError, gone_since: datetime) -> Job:
        """Wait for a machine that does not answer, within the limits. The job keeps its slot."""
        patience = timedelta(seconds=self._runtime.profiles[job.repository].limits.unreachable_after_s)
        await self.placement.note_gone(job.machine or "", error)
        if error.permanent or self._runtime.now() - gone_since > patience:
            reason = f"machine {job.machine} can no longer be reached: {error}"
            return await give_up(self._runtime, job, JobState.LOST, reason)
        log.warning("job.machine_unreachable", reason=str(error))
        if await set_trouble(self._runtime, job, f"machine {job.machine} cannot be reached: {error}"):
            self._wakeup.notify()
        return job

    async def _free(self, lease: Lease, adopted: Sequence[str]) -> bool:
        """Free the slot once the machine confirms that the job has no processes and its folder is gone.

        Also clean the environment that the job took over (`adopted`), because the job may have ended before the machine
        passed that environment on. The environments of checks are cleaned, too.
        """
        async with self._runtime.db.read() as connection:
            checked = [job_id for job_id in (*adopted, lease.job_id) if await fetch_checks(connection, job_id)]
        verified = [name_environment(job_id) for job_id in checked]
        with self._wakeup.listen() as listener:
            # Read each time, because the operator may change how the machine is reached.
            while client := self._runtime.clients.get(lease.machine):
                # Clean all of them, even if one fails: a full disk may block only some.
                ended = [await self._clean(client, lease, job_id) for job_id in (*adopted, *verified, lease.job_id)]
                if all(ended):
                    break
                await listener.wait(self._poll_s * 10)
        async with self._runtime.db.write() as connection:
            await job_rows.delete_lease(connection, lease.job_id)
        log.info("lease.freed", machine=lease.machine, slot=lease.slot, job=lease.job_id)
        return True

    async def _clean(self, client: JobdClient, lease: Lease, job_id: str) -> bool:
        """Clean an environment on the machine. Returns whether nothing is left of it."""
        try:
            await client.clean(job_id)
        except (HostError, JobdError) as error:
            log.warning("lease.kept", machine=lease.machine, job=lease.job_id, reason=str(error))
            return False
        return True
