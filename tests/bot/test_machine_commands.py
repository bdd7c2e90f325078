"""`ptq-bot machines`, as the processes that an operator starts beside the service."""

from __future__ import annotations

from pathlib import Path

from bot.machine_commands import render_machines
from runner.machine_states import fetch_machine_states, save_outage
from runner.machines import Lease, Machine, MachineState, Outage
from tests.bot.test_cli import configure
from tests.support import program
from tests.support.jobs import NOON, open_database


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
    assert "there is no such file" in done.stderr


def test_machines_stand_in_columns() -> None:
    machines = [Machine("a", "/srv", slots=12), Machine("gpu-long", "/srv")]
    states = {"a": MachineState(drained_at=NOON, drained_by="root")}
    assert render_machines(machines, states, [Lease("a", 3, "job")]) == (
        "a         1/12 slots  drained by root at 2026-03-01 12:00:00 UTC\ngpu-long  0/1 slots   in use\n"
    )
