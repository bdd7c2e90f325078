"""A retry starts with a new session: the old one lies where the earlier agent could write words in our name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.agents import AgentSpec, build_agent
from runner.model.job import JobState
from runner.rows import job_rows
from tests.runner.test_base_commit import NEWEST, open_floor
from tests.support.jobs import NOON, make_job


@pytest.mark.parametrize("kind", ["claude", "codex", "pi"])
async def test_what_an_earlier_attempt_wrote_into_its_memory_reaches_no_later_one(tmp_path: Path, kind: str) -> None:
    async with open_floor(tmp_path) as floor:
        floor.runtime = replace(floor.runtime, agents={"mine": build_agent(AgentSpec("mine", kind))})
        earlier = make_job(id="0" * 10, state=JobState.FAILED, base_commit=NEWEST, created_at=NOON)
        async with floor.runtime.db.write() as connection:
            await job_rows.insert_job(connection, earlier)
        job = await floor.step(await floor.open(id="a" * 10, attempt=2, follows=earlier.id))
        job = await floor.answer(job, NEWEST)
        assert job.state is JobState.RUNNING
        start = floor.machine.requests[job.id]["agent"]
        assert start["files"] == {}
