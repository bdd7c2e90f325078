"""`ptq-bot machines`, as the processes that an operator starts beside the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bot.operations.machines import render_machines
from runner.model.inventory import Inventory, Sighting
from runner.model.machines import Gpu, Lease, Machine, MachineState, Outage
from runner.rows.machine_states import fetch_machine_states, save_inventory, save_outage
from tests.bot.test_cli import configure
from tests.support import program
from tests.support.jobs import NOON, open_database

pytestmark = pytest.mark.slow


async def test_a_machine_is_drained_and_comes_back_by_word_of_the_operator(tmp_path: Path) -> None:
    config = configure(tmp_path, 0)
    async with open_database(tmp_path) as database:
        async with database.write() as connection:
            await save_outage(connection, "here", Outage("it is on\nfire \x1b[2J", True, NOON, NOON, NOON))
        drained = program.run("machines", "drain", "here", "--config", config)
        assert (drained.returncode, drained.stderr) == (0, "")
        listed = program.run("machines", "list", "--config", config).stdout
        assert listed.startswith("here  0/1 slots  drained by ")
        assert "out since 2026-03-01 12:00:00 UTC: it is on fire" in listed
        assert "\x1b" not in listed
        resumed = program.run("machines", "resume", "here", "--config", config)
        assert (resumed.returncode, resumed.stdout) == (0, "here gets jobs again, if it answers.\n")
        assert program.run("machines", "list", "--config", config).stdout == "here  0/1 slots  in use\n"
        async with database.read() as connection:
            assert await fetch_machine_states(connection) == {}


async def test_an_unknown_machine_is_refused_with_the_names_of_those_there_are(tmp_path: Path) -> None:
    config = configure(tmp_path, 0)
    async with open_database(tmp_path):
        for verb in ("drain", "resume"):
            done = program.run("machines", verb, "her\x1be", "--config", config)
            assert done.returncode == 2
            assert done.stderr.startswith("ptq-bot: there is no machine ")
            assert done.stderr.endswith("; configured: here\n")
            assert "\x1b" not in done.stderr


def test_without_a_database_the_operator_is_told(tmp_path: Path) -> None:
    done = program.run("machines", "list", "--config", configure(tmp_path, 0))
    assert done.returncode == 1
    assert "the file does not exist" in done.stderr


def test_machines_stand_in_columns() -> None:
    machines = [Machine("a", "/srv", slots=12), Machine("gpu-long", "/srv")]
    states = {"a": MachineState(drained_at=NOON, drained_by="root")}
    assert render_machines(machines, states, [Lease("a", 3, "job")], {}) == (
        "a         1/12 slots  drained by root at 2026-03-01 12:00:00 UTC\n"
        "          jobs: job\ngpu-long  0/1 slots   in use\n"
    )


H100 = [Gpu("nvidia", f"GPU-{number}", (), "NVIDIA H100", 81559, "550.54") for number in range(8)]


def render(machine: Machine, **seen: Any) -> list[str]:
    """What is said of a machine on which this was seen."""
    had: dict[str, Any] = {"gpus": tuple(H100), "gpu_trouble": None, "strangers": (), "stranger_count": 0, **seen}
    inventory = Inventory(had["gpus"], had["gpu_trouble"], 812_300_000_000, 2_000_000_000_000, None)
    sighting = Sighting(NOON, inventory, had["strangers"], had["stranger_count"])
    return render_machines([machine], {}, [], {machine.name: sighting}).splitlines()[1:]


def test_below_a_machine_stands_what_it_has_and_how_slots_share_it() -> None:
    disk = "   812.3 of 2,000.0 GB free at 2026-03-01 12:00:00 UTC"
    assert render(Machine("a", "/srv", slots=3)) == [
        "   8 × NVIDIA H100, 81559 MiB, driver 550.54; 2 or 3 for each slot",
        disk,
    ]
    assert render(Machine("a", "/srv", slots=9))[0].endswith("; 1 for each slot, shared between slots")
    assert render(Machine("a", "/srv", slots=3, gpus_per_slot=4))[0].endswith("; 4 for each slot, shared between slots")
    assert render(Machine("a", "/srv", slots=9, gpus_per_slot=0))[0].endswith("; each job sees all of them")
    assert render(Machine("a", "/srv"), gpus=()) == [disk]


def test_of_a_machine_it_is_said_what_is_odd() -> None:
    machine, odd = Machine("a", "/srv"), {"strangers": ("00000000aa",), "stranger_count": 3}
    said = render(machine, gpus=(), gpu_trouble="nvidia-smi failed:\nall", **odd)
    assert said[0] == "   GPUs unknown: nvidia-smi failed: all"
    assert said[2] == "   folders below jobs/ that this service does not know: 3 (00000000aa, ...)"


def test_faults_of_a_machine_that_still_gets_jobs_are_said() -> None:
    assert "2 jobs in a row could not be prepared there" in render_machines(
        [Machine("a", "/srv")], {"a": MachineState(faults=2)}, [], {}
    )


async def test_what_was_seen_on_a_machine_is_listed_and_a_resume_forgets_it(tmp_path: Path) -> None:
    config = configure(tmp_path, 0)
    async with open_database(tmp_path) as database:
        odd = Gpu("nvidia", "GPU-0", (), "H200 \x1b[2J", None, "580")
        async with database.write() as connection:
            await save_inventory(connection, "here", Inventory((odd,), None, 10**9, 10**10, None), NOON)
        listed = program.run("machines", "list", "--config", config).stdout
        assert "1 × H200" in listed
        assert "1.0 of 10.0 GB free" in listed
        assert "\x1b" not in listed
        program.run("machines", "resume", "here", "--config", config)
        assert program.run("machines", "list", "--config", config).stdout == "here  0/1 slots  in use\n"
