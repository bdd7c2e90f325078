"""Who gets a slot where, over a real database and machines that run our program right here."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from runner.agents import AgentSpec, build_agent
from runner.db.database import Database
from runner.model.environment import Limits, Profile
from runner.model.job import Job, JobState
from runner.model.machines import USABLE, Machine, MachineState
from runner.rows import job_rows
from runner.rows.machine_states import drain, fetch_machine_states, resume
from runner.scheduler.placement import GPUS_IN_USE, Placement
from runner.steps.runtime import Runtime
from runner.steps.spool import Spool
from runner.steps.usage_reader import UsageReader
from runner.transport.host_errors import OutputTooLarge, Unreachable
from runner.transport.hosts import Host
from runner.transport.jobd_client import JobdClient
from tests.support.clock import Clock
from tests.support.history import ModelHistory
from tests.support.jobs import NOON, make_job, open_database
from tests.support.machines import open_local_host
from tests.support.no_gateway import NoGateway

pytestmark = pytest.mark.slow

LEAST_S = 2.0


@dataclass
class Floor:
    """The words in which these tests are told."""

    folder: Path
    db: Database
    clock: Clock
    runtime: Runtime
    host: Host
    machines: Sequence[Machine]
    placement: Placement

    def python(self, machine: str) -> Path:
        """The interpreter on a machine: where it is not there, no job can run."""
        return self.folder / machine / "python"

    def break_down(self, machine: str) -> None:
        self.python(machine).rename(self.folder / machine / "gone")

    def repair(self, machine: str) -> None:
        (self.folder / machine / "gone").rename(self.python(machine))

    async def queue(self, number: int = 7, **changes: Any) -> Job:
        job = make_job(id=f"{number:010}", thread=number, **changes)
        async with self.db.write() as connection:
            assert await job_rows.insert_job(connection, job)
        return job

    async def place(self, job: Job) -> Job:
        """Try to find a slot for a job, and read how it then stands."""
        before = await self.read(job)
        allotted = await self.placement.allot([before])
        has_changed = await self.placement.place(before, allotted.get(job.id))
        self.placement.release(job.id)
        after = await self.read(job)
        assert has_changed or after.state is before.state, "a job whose state has changed goes on at once"
        return after

    async def read(self, job: Job) -> Job:
        async with self.db.read() as connection:
            found = await job_rows.fetch_job(connection, job.id)
        assert found
        return found

    async def drain(self, machine: str) -> None:
        async with self.db.write() as connection:
            await drain(connection, machine, "root", self.clock())

    async def resume(self, machine: str) -> None:
        async with self.db.write() as connection:
            await resume(connection, machine)

    async def state(self, machine: str) -> MachineState:
        async with self.db.read() as connection:
            return (await fetch_machine_states(connection)).get(machine, USABLE)

    def restart(self) -> Placement:
        return Placement(self.runtime, {machine.name: machine for machine in self.machines}, LEAST_S)


@asynccontextmanager
async def open_floor(folder: Path, *names: str) -> AsyncIterator[Floor]:
    machines = []
    for name in names:
        (folder / name).mkdir()
        (folder / name / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (folder / name / "python").chmod(0o755)
        workspace, python = str(folder / name / "workspace"), str(folder / name / "python")
        machines.append(Machine(name, workspace, kind="local", slots=2, python=python))
    async with open_database(folder) as database, open_local_host() as host:
        clock, spool = Clock(), Spool(folder / "spool")
        runtime = Runtime(
            db=database,
            clients={machine.name: JobdClient(machine, host) for machine in machines},
            profiles={"octo/widgets": Profile("octo/widgets", limits=Limits(unreachable_after_s=600))},
            agents={"mine": build_agent(AgentSpec("mine", "command", ("true",)))},
            skills={},
            spool=spool,
            usage_reader=UsageReader(spool, {}, clock),
            now=clock,
            gateway=NoGateway(),
            history=ModelHistory(),
        )
        floor = Floor(folder, database, clock, runtime, host, machines, Placement(runtime, {}, LEAST_S))
        floor.placement = floor.restart()
        yield floor


async def test_a_drained_machine_gets_no_job_until_it_is_resumed(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1") as floor:
        await floor.drain("gpu-1")
        job = await floor.place(await floor.queue())
        assert job.state is JobState.QUEUED
        assert job.trouble == "no machine can be used (gpu-1: its operator has drained it)"
        floor.clock.forward(3600)
        assert (await floor.place(job)).state is JobState.QUEUED, "however long it lasts, it is meant so"
        await floor.resume("gpu-1")
        job = await floor.place(job)
        assert (job.state, job.machine, job.trouble) == (JobState.PREPARING, "gpu-1", None)


async def test_a_job_of_a_private_repository_that_no_machine_serves_fails_with_the_reason(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1") as floor:
        job = await floor.place(await floor.queue(private=True))
        assert job.state is JobState.FAILED
        assert job.failure == "no machine has what this job requires: private repositories"


async def test_a_job_is_placed_where_its_issues_labels_lead(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1", "gpu-2") as floor:
        floor.machines = [floor.machines[0], replace(floor.machines[1], labels=frozenset({"rocm"}))]
        floor.placement = floor.restart()
        assert (await floor.place(await floor.queue(requires=("rocm",)))).machine == "gpu-2"
        lost = await floor.place(await floor.queue(8, requires=("rocm", "mi300")))
        assert lost.failure == "no machine has what this job requires: rocm, mi300, public repositories"


async def test_a_drain_keeps_its_first_time_and_what_is_known_of_the_machine(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1") as floor:
        await floor.placement.note_gone("gpu-1", Unreachable("it is silent"))
        for _ in range(2):
            await floor.drain("gpu-1")
            floor.clock.forward(60)
        state = await floor.state("gpu-1")
        assert (state.drained_at, state.drained_by, state.trouble) == (NOON, "root", "it is silent")
        assert await floor.placement.probe("gpu-1")
        assert (await floor.state("gpu-1")).drained_at == NOON, "that it is well again undoes no drain"


async def test_a_drain_that_comes_while_a_machine_is_asked_holds(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1") as floor:
        drain = "INSERT OR IGNORE INTO machine_states (name, drained_at) VALUES ('gpu-1', '2026-03-01 12:00:00.000000')"
        program = f"import sqlite3\nwith sqlite3.connect('{tmp_path}/ptq.db') as db:\n    db.execute({drain!r})\n"
        (tmp_path / "drain.py").write_text(program)
        answer = floor.python("gpu-1").read_text().replace("exec", f"{sys.executable} {tmp_path}/drain.py; exec")
        floor.python("gpu-1").write_text(answer)
        job = await floor.place(await floor.queue())
        assert job.state is JobState.QUEUED
        assert (await floor.state("gpu-1")).drained_at


async def test_a_machine_that_is_out_is_asked_again_after_ever_longer_rests_and_comes_back(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1", "gpu-2") as floor:
        floor.break_down("gpu-1")
        job = await floor.place(await floor.queue())
        assert job.state is JobState.QUEUED
        for rest_s in (2, 2, 4, 8):
            floor.clock.forward(rest_s - 0.1)
            assert await floor.placement.fetch_due() == []
            floor.clock.forward(0.1)
            assert await floor.placement.fetch_due() == ["gpu-1"]
            assert not await floor.placement.probe("gpu-1")
        state = await floor.state("gpu-1")
        assert state.outage
        assert (state.outage.since, "Python" in state.outage.reason) == (NOON, True)
        assert (await floor.place(job)).machine == "gpu-2"
        floor.repair("gpu-1")
        assert await floor.placement.probe("gpu-1")
        assert not await floor.placement.probe("gpu-1"), "it is news once"
        assert await floor.state("gpu-1") == USABLE
        assert (await floor.place(await floor.queue(8))).machine == "gpu-1"


async def test_an_outage_outlives_the_service(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1") as floor:
        await floor.placement.note_gone("gpu-1", Unreachable("it is silent"))
        floor.clock.forward(LEAST_S)
        another = floor.restart()
        assert await another.fetch_due() == ["gpu-1"]
        assert await another.probe("gpu-1")


async def test_a_job_that_finds_its_machine_gone_keeps_nobody_from_asking_it(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1") as floor:
        for _ in range(3):
            await floor.placement.note_gone("gpu-1", Unreachable("it is silent"))
            floor.clock.forward(LEAST_S / 2)
        assert await floor.placement.fetch_due() == ["gpu-1"]


async def test_a_command_that_says_too_much_puts_no_machine_out(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1") as floor:
        await floor.placement.note_gone("gpu-1", OutputTooLarge("a command wrote more than 5 bytes"))
        assert await floor.state("gpu-1") == USABLE


async def test_a_job_gives_up_only_when_every_machine_is_out_and_none_is_drained(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1", "gpu-2") as floor:
        floor.break_down("gpu-1")
        floor.break_down("gpu-2")
        await floor.drain("gpu-2")
        job = await floor.queue()
        assert not await floor.placement.probe("gpu-2")
        job = await floor.place(await floor.place(job))
        assert job.state is JobState.QUEUED
        await floor.resume("gpu-2")
        job = await floor.place(await floor.place(job))
        assert job.state is JobState.FAILED
        assert job.failure
        assert job.failure.startswith("no machine can be used (gpu-1: ")


async def test_a_job_in_place_of_a_lost_one_shuns_its_machine_while_there_is_another(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "gpu-1", "gpu-2") as floor:
        await floor.queue(1, state=JobState.LOST, machine="gpu-1")
        await floor.queue(2, state=JobState.LOST, machine="gpu-1")
        first = await floor.queue(11, replaces=f"{1:010}")
        assert (await floor.place(first)).machine == "gpu-2"
        await floor.drain("gpu-2")
        second = await floor.queue(12, replaces=f"{2:010}")
        assert (await floor.place(second)).machine == "gpu-1"


FORBIDDING = """#!{python}
import os, sys
sys.path.insert(0, {root!r})
from tests.support.lesser_kernel import forbid_namespaces
forbid_namespaces()
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize("sandbox", ["auto", "required"])
async def test_a_job_that_has_to_be_sealed_is_not_placed_where_the_machine_cannot(
    tmp_path: Path, sandbox: Literal["auto", "required"]
) -> None:
    async with open_floor(tmp_path, "gpu-1") as floor:
        root = str(Path(__file__).parents[2])
        floor.python("gpu-1").write_text(FORBIDDING.format(python=sys.executable, root=root))
        machine = replace(floor.machines[0], sandbox=sandbox)
        floor.runtime = replace(floor.runtime, clients={"gpu-1": JobdClient(machine, floor.host)})
        floor.placement = floor.restart()
        job = await floor.place(await floor.queue())
        if sandbox == "auto":
            assert job.state is JobState.PREPARING
            return
        state = await floor.state("gpu-1")
        assert state.trouble == (
            "its configuration requires a sandbox, but the machine says: "
            "jobs are not sealed: user namespaces: operation not permitted"
        )
        assert job.state is JobState.QUEUED


async def test_a_job_waits_while_a_running_job_has_gpus_of_its_slot(tmp_path: Path) -> None:
    """After a reload, a machine has four slots in place of two."""
    async with open_floor(tmp_path, "gpu-1") as floor:
        gpus = "\n".join(f"{number}, GPU-{number}, 0000:0{number}:00.0, 1, 550, Disabled, H100" for number in range(4))
        smi = tmp_path / "gpu-1" / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\ncat <<END\n{gpus}\nEND\n")
        smi.chmod(0o755)
        floor.python("gpu-1").write_text(f'#!/bin/sh\nPATH={smi.parent}:$PATH exec {sys.executable} "$@"\n')
        first = await floor.place(await floor.queue(1))
        floor.machines = [replace(floor.machines[0], slots=4)]
        floor.placement = floor.restart()
        second = await floor.place(await floor.queue(2))
        assert (second.state, second.trouble) == (JobState.QUEUED, GPUS_IN_USE.format(machine="gpu-1"))
        async with floor.db.write() as connection:
            await job_rows.delete_lease(connection, first.id)
        second = await floor.place(second)
        assert (second.state, second.trouble) == (JobState.PREPARING, None)
