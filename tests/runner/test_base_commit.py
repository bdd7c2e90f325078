"""The commit that a job begins from: chosen by the host's word, and held against what the machine says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from runner.agents import AgentSpec, build_agent
from runner.model.environment import Profile
from runner.model.history import HistoryError
from runner.model.job import Job, JobKind, JobState
from runner.model.machines import Machine
from runner.rows import job_rows
from runner.rows.machine_states import fetch_machine_states
from runner.steps.base_commit import explain_refusal, find_branch
from runner.steps.runtime import Runtime
from runner.steps.spool import Spool
from runner.steps.steps import take_step
from runner.steps.usage_reader import UsageReader
from runner.transport.jobd_client import JobdClient
from tests.support.clock import Clock
from tests.support.history import ModelHistory
from tests.support.jobs import NOON, make_job, open_database
from tests.support.model_machine import ModelMachine, ModelWire
from tests.support.no_gateway import NoGateway

NEWEST, OLDER, STRANGERS = "aa" * 20, "bb" * 20, "cc" * 20
GONE = "is not on `main`: `/ptq rebase` moves an earlier diff to the newest commit"


@dataclass
class Floor:
    """One machine, one repository, and what its host says of it."""

    runtime: Runtime
    machine: ModelMachine
    history: ModelHistory

    async def open(self, **about: Any) -> Job:
        job = make_job(state=JobState.PREPARING, machine="gpu-1", **about)
        async with self.runtime.db.write() as connection:
            await job_rows.insert_job(connection, job)
        return job

    async def step(self, job: Job) -> Job:
        return await take_step(self.runtime, job)

    def asked(self, job: Job) -> str:
        """The commit that the machine was told to check out."""
        return str(self.machine.requests[job.id]["prepare"]["base_commit"])

    async def answer(self, job: Job, commit: Any) -> Job:
        """The machine says that it checked out this commit."""
        self.machine.end(job.id, "prepare", "done", base_commit=commit, conflicts=[])
        return await self.step(job)

    async def count_faults(self) -> int:
        async with self.runtime.db.read() as connection:
            states = await fetch_machine_states(connection)
        return states["gpu-1"].faults if states else 0


async def pass_at_once() -> None: ...


@asynccontextmanager
async def open_floor(
    folder: Path, *, by_gateway: bool = True, environment_branch: str | None = None
) -> AsyncIterator[Floor]:
    machine, history, clock, spool = ModelMachine("gpu-1"), ModelHistory(NEWEST, OLDER), Clock(), Spool(folder)
    async with open_database(folder) as database:
        runtime = Runtime(
            db=database,
            clients={"gpu-1": JobdClient(Machine("gpu-1", "/srv/gpu-1"), ModelWire(machine, pass_at_once))},
            profiles={
                "octo/widgets": Profile(
                    "octo/widgets", by_gateway=by_gateway, base_branch="main", environment_branch=environment_branch
                )
            },
            agents={"mine": build_agent(AgentSpec("mine", "command", ("true",)))},
            skills={},
            spool=spool,
            usage_reader=UsageReader(spool, {}, clock),
            now=clock,
            gateway=NoGateway(),
            history=history,
        )
        yield Floor(runtime, machine, history)


async def test_a_machine_is_told_the_newest_commit_and_must_answer_it(tmp_path: Path) -> None:
    async with open_floor(tmp_path) as floor:
        job = await floor.step(await floor.open())
        assert (floor.asked(job), job.base_commit) == (NEWEST, NEWEST)
        floor.history.commits.insert(0, "dd" * 20)
        job = await floor.answer(job, NEWEST)
        assert (job.state, job.base_commit) == (JobState.RUNNING, NEWEST)


@pytest.mark.parametrize("said", [STRANGERS, OLDER])
async def test_a_machine_that_answers_another_commit_fails_the_job_and_is_at_fault(tmp_path: Path, said: str) -> None:
    async with open_floor(tmp_path) as floor:
        job = await floor.answer(await floor.step(await floor.open()), said)
        reason = f"the machine checked out commit {said[:10]}, but was told to check out {NEWEST[:10]}"
        assert (job.state, job.failure) == (JobState.FAILED, reason)
        assert await floor.count_faults() == 1
        assert not floor.machine.agent_starts


@pytest.mark.parametrize("said", [None, 7, "", "main", NEWEST.upper(), f"{NEWEST}\n", [NEWEST], "a" * 39])
async def test_what_is_no_commit_is_not_taken_for_one(tmp_path: Path, said: Any) -> None:
    async with open_floor(tmp_path, by_gateway=False) as floor:
        job = await floor.answer(await floor.step(await floor.open()), said)
        assert (job.state, job.failure) == (JobState.FAILED, "the machine did not say which commit it checked out")


async def test_where_the_operator_says_whence_to_clone_the_answer_must_be_on_the_branch(tmp_path: Path) -> None:
    async with open_floor(tmp_path, by_gateway=False) as floor:
        job = await floor.step(await floor.open())
        assert (floor.asked(job), job.base_commit) == ("", None)
        job = await floor.answer(job, OLDER)
        assert (job.state, job.base_commit) == (JobState.RUNNING, OLDER), "that place may lag behind"
        other = await floor.step(await floor.open(id="aaaaaaaaaa", thread=8))
        other = await floor.answer(other, STRANGERS)
        assert other.state is JobState.FAILED
        assert other.failure == f"the machine checked out commit {STRANGERS[:10]}, which is not on main"


async def test_a_retry_begins_where_the_attempt_before_began_if_the_branch_still_has_that(tmp_path: Path) -> None:
    async with open_floor(tmp_path) as floor:
        done = {"state": JobState.SUCCEEDED, "created_at": NOON}
        async with floor.runtime.db.write() as connection:
            for number, commit in enumerate((OLDER, STRANGERS)):
                earlier = make_job(id=f"{number:010d}", thread=number + 1, base_commit=commit, **done)
                await job_rows.insert_job(connection, earlier)
        retry = {"id": "aaaaaaaaaa", "follows": f"{0:010d}", "thread": 1, "attempt": 2}
        job = await floor.step(await floor.open(**retry))
        assert (floor.asked(job), job.base_commit) == (OLDER, OLDER)
        lost = {"id": "bbbbbbbbbb", "follows": f"{1:010d}", "thread": 2, "attempt": 2}
        job = await floor.step(await floor.open(**lost))
        assert job.state is JobState.FAILED
        assert GONE in (job.failure or "")
        assert job.id not in floor.machine.stages


async def test_a_rebase_onto_a_commit_is_held_to_it(tmp_path: Path) -> None:
    async with open_floor(tmp_path) as floor:
        job = await floor.step(await floor.open(preset="rebase", base_commit=OLDER))
        assert floor.asked(job) == OLDER
        assert (await floor.answer(job, NEWEST)).state is JobState.FAILED
        strangers = {"preset": "rebase", "base_commit": STRANGERS, "id": "aaaaaaaaaa", "thread": 8}
        assert GONE in ((await floor.step(await floor.open(**strangers))).failure or "")


async def test_a_worktree_begins_anywhere_but_where_it_was_told_to_if_it_was(tmp_path: Path) -> None:
    async with open_floor(tmp_path) as floor:
        floor.history.fault = HistoryError("nobody asks")
        free = {"kind": JobKind.WORKTREE, "series": 1, "name": "wt", "base_branch": "refs/pull/99/head"}
        job = await floor.answer(await floor.step(await floor.open(**free)), STRANGERS)
        assert (job.state, job.base_commit) == (JobState.SUCCEEDED, STRANGERS)
        told = {**free, "series": 2, "id": "aaaaaaaaaa", "base_commit": OLDER}
        assert (await floor.answer(await floor.step(await floor.open(**told)), STRANGERS)).state is JobState.FAILED


async def test_a_job_waits_for_a_host_that_does_not_answer_and_says_so(tmp_path: Path) -> None:
    async with open_floor(tmp_path) as floor:
        floor.history.fault = HistoryError("GitHub cannot be asked just now")
        job = await floor.step(await floor.open())
        assert (job.state, job.trouble) == (JobState.PREPARING, "GitHub cannot be asked just now")
        assert job.id not in floor.machine.stages
        floor.history.fault = None
        job = await floor.step(job)
        assert (job.trouble, job.base_commit) == (None, NEWEST)
        floor.history.fault = HistoryError("GitHub answered 403", permanent=True)
        other = await floor.step(await floor.open(id="aaaaaaaaaa", thread=8))
        assert (other.state, other.failure) == (JobState.FAILED, "GitHub answered 403")


async def test_a_branch_that_is_gone_is_named(tmp_path: Path) -> None:
    async with open_floor(tmp_path) as floor:
        floor.history.commits.clear()
        job = await floor.step(await floor.open())
        assert (job.state, job.failure) == (JobState.FAILED, "the repository has no branch main")


GREEN = "viable/strict"
NOT_THERE = f"the newest commit of `{GREEN}`, `{STRANGERS[:10]}`, is not on `main`, where the pull request would go"


def test_the_branch_that_a_job_begins_from_is_the_one_for_environments_unless_something_else_is_chosen() -> None:
    profile = Profile("octo/widgets", base_branch="main", environment_branch=GREEN)
    job = make_job()
    assert find_branch(profile, job) == GREEN == profile.trunk
    assert find_branch(replace(profile, base_branch="HEAD"), job) == GREEN
    assert find_branch(replace(profile, environment_branch=None), job) == "main"
    assert find_branch(profile, replace(job, kind=JobKind.REBASE)) == "main"
    assert find_branch(profile, replace(job, base_branch="release/2.5")) == "release/2.5"
    assert find_branch(profile, make_job(kind=JobKind.WORKTREE, thread=None, series=1, name="wt")) == "main"


def test_only_a_commit_of_the_base_branch_can_be_begun_from() -> None:
    job = make_job()
    assert explain_refusal(job, GREEN, STRANGERS, on_base_branch=True) is None
    assert (explain_refusal(job, GREEN, STRANGERS, on_base_branch=False) or "").startswith(NOT_THERE)
    assert GONE in (explain_refusal(job, "main", STRANGERS, on_base_branch=False) or "")


async def test_a_job_begins_from_the_branch_for_environments_and_its_change_is_for_the_base_branch(
    tmp_path: Path,
) -> None:
    async with open_floor(tmp_path, environment_branch=GREEN) as floor:
        floor.history.others[GREEN] = [OLDER]
        job = await floor.step(await floor.open())
        assert (floor.asked(job), job.base_commit, job.base_branch) == (OLDER, OLDER, "main")
        assert floor.machine.requests[job.id]["prepare"]["trunk"] == GREEN
        assert (await floor.answer(job, OLDER)).state is JobState.RUNNING
        rebase = await floor.open(kind=JobKind.REBASE, preset="rebase", id="aaaaaaaaaa", thread=8)
        assert floor.asked(await floor.step(rebase)) == NEWEST


async def test_a_job_does_not_begin_where_the_base_branch_lacks_the_commit(tmp_path: Path) -> None:
    async with open_floor(tmp_path, environment_branch=GREEN) as floor:
        floor.history.others[GREEN] = [STRANGERS]
        job = await floor.step(await floor.open())
        assert job.state is JobState.FAILED
        assert (job.failure or "").startswith(NOT_THERE)
        assert job.id not in floor.machine.stages
        floor.history.others[GREEN] = []
        other = await floor.step(await floor.open(id="aaaaaaaaaa", thread=8))
        assert (other.state, other.failure) == (JobState.FAILED, f"the repository has no branch {GREEN}")


async def test_where_the_operator_says_whence_to_clone_the_machine_takes_the_branch_for_environments(
    tmp_path: Path,
) -> None:
    async with open_floor(tmp_path, by_gateway=False, environment_branch=GREEN) as floor:
        floor.history.others[GREEN] = [OLDER]
        job = await floor.step(await floor.open())
        assert floor.machine.requests[job.id]["prepare"]["base_branch"] == GREEN
        assert (await floor.answer(job, OLDER)).base_commit == OLDER
        floor.history.others[GREEN] = [STRANGERS]
        refused = await floor.answer(await floor.step(await floor.open(id="aaaaaaaaaa", thread=8)), STRANGERS)
        assert (refused.failure or "").startswith(NOT_THERE)
        assert await floor.count_faults() == 0, "the machine did as it was told"
        liar = await floor.answer(await floor.step(await floor.open(id="bbbbbbbbbb", thread=9)), "dd" * 20)
        assert liar.failure == f"the machine checked out commit {'dd' * 5}, which is not on main"
        assert await floor.count_faults() == 1


async def test_the_environment_for_the_checks_is_held_to_the_same_commit(tmp_path: Path) -> None:
    async with open_floor(tmp_path) as floor:
        job = replace(await floor.open(base_commit=NEWEST), state=JobState.VERIFYING)
        async with floor.runtime.db.write() as connection:
            await job_rows.move_job(connection, replace(job, state=JobState.PREPARING), JobState.VERIFYING, NOON)
        job = await floor.step(job)
        (environment,) = floor.machine.stages
        floor.machine.end(environment, "prepare", "done", base_commit=STRANGERS)
        assert (await floor.step(job)).state is JobState.SUCCEEDED
        assert "check" not in floor.machine.stages[environment]
