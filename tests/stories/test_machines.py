"""Machines come and go, and no job is lost in silence: every fault is a real one, on real processes."""

from __future__ import annotations

import asyncio
import html
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bot.demo.playground import PACE
from runner.jobd.sandbox.processes import find_processes, kill_processes
from runner.model.machines import FAULTS_IN_A_ROW
from runner.rows import job_rows
from runner.rows.machine_states import count_fault, fetch_warm_bases
from tests.support.machines import open_server
from tests.support.proxy import StallingSshServer
from tests.support.quick_machine import QuickMachine
from tests.support.world import FIX, PATIENCE_S, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for signs between a test and its agents. Jobs on this host do not see the folder of `ptq.toml`."""
    return tmp_path_factory.mktemp("shared")


def until(sign: Path) -> str:
    """A line of an agent that waits for a file, and then goes on."""
    return f"print('at work', flush=True)\nwhile not os.path.exists({str(sign)!r}): time.sleep(0.02)\n"


def second_machine(folder: Path, python: str | Path = sys.executable) -> str:
    places = f"workspace = {json.dumps(str(folder / 'second'))}\npython = {json.dumps(str(python))}\n"
    return f'[[machines]]\nname = "gpu-2"\nkind = "local"\nlabels = ["gpu"]\nmin_free_gb = 0\n{places}'


async def start(world: World) -> None:
    await world.open_issue()
    await world.label()


async def fetch_machine(world: World, name: str = "gpu-1") -> dict[str, Any]:
    """What `GET /status` says of a machine."""
    async with aiohttp.ClientSession() as session, session.get(f"{world.playground.service.url}/status") as answer:
        machines: list[dict[str, Any]] = (await answer.json())["machines"]
    return next(machine for machine in machines if machine["name"] == name)


async def wait_for_machine(world: World, *, out: bool) -> float:
    """Wait until a machine is out, or back, and return the seconds that it took."""
    began = time.monotonic()
    while ((await fetch_machine(world))["out_since"] is not None) is not out:
        assert time.monotonic() - began < PATIENCE_S, await fetch_machine(world)
        await asyncio.sleep(0.2)
    return time.monotonic() - began


@pytest.mark.on_disk
@pytest.mark.slow(20)
async def test_a_stalled_network_is_noticed_and_the_job_goes_on_after_it(tmp_path: Path) -> None:
    ssh, go, pace = StallingSshServer(tmp_path / "ssh"), tmp_path / "go", replace(PACE, silence_s=4.0)
    await ssh.start()
    try:
        async with open_world(tmp_path, agent=WRITE_REPORT + until(go) + FIX, ssh=ssh, pace=pace) as world:
            await start(world)
            await world.wait_for_job("running")
            ssh.stall()
            assert await wait_for_machine(world, out=True) < 30, "a command by itself may take a minute"
            assert "gpu-1 cannot be reached" in await world.wait_for_reply("**Waiting:**")
            ssh.resume()
            await wait_for_machine(world, out=False)
            go.touch()
            await world.wait_for_report()
            assert world.digest()
            assert len(await world.jobs()) == 1
    finally:
        await ssh.stop()


@pytest.mark.on_disk
@pytest.mark.sshd
async def test_a_cut_connection_and_a_restarted_sshd_cost_a_running_job_nothing(tmp_path: Path) -> None:
    ssh, go = open_server("openssh", tmp_path / "ssh"), tmp_path / "go"
    (tmp_path / "ssh").mkdir()
    await ssh.start()
    try:
        async with open_world(tmp_path, agent=WRITE_REPORT + until(go) + FIX, ssh=ssh) as world:
            await start(world)
            await world.wait_for_job("running")
            await ssh.cut_connections()
            await asyncio.sleep(0.5)
            await ssh.stop()
            await asyncio.sleep(0.5)
            await ssh.start()
            go.touch()
            await world.wait_for_report()
            assert world.digest()
    finally:
        await ssh.stop()


async def test_a_report_survives_a_reboot_and_the_next_start_removes_what_the_job_left_behind(
    tmp_path: Path,
) -> None:
    agent = WRITE_REPORT + FIX + until(tmp_path / "never")
    async with open_world(tmp_path, on_real_machine=True, agent=agent) as world:
        await start(world)
        job = await world.wait_for_job("running")
        await world.wait_for_log(job.id, b"at work")
        await world.playground.embedded_ssh.stop()
        await asyncio.to_thread(kill_processes, job.id)
        await world.playground.embedded_ssh.start()
        report = await world.wait_for_report()
        assert "the agent was killed from outside, or its machine was restarted" in report
        assert "It is fixed." in report
        assert "Diff: 1 file, +1 −1" in report
        assert len(await world.jobs()) == 1, "what was found is worth more than another attempt"

        jobs = tmp_path / "machine" / "workspace" / "jobs"
        left, unknown = jobs / job.id, jobs / "00000000aa"
        assert not left.exists()
        await world.playground.stop_service()
        left.mkdir()
        unknown.mkdir()
        await world.playground.start_service()
        await world.wait(lambda: not left.exists() or None, "the end of the folder")
        while "does not know: 1 (00000000aa)" not in await world.operate("machines", "list"):
            await asyncio.sleep(0.5)
        assert unknown.exists(), "an unknown folder stays"


async def test_a_machine_that_is_gone_for_good_costs_one_more_attempt_on_another(tmp_path: Path, shared: Path) -> None:
    began = shared / "began"
    first = f"if not os.path.exists({str(began)!r}):\n    open({str(began)!r}, 'w')\n    time.sleep(600)\n"
    more_toml = f"[limits]\nunreachable_after_s = 1\n{second_machine(tmp_path)}"
    agent = WRITE_REPORT + first + FIX
    async with open_world(
        tmp_path, on_real_machine=True, agent=agent, more_toml=more_toml, writable=(shared,)
    ) as world:
        await start(world)
        lost = await world.wait_for_job("running")
        assert lost.machine == "gpu-1"
        await world.wait(lambda: began.exists() or None, "the agent's first sign")
        await world.playground.embedded_ssh.stop()
        report = await world.wait_for_reply("### Lost")
        assert "machine gpu-1 can no longer be reached" in report
        assert "Restarted automatically as [attempt 2]" in report
        await world.wait_for_reply("<!-- ptq:report=", 2)
        assert world.digest()
        again = next(job for job in await world.jobs() if job.replaces)
        assert (again.replaces, again.attempt, again.machine, again.state) == (lost.id, 2, "gpu-2", "succeeded")
        assert find_processes(lost.id), "unreachable is not dead"
        async with world.playground.service.context.db.read() as connection:
            leases = await job_rows.fetch_leases(connection)
        assert lost.id in [lease.job_id for lease in leases], "its slot may still be in use"
        await world.playground.embedded_ssh.start()
        await world.settle()
        assert not find_processes(lost.id)
        await wait_for_machine(world, out=False)
        assert (len(world.reports()), len(world.statuses()), len(await world.jobs())) == (2, 2, 2)


async def test_a_machine_that_goes_while_it_prepares_costs_one_more_attempt_too(tmp_path: Path, shared: Path) -> None:
    setup = f"setup = [{json.dumps(f'until [ -e {shared}/go ]; do sleep 0.1; done')}]"
    limits = "[limits]\nunreachable_after_s = 1\n"
    async with open_world(tmp_path, on_real_machine=True, more_toml=limits, repository_toml=setup) as world:
        await start(world)
        await world.wait_for_reply("preparing the environment on `gpu-1`")
        await world.wait_for_reply("Waiting:** machine gpu-1 is building this repository's base environment")
        await world.playground.embedded_ssh.stop()
        assert "Restarted automatically as [attempt 2]" in await world.wait_for_reply("### Lost")
        again, lost = await world.jobs()
        assert again.replaces == lost.id
        await world.comment("/ptq cancel")
        await world.playground.embedded_ssh.start()
        await world.settle()
        assert not find_processes(lost.id)


async def test_jobs_wait_for_a_machine_that_is_away_or_drained(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    async with open_world(tmp_path, agent=WRITE_REPORT + until(go) + FIX) as world:
        machine = world.playground.ssh
        assert isinstance(machine, QuickMachine)
        machine.is_silent = True
        await start(world)
        await world.wait_for_reply("no machine can be used (gpu-1: ")
        assert await fetch_machine(world) | {"out_since": "", "has": None} == {
            **{"name": "gpu-1", "slots": 2, "leased": 0, "drained_since": None, "out_since": "", "has": None},
            "trouble": "it does not answer",
        }
        machine.is_silent = False
        await world.wait_for_job("running")
        assert (await fetch_machine(world))["trouble"] is None

        assert "gets no new jobs" in await world.operate("machines", "drain", "gpu-1")
        await start(world)
        await world.wait_for_reply("its operator has drained it")
        go.touch()
        world.number -= 1
        await world.wait_for_reply("[report](http")
        assert world.digest(), "a drained machine finishes its job"
        while await world.leases():
            await asyncio.sleep(0.05)
        await world.operate("machines", "resume", "gpu-1")
        world.number += 1
        await world.wait_for_report()


GPU_TOOLS = Path(__file__).parents[1] / "payloads" / "gpus"
"""What the tools of GPU vendors print."""

NVIDIA_SMI = """cat <<EOF
0, GPU-aa, 00000000:19:00.0, 81559, 550.54.15, Disabled, NVIDIA H100
1, GPU-bb, 00000000:3B:00.0, 81559, 550.54.15, Disabled, NVIDIA H100
EOF
"""


def give_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Let this host have a tool of a GPU vendor."""
    (folder / "bin").mkdir()
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}")
    (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


async def test_two_jobs_on_one_machine_have_gpus_of_their_own(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_tool(tmp_path, monkeypatch, "nvidia-smi", NVIDIA_SMI)
    go = shared / "go"
    say = "print('mine:', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
    told = "print('told:', *[line for line in open(os.environ['PTQ_PROMPT_FILE']) if 'GPU:' in line], flush=True)\n"
    agent = WRITE_REPORT + told + say + until(go) + FIX
    more_toml = f"{second_machine(tmp_path)}slots = 2\n"
    async with open_world(tmp_path, on_real_machine=True, agent=agent, more_toml=more_toml) as world:
        await world.operate("machines", "drain", "gpu-1")
        await start(world)
        first = await world.wait_for_job("running")
        await world.wait_for_log(first.id, b"mine: GPU-aa\n")
        await start(world)
        second = await world.wait_for_job("preparing")
        await world.wait_for_log(second.id, b"mine: GPU-bb\n")
        assert "2 × NVIDIA H100, 81559 MiB, driver 550.54.15; 1 for each slot\n" in await world.operate(
            "machines", "list"
        )
        seen = (await fetch_machine(world, "gpu-2"))["has"]
        assert [gpu["name"] for gpu in seen["gpus"]] == ["NVIDIA H100"] * 2
        await world.wait_for_log(first.id, "told: - GPU: 1 × NVIDIA H100, 81559 MiB, driver 550.54.15\n".encode())
        await world.comment("/ptq cancel")
        world.number -= 1
        go.touch()
        shown = await world.wait_for_report()
        assert "**Seen by ptq-bot**, in the environment: GPU `1 × NVIDIA H100, 81559 MiB, driver 550.54.15`, " in shown


def lacking_git(folder: Path) -> Path:
    """An interpreter for a machine that has all a job needs, but for git."""
    (folder / "few").mkdir()
    for name in ("find", "chmod", "rm", "cp", "mkdir", "sh"):
        (folder / "few" / name).symlink_to(shutil.which(name) or name)
    (folder / "python").write_text(f'#!/bin/sh\nPATH={folder / "few"} exec {sys.executable} "$@"\n')
    (folder / "python").chmod(0o755)
    return folder / "python"


async def test_a_machine_on_which_no_job_can_be_prepared_is_out_and_the_next_one_runs_elsewhere(tmp_path: Path) -> None:
    more_toml = second_machine(tmp_path, lacking_git(tmp_path))
    async with open_world(tmp_path, on_real_machine=True, more_toml=more_toml) as world:
        await world.operate("machines", "drain", "gpu-1")
        async with world.playground.service.context.db.write() as connection:
            for _ in range(FAULTS_IN_A_ROW - 1):
                await count_fault(connection, "gpu-2")
        assert (await fetch_machine(world, "gpu-2"))["out_since"] is None
        await start(world)
        await world.wait_for_report()
        why = "3 jobs in a row could not be prepared there, the last because git cannot be run there"
        assert why in await world.operate("machines", "list")
        await start(world)
        await world.wait_for_reply("**Waiting:**")
        await world.operate("machines", "resume", "gpu-1")
        assert (await world.wait_for_job("running")).machine == "gpu-1"
        async with world.playground.service.context.db.read() as connection:
            assert [base.machine for base in await fetch_warm_bases(connection)] == ["gpu-1"]


def skewed_python(folder: Path, offset: Path) -> Path:
    """An interpreter for a machine whose clock is wrong by the seconds that the file says."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "skewed"], check=True)
    (site,) = (folder / "skewed" / "lib").glob("python*/site-packages")
    (site / "sitecustomize.py").write_text(
        f"import time\nreal = time.time\ntime.time = lambda: real() + float(open({str(offset)!r}).read())\n"
    )
    return folder / "skewed" / "bin" / "python"


async def test_labels_choose_a_machine_whose_wrong_clock_changes_nothing_and_a_command_chooses_another(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, offset = shared / "go", shared / "offset"
    offset.write_text("25200")
    give_tool(tmp_path, monkeypatch, "amd-smi", f"exec cat {GPU_TOOLS}/amd-smi.txt\n")
    its_own = "assert os.environ['ROCR_VISIBLE_DEVICES'] == 'GPU-4162405e51bb99b0'\n"
    routes = 'routes = { "Module: ROCm" = ["rocm"] }\n'
    more_toml = second_machine(tmp_path, skewed_python(tmp_path, offset)).replace('["gpu"]', '["gpu", "rocm"]')
    agent = WRITE_REPORT + its_own + until(go) + FIX
    async with open_world(
        tmp_path, on_real_machine=True, agent=agent, more_toml=more_toml, repository_toml=routes
    ) as world:
        await world.open_issue()
        await world.label("module: rocm")
        await world.label()
        job = await world.wait_for_job("running")
        await world.wait_for_log(job.id, b"at work")
        offset.write_text("-25200")  # The clock jumps.
        await asyncio.sleep(1)
        go.touch()
        shown = await world.wait_for_report()
        assert world.digest()
        assert "GPU `1 × AMD Radeon RX 7800 XT, 16368 MiB, driver 6.17.7-ba14.fc43.x86_64`, " in shown
        assert [job.state for job in await world.jobs()] == ["succeeded"], "the agent was told the GPU"
        async with world.playground.service.context.db.read() as connection:
            meter = await job_rows.fetch_meter(connection, job.id)
        assert meter
        assert 1 < meter.usage.run_s < PATIENCE_S

        await world.comment("/ptq fix --machine gpu-1")
        await world.wait_for_job("preparing")
        jobs = {job.attempt: (job.machine, job.requires) for job in await world.jobs()}
        assert jobs == {1: ("gpu-2", ("rocm",)), 2: ("gpu-1", ())}
        async with aiohttp.ClientSession() as session:
            url = f"{world.playground.service.url}/jobs/{(await world.jobs())[1].id}"
            async with session.get(url) as answer:
                assert "a machine with rocm, because of the issue's labels" in html.unescape(await answer.text())


@asynccontextmanager
async def small_disk(folder: Path) -> AsyncIterator[None]:
    """A machine whose workspace has a few megabytes."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("to mount a small file system is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_disk_is_reported_as_such_and_the_next_job_has_room_again(tmp_path: Path) -> None:
    fill = "try: open(os.environ['TMPDIR'] + '/filler', 'wb').write(bytes(20 << 20))\nexcept OSError: pass\n"
    agent = f"{WRITE_REPORT}{fill}print('x' * 300000, flush=True)\ntime.sleep(60)\n"
    workspace = tmp_path / "machine" / "workspace"
    async with small_disk(workspace), open_world(tmp_path, on_real_machine=True, agent=agent) as world:
        await start(world)
        assert "the machine's disk is full" in await world.wait_for_report()
        assert shutil.disk_usage(workspace).free > 4 << 20
        assert (await fetch_machine(world))["trouble"] is None
