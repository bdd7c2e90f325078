"""The service gets signals, as a process of its own: it stops in order, stops at once, or reads its file anew."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path

import pytest

from tests.stories.test_restart import serve, wait_for_state
from tests.support import program
from tests.support.world import FIX, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

AGENT = WRITE_REPORT + "print('at work', flush=True)\nwhile not os.path.exists({go!r}): time.sleep(0.1)\n" + FIX


async def begin(world: World, service: program.Running) -> None:
    """An agent is at work."""
    await world.open_issue()
    await world.label()
    await wait_for_state(world, service, "running")


def agent_that_waits_for(go: Path) -> str:
    return AGENT.format(go=str(go))


async def test_a_stop_leaves_the_agent_at_work_and_the_next_start_brings_its_report(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_world(tmp_path, on_real_machine=True, agent=agent_that_waits_for(go)) as world:
        await world.playground.stop_service()
        async with serve(world) as service:
            await begin(world, service)
            status, seconds = await asyncio.to_thread(service.stop, signal.SIGTERM)
            assert status == 0
            assert seconds < 30
            assert program.find_processes(str(tmp_path / "machine")), "the agent goes on"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", world.playground.service_port))
        go.touch()
        async with serve(world) as service:
            await world.wait_for_reply("[report](http")
        assert len(world.reports()) == 1


async def test_a_second_signal_ends_it_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_world(tmp_path, on_real_machine=True, agent=agent_that_waits_for(go)) as world:
        await world.playground.stop_service()
        async with serve(world) as service:
            await begin(world, service)
            # A request that never ends keeps it from stopping by itself.
            with socket.create_connection(("127.0.0.1", world.playground.service_port)) as slow:
                slow.sendall(b"POST /webhook HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n12345")
                await asyncio.sleep(0.2)
                service.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(service.wait_for, "service.stopping")
                status, seconds = await asyncio.to_thread(service.stop, signal.SIGTERM)
            assert status == -signal.SIGTERM
            assert seconds < 30
        go.touch()
        async with serve(world):
            await world.wait_for_reply("[report](http")
        assert len(world.reports()) == 1


async def test_machines_and_repositories_are_read_anew_while_a_job_runs(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_world(tmp_path, on_real_machine=True, agent=agent_that_waits_for(go)) as world:
        await world.playground.stop_service()
        config = world.playground.config
        as_it_was = config.read_text()
        async with serve(world) as service:
            await begin(world, service)
            config.write_text(as_it_was.replace("slots = 2", "slots = 0"))
            service.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(service.wait_for, "config.not_reloaded")
            # The machine on which the job runs goes, and another one comes in its place.
            config.write_text(as_it_was.replace('name = "gpu-1"', 'name = "gpu-2"'))
            service.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(service.wait_for, "config.reloaded")
            go.touch()
            await world.wait_for_reply("[report](http")
            lines = [json.loads(line) for line in service.text().splitlines()]
            (refused,) = [line for line in lines if line["event"] == "config.not_reloaded"]
            (taken,) = [line for line in lines if line["event"] == "config.reloaded"]
            assert refused["level"] == "error"
            assert "machines[0].slots" in refused["problems"][0]
            assert (taken["added"], taken["removed"]) == (["machines.gpu-2"], ["machines.gpu-1"])
            await world.comment("/ptq retry")
            await world.wait_for_reply("[report](http", count=2)
            await asyncio.to_thread(service.stop, signal.SIGTERM)
            leased = [json.loads(line) for line in service.text().splitlines()]
            machines = [line["machine"] for line in leased if line["event"] == "lease.freed"]
            assert machines[0] == "gpu-1"
            assert {*machines[1:]} <= {"gpu-2"}
