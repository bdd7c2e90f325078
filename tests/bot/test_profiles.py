"""The recipes of repositories that ship with the service."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from bot.config.policy_tables import PROFILES, RepositoryTable, read_profiles
from bot.config.settings import load_settings
from runner.model.environment import Limits
from tests.bot.test_cli import configure
from tests.support.recipe_programs import find_missing


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_shipped_profile_is_a_whole_recipe(path: Path) -> None:
    table = RepositoryTable(profile=path.stem, agent="mine")
    assert all((table.setup, table.smoke_test, table.lint, table.import_names, table.tools))
    assert {"agent", "clone_url", "labels"}.isdisjoint(tomllib.loads(path.read_text()))


def test_what_a_repository_says_itself_comes_before_its_profile() -> None:
    table = RepositoryTable.model_validate(
        {"profile": "pytorch", "agent": "mine", "lint": ["true"], "limits": {"timeout_s": 7}}
    )
    limits = table.limits.over(Limits())
    assert (table.lint, table.import_names[0]) == (("true",), "torch")
    assert (limits.timeout_s, limits.base_timeout_s) == (7, 28_800)


def test_an_unknown_profile_is_refused_with_the_names_of_those_there_are(tmp_path: Path) -> None:
    config = configure(tmp_path, 0, ('agent = "mine"\n', 'agent = "mine"\nprofile = "pytorhc"\n'))
    with pytest.raises(Exception, match="unknown profile; available: pytorch, pytorch-python, torchtitan"):
        load_settings(config)


ON_MACHINES: Mapping[str, frozenset[str]] = {
    "pytorch": frozenset({"bash", "ccache", "compute-sanitizer", "gdb", "make", "uv", "uvx"}),
    "pytorch-python": frozenset({"gdb", "uv", "uvx"}),
    "torchtitan": frozenset({"uv", "uvx"}),
}
"""What each profile's first lines ask of a machine."""


@pytest.mark.parametrize("name", sorted(read_profiles()))
def test_a_profile_installs_every_program_that_it_calls_or_asks_its_machine_for_it(name: str) -> None:
    assert find_missing(read_profiles()[name], ON_MACHINES[name]) == []


def test_a_program_that_nobody_installs_is_found() -> None:
    profile = read_profiles()["pytorch"]
    machine = ON_MACHINES["pytorch"]
    spin = [line for line in profile["setup"] if not line.endswith(" pytest spin")]
    assert {"spin", "pytest", "py-spy"} <= {*find_missing({**profile, "setup": spin}, machine)}
    group = [line for line in profile["setup"] if "--group dev" not in line]
    assert {"cmake", "ninja"} <= {*find_missing({**profile, "setup": group}, machine)}
    assert find_missing(profile, machine - {"ccache"}) == ["ccache"]
    titan = read_profiles()["torchtitan"]
    assert find_missing({**titan, "setup": titan["setup"][:2]}, {"uv"})[:2] == ["pre-commit", "pyrefly"]


def test_the_linters_of_shipped_profiles_work_without_a_network() -> None:
    for name in ("pytorch", "pytorch-python"):
        profile = read_profiles()[name]
        assert profile["lint"] == [profile["setup"][-1]] == ["UV_OFFLINE=1 spin quickfix"]
        assert profile["setup"].index("git update-ref refs/remotes/origin/main HEAD") < len(profile["setup"]) - 2
        assert profile["update"][0] == "git update-ref refs/remotes/origin/main HEAD"
    titan = read_profiles()["torchtitan"]
    assert titan["setup"][-1] == titan["update"][-1] == "pre-commit install-hooks"


def test_nightly_builds_come_from_an_index_that_the_profile_names() -> None:
    for profile in read_profiles().values():
        for line in filter(lambda line: "--pre" in line, profile["setup"]):
            assert "--index-url https://download.pytorch.org/whl/nightly/" in line
