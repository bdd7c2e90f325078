"""A run whose log reads like a security concern: that is written down before anything else can go wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runner.agents import AgentSpec, build_agent
from runner.model.job import Job, JobState
from runner.model.jobd_answers import JobdError, Poll, StageState
from runner.model.machines import Machine
from runner.model.meter import Meter
from runner.rows import job_rows
from runner.steps.runtime import LOG_CHUNK, end
from runner.steps.steps import take_step
from runner.transport.host_errors import Unreachable
from runner.transport.jobd_client import JobdClient
from tests.runner.test_base_commit import Floor, open_floor, pass_at_once
from tests.support.jobs import NOON, make_job
from tests.support.model_machine import ModelMachine, ModelWire

TEXT = "One.\n\n**Outcome:** security concern\n\nHere is how."
LOG = json.dumps({"type": "assistant", "message": {"id": "1", "content": [{"type": "text", "text": TEXT}]}}).encode()


class OneAnswer(JobdClient):
    """A machine that answers once about the agent, with its log, and never again."""

    def __init__(self, error: Exception | None, state: StageState = StageState.DONE) -> None:
        super().__init__(Machine("gpu-1", "/srv/gpu-1"), ModelWire(ModelMachine("gpu-1"), pass_at_once))
        self.error, self.state, self.asked = error, state, 0

    async def poll(self, *args: Any, **options: Any) -> Poll:
        self.asked += 1
        if self.error and self.asked > 1:
            raise self.error
        log = (LOG + b"\n").ljust(LOG_CHUNK)  # A full piece: there is more to ask for.
        return Poll(self.state, None, None, {"exit_status": 0}, log, len(log), "", "", "boot")


@pytest.fixture
async def floor(tmp_path: Path) -> AsyncIterator[Floor]:
    async with open_floor(tmp_path) as floor:
        assert isinstance(floor.bench.agents, dict)
        floor.bench.agents["claude"] = build_agent(AgentSpec("claude", "claude"))
        yield floor


async def run(floor: Floor, client: JobdClient) -> Job:
    assert isinstance(floor.bench.clients, dict)
    floor.bench.clients["gpu-1"] = client
    job = make_job(state=JobState.RUNNING, machine="gpu-1", agent="claude", started_at=NOON, base_commit="aa" * 20)
    async with floor.bench.db.write() as connection:
        await job_rows.insert_job(connection, job)
    return job


async def fetch_meter(floor: Floor, job: Job) -> Meter | None:
    async with floor.bench.db.read() as connection:
        return await job_rows.fetch_meter(connection, job.id)


async def test_a_machine_that_is_gone_after_it_gave_the_log_leaves_no_moment_in_which_it_is_public(
    floor: Floor,
) -> None:
    job = await run(floor, OneAnswer(Unreachable("cable")))
    with pytest.raises(Unreachable):
        await take_step(floor.bench, job)
    meter = await fetch_meter(floor, job)
    assert meter is not None
    assert meter.withheld


async def test_a_run_that_fails_by_a_bad_answer_stays_withheld(floor: Floor) -> None:
    job = await take_step(floor.bench, await run(floor, OneAnswer(JobdError("internal", "makes no sense"))))
    assert job.state is JobState.FAILED
    meter = await fetch_meter(floor, job)
    assert meter is not None
    assert meter.withheld


@pytest.mark.parametrize("log", [LOG, LOG + b"\n", b"{}\n" + LOG + b"\n{}\n"])
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.COLLECTING])
async def test_a_run_that_ends_without_a_report_is_judged_by_its_whole_log(
    floor: Floor, log: bytes, state: JobState
) -> None:
    job = make_job(state=state, machine="gpu-1", agent="claude", started_at=NOON, base_commit="aa" * 20)
    async with floor.bench.db.write() as connection:
        await job_rows.insert_job(connection, job)
    floor.bench.spool.append(job.id, "agent", log)
    await end(floor.bench, job, JobState.LOST, "the machine is gone")
    meter = await fetch_meter(floor, job)
    assert meter is not None
    assert meter.withheld


async def test_any_other_run_has_no_such_mark(floor: Floor) -> None:
    job = make_job(state=JobState.COLLECTING, agent="claude", started_at=NOON)
    async with floor.bench.db.write() as connection:
        await job_rows.insert_job(connection, job)
    floor.bench.spool.append(job.id, "agent", b"{}\n")
    await end(floor.bench, job, JobState.LOST, "the machine is gone")
    assert await fetch_meter(floor, job) is None


async def test_what_is_collected_from_a_withheld_run_stays_withheld_until_somebody_writes_a_report(
    floor: Floor,
) -> None:
    found = make_job(id="a" * 10, state=JobState.CANCELLED, machine="gpu-1", agent="claude")
    collecting = make_job(
        state=JobState.COLLECTING, attempt=2, machine="gpu-1", agent="claude", by_hand=True, adopts=found.id
    )
    async with floor.bench.db.write() as connection:
        for job in (found, collecting):
            await job_rows.insert_job(connection, job)
        await job_rows.save_meter(connection, Meter(found.id, withheld=True))
    await end(floor.bench, collecting, JobState.FAILED, "there is no report")
    meter = await fetch_meter(floor, collecting)
    assert meter is not None
    assert meter.withheld
