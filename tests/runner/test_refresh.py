"""Bases that are kept young, over a real database and a machine that runs our program right here."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from runner.model.environment import Profile
from runner.model.job import JobKind, JobState
from runner.model.jobd_answers import StageState
from runner.model.machines import Machine
from runner.rows import job_rows
from runner.rows.machine_states import drain, resume
from runner.scheduler.refresh import Refresher, name_refresh
from runner.steps.gateway import Fetcher, GatewayRoute
from runner.steps.runtime import Runtime
from runner.steps.spool import Spool
from runner.steps.usage_reader import UsageReader
from runner.transport.jobd_client import JobdClient
from tests.support.clock import Clock
from tests.support.history import ModelHistory
from tests.support.jobd import Repository
from tests.support.jobs import NOON, make_job, open_database
from tests.support.machines import open_local_host
from tests.support.no_gateway import NoGateway

pytestmark = pytest.mark.slow

PROFILE = Profile("octo/widgets", create_venv=("mkdir",))


class Floor:
    """A service's side of one machine, and the machine."""

    def __init__(self, runtime: Runtime, machine: Machine, clock: Clock, repository: Repository) -> None:
        self.runtime, self.machine, self.clock, self.repository = runtime, machine, clock, repository
        self.client = runtime.clients["here"]
        self.refresher = self.start_again()

    def start_again(self) -> Refresher:
        return Refresher(self.runtime, {"here": self.machine})

    async def make_base(self) -> None:
        recipe = PROFILE.recipe(self.repository.url, "main")
        job_id = secrets.token_hex(5)
        await self.client.make_base(job_id, recipe)
        await self.settle(job_id)
        await self.client.clean(job_id)

    async def settle(self, job_id: str) -> None:
        async with asyncio.timeout(20):
            while (poll := await self.client.poll(job_id, "base")).state is StageState.RUNNING:
                await asyncio.sleep(0.05)
        assert poll.state in (StageState.DONE, StageState.ABSENT), poll.message

    async def refresh(self) -> None:
        """Let a whole refresh pass, if one is due."""
        await self.refresher.step()
        await self.settle(name_refresh(self.machine, PROFILE, self.clock()))
        await self.refresher.step()

    def count_layers(self) -> int:
        return len([*Path(self.machine.workspace, "bases").glob("*/[0-9]*")])


@asynccontextmanager
async def open_floor(folder: Path, repository: Repository) -> AsyncIterator[Floor]:
    machine = Machine("here", str(folder / "machine"), kind="local", python=sys.executable)
    clock, spool = Clock(), Spool(folder / "spool")
    async with open_database(folder) as database, open_local_host() as host:
        client = JobdClient(machine, host)
        runtime = Runtime(
            db=database,
            clients={"here": client},
            profiles={PROFILE.repository: PROFILE},
            agents={},
            skills={},
            spool=spool,
            usage_reader=UsageReader(spool, {}, clock),
            now=clock,
            gateway=NoGateway(),
            history=ModelHistory(),
        )
        async with database.write() as connection:
            await job_rows.insert_job(
                connection, make_job(clone_url=repository.url, created_at=NOON - timedelta(days=1))
            )
        yield Floor(runtime, machine, clock, repository)


async def test_a_base_gets_one_more_layer_once_a_day_also_if_the_service_starts_again_meanwhile(
    tmp_path: Path, repository: Repository
) -> None:
    async with open_floor(tmp_path, repository) as floor:
        await floor.make_base()
        repository.commit({"a.txt": "newer\n"})
        async with floor.runtime.db.write() as connection:
            await drain(connection, "here", "operator", NOON)
        await floor.refresh()
        assert floor.count_layers() == 1, "a machine that is drained is left alone"
        async with floor.runtime.db.write() as connection:
            await resume(connection, "here")
        await floor.refresher.step()
        for _ in range(2):
            floor.refresher = floor.start_again()
            await floor.refresh()
        assert floor.count_layers() == 2
        assert not [*Path(floor.machine.workspace, "jobs").iterdir()]
        repository.commit({"a.txt": "newer still\n"})
        await floor.refresh()
        assert floor.count_layers() == 2
        floor.clock.forward(86_400)
        await floor.refresh()
        assert floor.count_layers() == 3
        assert not [*Path(floor.machine.workspace, "jobs").iterdir()]


async def test_where_a_worktree_began_or_one_issues_rebase_is_nobody_elses_base(
    tmp_path: Path, repository: Repository
) -> None:
    async with open_floor(tmp_path, repository) as floor:
        await floor.make_base()
        common: dict[str, Any] = {"clone_url": repository.url, "state": JobState.SUCCEEDED}
        common |= {"base_branch": "elsewhere", "created_at": NOON - timedelta(hours=14)}
        strays = (
            make_job(id="aaaaaaaaaa", kind=JobKind.WORKTREE, series=1, **common),
            make_job(id="bbbbbbbbbb", kind=JobKind.REBASE, attempt=2, **common),
        )
        async with floor.runtime.db.write() as connection:
            for stray in strays:
                await job_rows.insert_job(connection, stray)
        repository.git("checkout", "-qb", "elsewhere")
        repository.commit({"a.txt": "of a stranger\n"})
        repository.git("checkout", "-q", "main")
        newest = repository.commit({"a.txt": "newer\n"})
        await floor.refresh()
        assert floor.count_layers() == 2
        (base,) = Path(floor.machine.workspace, "bases").glob("*/base.json")
        assert json.loads(base.read_text())["commit"] == newest


async def test_where_no_job_has_made_a_base_none_is_made_and_a_refresh_that_fails_leaves_it_as_it_is(
    tmp_path: Path, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_floor(tmp_path, repository) as floor:
        await floor.refresh()
        assert floor.count_layers() == 0
        await floor.make_base()
        floor.clock.forward(86_400)
        repository.folder.rename(tmp_path / "gone")
        await floor.refresher.step()
        async with asyncio.timeout(20):
            while "base.refresh_failed" not in capsys.readouterr().out:
                await floor.refresher.step()
                await asyncio.sleep(0.05)
        assert floor.count_layers() == 1


class Leading(NoGateway):
    """A gateway that says how git is led, and remembers until when."""

    def __init__(self) -> None:
        self.led: list[Fetcher] = []
        self.closed: list[str] = []

    async def open_git_route(self, fetcher: Fetcher, client: JobdClient) -> GatewayRoute:
        self.led.append(fetcher)
        return GatewayRoute({"GIT_CONFIG_COUNT": "0"})

    async def close(self, job_id: str) -> None:
        self.closed.append(job_id)


class Untouched:
    """A machine that nobody may ask anything."""


async def test_a_refresh_fetches_by_the_gateway_until_it_is_over_and_on_no_machine_for_public_repositories_only(
    tmp_path: Path, repository: Repository
) -> None:
    async with open_floor(tmp_path, repository) as floor:
        await floor.make_base()
        repository.commit({"a.txt": "newer\n"})
        gateway = Leading()
        clients = {"here": floor.client, "public": cast(JobdClient, Untouched())}
        floor.runtime = replace(floor.runtime, gateway=gateway, clients=clients)
        async with floor.runtime.db.write() as connection:
            job = make_job(id="a" * 10, private=True, clone_url=repository.url, created_at=NOON - timedelta(hours=20))
            await job_rows.insert_job(connection, replace(job, thread=8))
        floor.machine = replace(floor.machine, serves=frozenset({"private"}))
        machines = {"public": Machine("public", "/srv"), "here": floor.machine}
        floor.refresher = Refresher(floor.runtime, machines)
        await floor.refresher.step()
        job_id = name_refresh(floor.machine, PROFILE, floor.clock())
        request = Path(floor.machine.workspace, "jobs", job_id, "control", "base.request")
        assert json.loads(request.read_text())["git"] == {"GIT_CONFIG_COUNT": "0"}
        assert gateway.closed == []
        await floor.settle(job_id)
        await floor.refresher.step()
        assert floor.count_layers() == 2
        assert {fetcher.id for fetcher in gateway.led} == {job_id}
        assert gateway.led[0].clone_url == repository.url
        assert gateway.closed == [job_id]
        await floor.refresher.step()
        assert gateway.closed == [job_id]


def test_each_machine_repository_and_day_has_a_name_of_its_own() -> None:
    other = replace(PROFILE, repository="octo/other")
    a, b = Machine("a", "/srv"), Machine("a", "/other")
    names = [name_refresh(machine, profile, NOON) for machine in (a, b) for profile in (PROFILE, other)]
    names += [name_refresh(a, PROFILE, NOON + timedelta(days=1))]
    assert len(set(names)) == 5
    assert name_refresh(a, PROFILE, NOON) == name_refresh(a, PROFILE, NOON + timedelta(hours=11))
