"""What the machine-side program finds on its machine, with an nvidia-smi of our own on its PATH."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.verbs.gpu_tools import find_minors, read_cards
from runner.jobd.verbs.inventory import find_gpus
from runner.model.inventory import parse_inventory
from tests.support.jobd import Jobd, processes_with, wait_until

pytestmark = pytest.mark.slow

TWO = """\
0, GPU-6a1c5e0e-0001, 00000000:19:00.0, 81559, 550.54.15, [N/A], NVIDIA H100 80GB HBM3
1, GPU-6a1c5e0e-0002, 00000000:3B:00.0, 81559, 550.54.15, [N/A], NVIDIA H100 80GB HBM3
"""


@pytest.fixture
def smi(tmp_path: Path, jobd: Jobd) -> Path:
    """Where the machine's nvidia-smi lies."""
    (tmp_path / "bin").mkdir()
    jobd.env["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return tmp_path / "bin" / "nvidia-smi"


def write(program: Path, source: str) -> None:
    program.write_text(source)
    program.chmod(0o755)


def take(jobd: Jobd) -> dict[str, Any]:
    answer = jobd.call("inventory")
    parse_inventory(answer)
    return answer


def test_gpus_are_told_with_model_memory_and_driver(jobd: Jobd, smi: Path) -> None:
    asked = smi.with_name("asked")
    write(smi, f'#!/bin/sh\necho "$@" > {asked}\ncat <<EOF\n{TWO}EOF\n')
    answer = take(jobd)
    model = {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "driver": "550.54.15"}
    assert answer["gpus"] == [
        {"vendor": "nvidia", "id": "GPU-6a1c5e0e-0001", "files": ["nvidia0"], **model},
        {"vendor": "nvidia", "id": "GPU-6a1c5e0e-0002", "files": ["nvidia1"], **model},
    ]
    assert answer["gpu_trouble"] is None
    assert asked.read_text() == (
        "--query-gpu=index,uuid,pci.bus_id,memory.total,driver_version,mig.mode.current,name "
        "--format=csv,noheader,nounits\n"
    )


def test_the_programs_of_a_drivers_container_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    write(tmp_path / "nvidia-smi", f"#!/bin/sh\necho '{TWO.splitlines()[0]}'\n")
    assert [gpu["id"] for gpu in find_gpus(folders=str(tmp_path))[0]] == ["GPU-6a1c5e0e-0001"]


def test_a_machine_without_nvidia_smi_has_no_gpus_and_no_trouble(jobd: Jobd) -> None:
    jobd.env["PATH"] = str(Path(sys.executable).parent)
    answer = take(jobd)
    assert (answer["gpus"], answer["gpu_trouble"]) == ([], None)


@pytest.mark.parametrize(
    ("source", "trouble"),
    [
        ("#!/bin/sh\necho 'Failed to initialize NVML:\n Driver/library version mismatch'\nexit 18\n", "Failed to init"),
        ("#!/bin/sh\necho broken >&2\nexit 9\n", "nvidia-smi failed: broken"),
        ("#!/bin/sh\nexit 3\n", "nvidia-smi failed: exit status 3"),
        ("#!/bin/sh\nkill -SEGV $$\n", "nvidia-smi failed: exit status -11"),
        ("#!/bin/sh\necho a lot of nonsense\n", "nvidia-smi gave an answer that cannot be read"),
        ("#!/bin/sh\nprintf '\\377, x, y, z, 1, 2\\n'\n", "nvidia-smi gave an answer that cannot be read"),
        ("#!/nowhere\n", "nvidia-smi cannot run: No such file or directory"),
    ],
)
def test_why_gpus_cannot_be_told_is_a_clause(jobd: Jobd, smi: Path, source: str, trouble: str) -> None:
    write(smi, source)
    answer = take(jobd)
    assert answer["gpus"] == []
    assert trouble in answer["gpu_trouble"]
    assert "\n" not in answer["gpu_trouble"]


@pytest.mark.parametrize("hangs", ["while :; do sleep 1000; done", "yes", "sleep 1000 & wait"])
def test_an_nvidia_smi_that_hangs_or_says_too_much_is_not_waited_for(
    jobd: Jobd, smi: Path, hangs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(smi, f"#!/bin/sh\ntrap '' TERM INT HUP\n{hangs}\n")
    monkeypatch.setenv("PATH", jobd.env["PATH"])
    began = time.monotonic()
    assert find_gpus(timeout_s=0.5) == ([], "nvidia-smi did not end within 0.5 seconds")
    assert time.monotonic() - began < 30
    wait_until(lambda: not processes_with(str(smi)))


def test_what_an_nvidia_smi_leaves_running_holds_nobody_up(jobd: Jobd, smi: Path) -> None:
    write(smi, f"#!/bin/sh\nsleep 60 &\ncat <<EOF\n{TWO}EOF\n")
    began = time.monotonic()
    assert len(take(jobd)["gpus"]) == 2
    assert time.monotonic() - began < 30


def test_memory_that_is_the_machines_own_is_not_counted() -> None:
    (card,) = read_cards("0, GPU-1, 0000000F:01:00.0, [N/A], 580.95, [N/A], NVIDIA GB10, the large one\n", {})
    assert (card.gpu.memory_mib, card.gpu.name) == (None, "NVIDIA GB10, the large one")


def test_the_number_of_a_device_file_is_the_drivers_and_not_the_order_on_the_bus(tmp_path: Path) -> None:
    for place, minor in (("0000:19:00.0", 1), ("0000:3b:00.0", 0)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text(
            f"Model: \t\t NVIDIA H100\nBus Location: \t {place}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "information").write_text("Device Minor: \t 7\n")
    assert [card.gpu.files for card in read_cards(TWO, find_minors(tmp_path))] == [("nvidia1",), ("nvidia0",)]
    assert find_minors(tmp_path / "nowhere") == {}


def test_the_room_on_the_disk_of_the_workspace_is_told(jobd: Jobd) -> None:
    answer, disk = take(jobd), os.statvfs(jobd.workspace)
    assert answer["total_bytes"] == disk.f_blocks * disk.f_frsize
    assert abs(answer["free_bytes"] - disk.f_bavail * disk.f_frsize) < 10**9
    assert answer["free_inodes"] is None or answer["free_inodes"] > 0


def test_folders_of_jobs_are_listed_the_oldest_first_and_nothing_else_is(jobd: Jobd) -> None:
    assert jobd.call("jobs")["jobs"] == []
    jobs = jobd.workspace / "jobs"
    for name, at in (("00000000aa", 300), ("00000000bb", 100), ("00000000cc", 200), ("odd", 1), ("00000000DD", 1)):
        (jobs / name).mkdir(parents=True)
        os.utime(jobs / name, (at, at))
    (jobs / "00000000ee").write_text("no folder")
    (jobs / "00000000ff").symlink_to(jobs / "00000000aa")
    assert jobd.call("jobs")["jobs"] == [
        {"id": "00000000bb", "mtime": 100},
        {"id": "00000000cc", "mtime": 200},
        {"id": "00000000aa", "mtime": 300},
    ]


def test_every_command_of_a_job_is_told_the_gpus_of_its_slot(jobd: Jobd) -> None:
    say = ["echo in $CUDA_VISIBLE_DEVICES"]
    gpus: list[dict[str, Any]] = [{"vendor": "nvidia", "id": name, "files": []} for name in ("GPU-aa", "GPU-bb")]
    prepared = jobd.prepare(gpus=gpus, setup=say, smoke_test=say)
    assert prepared["state"] == "done", prepared
    assert prepared["log"].count(b"\nin GPU-aa,GPU-bb\n") == 2
    assert b"in GPU-aa,GPU-bb\n" in jobd.agent(say[0])["log"]
    assert b"\nin GPU-aa,GPU-bb\n" in jobd.collect(lint=say)["log"]


def test_what_the_operator_says_of_gpus_for_an_agent_counts(jobd: Jobd) -> None:
    jobd.prepare(gpus=[{"vendor": "nvidia", "id": "GPU-aa", "files": ["nvidia0"]}])
    assert b"in mine\n" in jobd.agent("echo in $CUDA_VISIBLE_DEVICES", env={"CUDA_VISIBLE_DEVICES": "mine"})["log"]
