"""Which programs a machine lacks, and what an operator is told about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.config.needed_programs import FOR_GPUS, HOW_TO_INSTALL, explain_install, find_missing, list_names
from bot.config.policy_tables import RepositoryTable, read_profiles
from tests.bot.test_bases import write_config
from tests.support import program
from tests.support.jobd import make_repository

NVIDIA = ["nvidia"]
PYTORCH = RepositoryTable.model_validate({"profile": "pytorch", "agent": "mine"})


def test_a_machine_with_everything_lacks_nothing() -> None:
    names = list_names([PYTORCH], NVIDIA)
    assert {"uv", "make", "ccache", "c++", "gdb", "compute-sanitizer", "nvcc"} <= {*names}
    assert [*find_missing(PYTORCH, dict.fromkeys(names, ""), NVIDIA)] == []


def test_what_is_missing_is_named_with_what_it_is_for() -> None:
    found = {"make": "", "ccache": "", "c++": "", "bash": ""}
    missing = {one.name: one.needed for one in find_missing(PYTORCH, found, [])}
    assert missing == {"uv": True, "gdb": False}
    on_gpus = {one.name: one.needed for one in find_missing(PYTORCH, found, NVIDIA)}
    assert on_gpus == {"uv": True, "nvcc": True, "gdb": False, "compute-sanitizer": False}
    assert {one.name for one in find_missing(PYTORCH, found, ["amd"])} == {"uv", "gdb"}, "CUDA is NVIDIA's"


def test_a_compiler_that_is_found_without_the_path_is_not_missing() -> None:
    there = dict.fromkeys(list_names([PYTORCH], NVIDIA), "")
    found = {**there, "nvcc": None}
    assert [*find_missing(PYTORCH, found, NVIDIA)] == []
    found["/usr/local/cuda/bin/nvcc"] = None
    assert [one.name for one in find_missing(PYTORCH, found, NVIDIA)] == ["nvcc"]


def test_a_tool_that_setup_installs_is_not_asked_of_the_machine() -> None:
    assert "py-spy" in PYTORCH.tools
    assert "py-spy" not in list_names([PYTORCH], NVIDIA)


@pytest.mark.parametrize("name", sorted(read_profiles()))
def test_it_is_said_how_to_install_each_program_of_a_shipped_profile(name: str) -> None:
    table = RepositoryTable.model_validate({"profile": name, "agent": "mine"})
    assert {*table.programs, *table.tools} <= HOW_TO_INSTALL.keys()
    assert HOW_TO_INSTALL.keys() >= FOR_GPUS.keys()
    assert explain_install("frobnicate").startswith("install frobnicate there")


@pytest.mark.slow
def test_no_base_is_begun_without_the_programs_that_it_needs(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "origin")
    lines = ['create_venv = ["mkdir"]', 'setup = ["echo being built"]', 'tools = ["no-such-tool"]']
    config = write_config(tmp_path, repository, *lines, 'programs = ["sh", "no-such-make"]')
    config.write_text(config.read_text().replace('kind = "local"', 'kind = "local"\nlabels = ["rocm"]'))
    refused = program.run("machines", "prepare", "here", "--config", config)
    assert "here: it has the label rocm, but amd-smi or rocm-smi lists no GPU there: install AMD's" in refused.stdout
    assert refused.returncode == 1
    assert "octo/widgets: no-such-make is not installed: install no-such-make there" in refused.stdout
    assert "octo/widgets: no-such-tool is not installed, and agents are told about it: " in refused.stdout
    assert "being built" not in refused.stdout
    config.write_text(config.read_text().replace(', "no-such-make"', ""))
    made = program.run("machines", "prepare", "here", "--config", config)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "no-such-tool is not installed" in made.stdout
    assert "\nbeing built\n" in made.stdout
