"""The service is killed without a warning and started again: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support import program
from tests.support.world import FIX, PATIENCE_S, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

AGENT = WRITE_REPORT + "print('at work', flush=True); time.sleep(1.5)\n" + FIX


@asynccontextmanager
async def serve(world: World) -> AsyncIterator[program.Running]:
    """The service as an operator runs it, in place of the one inside this process."""
    playground = world.playground
    with program.start(playground.folder, "serve", "--config", playground.config) as service:
        await asyncio.to_thread(service.wait_for_http, f"http://127.0.0.1:{playground.service_port}/healthz")
        yield service


async def wait_for_state(world: World, service: program.Running, state: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while state not in await fetch_states(world):
        assert service.process.poll() is None, service.text()
        assert time.monotonic() < deadline, f"no job became {state}: {service.text()}"
        await asyncio.sleep(0.01)


async def fetch_states(world: World) -> dict[str, int]:
    """How many active jobs are in which state, as the service itself says it."""

    def fetch() -> dict[str, int]:
        with urlopen(f"http://127.0.0.1:{world.playground.service_port}/status", timeout=60) as answer:
            jobs: dict[str, int] = json.load(answer)["jobs"]
            return jobs

    return await asyncio.to_thread(fetch)


@pytest.mark.slow(20)
async def test_a_kill_in_every_state_of_a_job_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    async with open_world(tmp_path, on_real_machine=True, agent=AGENT) as world:
        await world.playground.stop_service()
        async with serve(world) as service:
            await world.open_issue()
            await world.label()
            service.stop(signal.SIGKILL)
        for state in ("preparing", "running", "collecting"):
            async with serve(world) as service:
                await wait_for_state(world, service, state)
                service.stop(signal.SIGKILL)
        async with serve(world) as service:
            await world.wait_for_reply("[report](http")
            while await fetch_states(world):
                await asyncio.sleep(0.05)
            status, _ = await asyncio.to_thread(service.stop, signal.SIGTERM)
        assert status == 0
        assert world.digest()
        assert len(world.statuses()) == len(world.reports()) == 1
        await asyncio.to_thread(program.wait_until_no_process, str(tmp_path / "machine"))
