"""The service gets signals, as a process of its own: it stops in order, stops at once, or reads its file again."""

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
UNFINISHED = b"POST /webhook HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"


async def begin(world: World, service: program.Running) -> None:
    """An agent is at work."""
    await world.open_issue()
    await world.label()
    await wait_for_state(world, service, "running")


@pytest.mark.on_disk
@pytest.mark.slow(20)
async def test_an_agent_outlives_two_stops_of_the_service_and_a_reload_of_its_configuration(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    async with open_world(tmp_path, on_real_machine=True, agent=AGENT.format(go=str(go))) as world:
        await world.playground.stop_service()
        async with serve(world) as service:
            await begin(world, service)
            # A request that never ends keeps it from stopping by itself. A second signal ends it at once.
            with socket.create_connection(("127.0.0.1", world.playground.service_port)) as slow:
                slow.sendall(UNFINISHED)
                assert b"100 Continue" in await asyncio.to_thread(slow.recv, 100), "it waits for the rest"
                service.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(service.wait_for, "service.stopping")
                status, seconds = await asyncio.to_thread(service.stop, signal.SIGTERM)
            assert status == -signal.SIGTERM
            assert seconds < 30

        async with serve(world) as service:
            await wait_for_state(world, service, "running")
            status, seconds = await asyncio.to_thread(service.stop, signal.SIGTERM)
            assert status == 0
            assert seconds < 30
            assert program.find_processes(str(tmp_path / "machine")), "the agent goes on"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", world.playground.service_port))

        config = world.playground.config
        as_it_was = config.read_text()
        async with serve(world) as service:
            await wait_for_state(world, service, "running")
            config.write_text(as_it_was.replace("slots = 2", "slots = 0"))
            service.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(service.wait_for, "config.not_reloaded")
            # The machine on which the job runs goes, and another one comes in its place.
            config.write_text(as_it_was.replace('name = "gpu-1"', 'name = "gpu-2"'))
            service.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(service.wait_for, "config.reloaded")
            go.touch()
            await world.wait_for_reply("[report](http")
            assert len(world.reports()) == len(world.statuses()) == 1
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
