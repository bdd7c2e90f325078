"""A machine that answers, and never lets a job end: the job ends all the same, and people read why."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.checks.verification import name_environment
from runner.model.environment import Limits
from runner.model.history import HistoryError
from runner.model.job import Job, JobState
from runner.model.jobd_answers import StageState
from runner.model.machines import Lease, Machine
from runner.model.stop_policy import KILL_PATIENCE
from runner.rows import job_rows
from runner.rows.claims import Claims
from runner.scheduler.supervisor import Supervisor
from runner.steps.loops import Wakeup
from runner.steps.runtime import LOG_CHUNK, READ_ON, follow
from runner.steps.steps import take_step
from runner.transport.host_errors import OutputTooLarge
from runner.transport.jobd_client import JobdClient
from tests.runner.test_base_commit import NEWEST, Floor, open_floor, pass_at_once
from tests.support.clock import Clock
from tests.support.jobs import NOON, make_job
from tests.support.model_machine import ModelMachine, ModelWire, Stage
from tests.support.no_gateway import NoGateway

STUCK = "gpu-1 could not kill this job's processes yet; trying again"
NOT_ENDED = "machine gpu-1 could not kill this job's processes within 10 minutes"


class Dripping(ModelMachine):
    """Says that the agent has ended, and with each answer that its log has some more bytes."""

    def __init__(self, size: int, clock: Clock) -> None:
        super().__init__("gpu-1")
        self.size, self.clock, self.polls = size, clock, 0

    def ask(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if verb != "poll" or request["stage"] != "agent":
            return super().ask(verb, request)
        self.polls += 1
        self.clock.forward(1)
        piece = base64.b64encode(b"x" * min(self.size, request["log_limit"])).decode()
        told = {"error": None, "message": None, "phase": "", "boot_id": "1", "log_size": 10**9}
        return {"ok": True, "state": "done", "result": {"exit_status": 0}, "log": piece, **told}


class Noting(NoGateway):
    """A gateway that remembers whom it has cut off."""

    def __init__(self) -> None:
        self.cut = list[str]()

    def cut_off(self, job_id: str) -> None:
        self.cut.append(job_id)


@pytest.fixture
async def floor(tmp_path: Path) -> AsyncIterator[Floor]:
    async with open_floor(tmp_path) as floor:
        yield floor


def clock_of(floor: Floor) -> Clock:
    assert isinstance(floor.runtime.now, Clock)
    return floor.runtime.now


def use(floor: Floor, machine: ModelMachine) -> JobdClient:
    assert isinstance(floor.runtime.clients, dict)
    client = JobdClient(Machine("gpu-1", "/srv/gpu-1"), ModelWire(machine, pass_at_once))
    floor.machine = machine
    floor.runtime.clients["gpu-1"] = client
    return client


async def insert(floor: Floor, state: JobState, *stages: str, **about: Any) -> Job:
    """A job whose stages run on its machine, and go on for ever."""
    about = {"base_commit": NEWEST, "started_at": NOON, **about}
    job = make_job(state=state, machine="gpu-1", **about)
    async with floor.runtime.db.write() as connection:
        await job_rows.insert_job(connection, job)
    floor.machine.stages[job.id] = {name: Stage() for name in stages}
    return job


async def read(floor: Floor, job: Job) -> Job:
    async with floor.runtime.db.read() as connection:
        found = await job_rows.fetch_job(connection, job.id)
    assert found
    return found


async def step(floor: Floor, job: Job) -> Job:
    """Take a step as another replica would, which knows the rows alone."""
    await take_step(floor.runtime, await read(floor, job))
    return await read(floor, job)


async def cancel(floor: Floor, job: Job) -> None:
    clock_of(floor).forward(1)
    async with floor.runtime.db.write() as connection:
        assert await job_rows.request_cancel(connection, job.id, "ada", floor.runtime.now())
    clock_of(floor).forward(1)


async def test_a_cancel_ends_what_a_job_may_ask_while_its_machine_does_not_answer(floor: Floor) -> None:
    job, gateway, asked = await insert(floor, JobState.RUNNING, "agent"), Noting(), asyncio.Event()
    async with floor.runtime.db.write() as connection:
        await job_rows.insert_lease(connection, Lease("gpu-1", 0, job.id), NOON)

    async def never_answer() -> None:
        asked.set()
        await asyncio.Event().wait()

    machine = Machine("gpu-1", "/srv/gpu-1")
    client = JobdClient(machine, ModelWire(floor.machine, never_answer))
    runtime = replace(floor.runtime, gateway=gateway, clients={"gpu-1": client})
    supervisor = Supervisor(runtime, {"gpu-1": machine}, Wakeup(), Claims(runtime.db), poll_s=3600)
    try:
        await supervisor.step()
        await asyncio.wait_for(asked.wait(), 10)
        assert gateway.cut == []
        await cancel(floor, job)
        await supervisor.step()
        assert gateway.cut == [job.id]
    finally:
        await supervisor.stop()


async def test_a_slot_stays_taken_while_its_machine_is_silent_and_is_free_without_the_machine(floor: Floor) -> None:
    job, asked, machine = await insert(floor, JobState.FAILED), asyncio.Event(), Machine("gpu-1", "/srv/gpu-1")
    async with floor.runtime.db.write() as connection:
        await job_rows.insert_lease(connection, Lease("gpu-1", 0, job.id), NOON)

    async def never_answer() -> None:
        asked.set()
        await asyncio.Event().wait()

    async def count_leases() -> int:
        async with floor.runtime.db.read() as connection:
            return len(await job_rows.fetch_leases(connection))

    client = JobdClient(machine, ModelWire(floor.machine, never_answer))
    for clients, machines in (({"gpu-1": client}, {"gpu-1": machine}), ({}, {})):
        runtime = replace(floor.runtime, clients=clients)
        supervisor = Supervisor(runtime, machines, Wakeup(), Claims(runtime.db), poll_s=3600)
        try:
            await supervisor.step()
            async with asyncio.timeout(10):
                await asked.wait()
                while not clients and await count_leases():
                    await asyncio.sleep(0.01)
            assert await count_leases() == len(clients)
        finally:
            await supervisor.stop()


async def test_a_log_that_drips_after_its_end_is_left_after_a_piece_that_is_not_full(floor: Floor) -> None:
    machine = Dripping(1, clock_of(floor))
    client = use(floor, machine)
    job = await insert(floor, JobState.RUNNING)
    poll = await follow(floor.runtime, client, job, "agent")
    assert (poll.state, machine.polls) == (StageState.DONE, 1)


async def test_a_log_that_has_no_end_leaves_time_to_look_for_a_cancel(floor: Floor) -> None:
    machine = Dripping(LOG_CHUNK, clock_of(floor))
    client = use(floor, machine)
    job = await insert(floor, JobState.RUNNING)
    poll = await follow(floor.runtime, client, job, "agent")
    assert (poll.state, machine.polls) == (StageState.RUNNING, READ_ON // timedelta(seconds=1))


@pytest.mark.parametrize("size", [0, 1, LOG_CHUNK - 1, LOG_CHUNK, LOG_CHUNK + 1, 3 * LOG_CHUNK])
async def test_the_log_of_a_stage_that_has_ended_is_read_to_its_end(floor: Floor, size: int) -> None:
    job = await insert(floor, JobState.RUNNING)
    floor.machine.stages[job.id]["agent"] = Stage("done", {"exit_status": 0}, b"y" * size)
    await step(floor, job)
    assert floor.runtime.spool.offset(job.id, "agent") == size


@pytest.mark.parametrize(
    ("state", "stage"),
    [(JobState.PREPARING, "prepare"), (JobState.COLLECTING, "collect"), (JobState.RUNNING, "agent")],
)
async def test_a_cancelled_job_whose_processes_cannot_be_killed_says_so_and_ends(
    floor: Floor, state: JobState, stage: str
) -> None:
    job = await insert(floor, state, stage)
    floor.machine.mood = "stubborn"
    await cancel(floor, job)
    if state is JobState.RUNNING:
        await step(floor, job)  # It is told to end, and has its grace.
        clock_of(floor).forward(60)
    with capture_logs() as logs:
        held_up = await step(floor, job)
    assert (held_up.state, held_up.trouble) == (state, STUCK)
    assert "job.still_alive" in [line["event"] for line in logs]
    clock_of(floor).forward(KILL_PATIENCE.total_seconds() - 61)
    assert (await step(floor, job)).trouble == STUCK
    clock_of(floor).forward(62)
    with capture_logs() as logs:
        ended = await step(floor, job)
    assert (ended.state, ended.failure, ended.trouble) == (JobState.LOST, NOT_ENDED, None)
    assert "job.not_killed" in [line["event"] for line in logs if line["log_level"] == "error"]


async def test_processes_that_end_after_all_leave_a_cancelled_job(floor: Floor) -> None:
    job = await insert(floor, JobState.COLLECTING, "collect")
    floor.machine.mood = "stubborn"
    await cancel(floor, job)
    assert (await step(floor, job)).trouble == STUCK
    floor.machine.mood = "well"
    ended = await step(floor, job)
    assert (ended.state, ended.failure) == (JobState.CANCELLED, "cancelled by @ada")


async def test_a_cancelled_verification_whose_processes_cannot_be_killed_ends_with_its_report(floor: Floor) -> None:
    job = await insert(floor, JobState.VERIFYING)
    floor.machine.stages[name_environment(job.id)] = {"check": Stage()}
    floor.machine.mood = "stubborn"
    await cancel(floor, job)
    assert (await step(floor, job)).trouble == STUCK
    clock_of(floor).forward(KILL_PATIENCE.total_seconds() + 1)
    assert (await step(floor, job)).state is JobState.CANCELLED


async def test_a_machine_that_only_says_that_the_agent_runs_does_not_keep_its_job(floor: Floor) -> None:
    job = await insert(floor, JobState.RUNNING, "agent")
    await cancel(floor, job)
    await step(floor, job)
    clock_of(floor).forward(60 + KILL_PATIENCE.total_seconds())

    class SaysRunning(ModelMachine):
        def ask(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
            return {"ok": True, "alive": 0} if verb == "kill" else super().ask(verb, request)

    liar = SaysRunning("gpu-1")
    liar.stages = floor.machine.stages
    use(floor, liar)
    ended = await step(floor, job)
    assert (ended.state, ended.failure) == (JobState.LOST, NOT_ENDED)


async def test_an_agent_that_is_killed_only_once_its_machine_is_back_has_its_result_collected(floor: Floor) -> None:
    job = await insert(floor, JobState.RUNNING, "agent")
    await cancel(floor, job)
    await step(floor, job)
    clock_of(floor).forward(60 + KILL_PATIENCE.total_seconds())  # In which nobody reached the machine.
    assert (await step(floor, job)).state is JobState.RUNNING
    assert (await step(floor, job)).state is JobState.COLLECTING


async def test_a_result_that_is_too_long_to_be_read_fails_its_job_and_blames_no_machine(floor: Floor) -> None:
    class Endless(ModelMachine):
        def ask(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
            if verb == "result":
                raise OutputTooLarge("a command wrote more than 5 bytes")
            return super().ask(verb, request)

    use(floor, Endless("gpu-1"))
    job = await insert(floor, JobState.COLLECTING)
    floor.machine.stages[job.id]["collect"] = Stage("done")
    ended = await step(floor, job)
    reason = "the result could not be read: a command wrote more than 5 bytes"
    assert (ended.state, ended.failure) == (JobState.FAILED, reason)


LIMITS = Limits(prepare_timeout_s=100, base_timeout_s=1_000, collect_timeout_s=100, verify_timeout_s=100)


@pytest.mark.parametrize(
    ("state", "stage", "limit_s", "doing"),
    [
        (JobState.PREPARING, "prepare", 1_200, "preparing this job"),
        (JobState.COLLECTING, "collect", 300, "collecting this job's result"),
    ],
)
async def test_a_stage_that_never_ends_is_given_up_long_after_its_limit(
    floor: Floor, state: JobState, stage: str, limit_s: int, doing: str
) -> None:
    set_limits(floor)
    job = await insert(floor, state, stage)
    clock_of(floor).forward(limit_s + 1_800)
    assert (await step(floor, job)).state is state
    clock_of(floor).forward(1)
    ended = await step(floor, job)
    reason = f"machine gpu-1 has not finished {doing}, long after the limit of {limit_s:,} seconds"
    assert (ended.state, ended.failure) == (JobState.LOST, reason)


@pytest.mark.parametrize("stage", ["prepare", "check"])
async def test_a_verification_that_never_ends_costs_the_job_no_report(floor: Floor, stage: str) -> None:
    set_limits(floor)
    job = await insert(floor, JobState.VERIFYING)
    floor.machine.stages[name_environment(job.id)] = {stage: Stage()}
    clock_of(floor).forward(1_400 + 1_800)
    assert (await step(floor, job)).state is JobState.VERIFYING
    clock_of(floor).forward(1)
    assert (await step(floor, job)).state is JobState.SUCCEEDED


class Forgetful(ModelMachine):
    """Says of every stage that it has not begun, or of all but one."""

    def __init__(self, *done: str) -> None:
        super().__init__("gpu-1")
        self.done = done

    def ask(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        answer = super().ask(verb, request)
        if verb == "poll":
            answer |= {"state": "absent"} if request["stage"] not in self.done else {"state": "done"}
        return answer


@pytest.mark.parametrize(
    ("state", "limit_s"), [(JobState.PREPARING, 1_200), (JobState.COLLECTING, 300), (JobState.VERIFYING, 1_400)]
)
async def test_a_machine_that_forgets_each_stage_does_not_keep_its_job(
    floor: Floor, state: JobState, limit_s: int
) -> None:
    set_limits(floor)
    use(floor, Forgetful())
    job = await insert(floor, state, base_commit=None)
    clock_of(floor).forward(100_000)  # In which nobody reached the machine.
    for wait_s in (0, limit_s, 1_800):
        clock_of(floor).forward(wait_s)
        assert (await step(floor, job)).state is state
    clock_of(floor).forward(1)
    assert (await step(floor, job)).state is (JobState.SUCCEEDED if state is JobState.VERIFYING else JobState.LOST)


async def test_a_machine_that_forgets_the_checks_but_not_their_environment_does_not_keep_its_job(floor: Floor) -> None:
    set_limits(floor)
    job = await insert(floor, JobState.VERIFYING)
    use(floor, Forgetful("prepare"))
    floor.machine.stages[name_environment(job.id)] = {"prepare": Stage("done", {"base_commit": NEWEST})}
    for wait_s in (0, 1_400, 1_800):
        clock_of(floor).forward(wait_s)
        assert (await step(floor, job)).state is JobState.VERIFYING
    clock_of(floor).forward(1)
    assert (await step(floor, job)).state is JobState.SUCCEEDED


async def test_github_is_not_asked_again_about_a_job_that_its_machine_has_forgotten(floor: Floor) -> None:
    use(floor, Forgetful())
    job = await step(floor, await insert(floor, JobState.PREPARING))
    floor.history.fault = HistoryError("GitHub is away")
    assert (await step(floor, job)).trouble is None


async def test_a_wait_for_github_does_not_count_for_the_machine(floor: Floor) -> None:
    job = await floor.open()
    clock_of(floor).forward(100_000)
    await step(floor, job)
    clock_of(floor).forward(60)
    assert (await step(floor, job)).state is JobState.PREPARING


async def test_checks_have_their_time_however_long_the_service_was_away_before_them(floor: Floor) -> None:
    job = await insert(floor, JobState.VERIFYING)
    environment = name_environment(job.id)
    floor.machine.stages[environment] = {"prepare": Stage("done", {"base_commit": NEWEST})}
    clock_of(floor).forward(100_000)
    await step(floor, job)
    assert floor.machine.stages[environment]["check"].state == "running"
    assert (await step(floor, job)).state is JobState.VERIFYING


def set_limits(floor: Floor) -> None:
    assert isinstance(floor.runtime.profiles, dict)
    floor.runtime.profiles["octo/widgets"] = replace(floor.runtime.profiles["octo/widgets"], limits=LIMITS)
