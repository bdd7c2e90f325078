"""The recipes of repositories that ship with the service."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from bot.config.needed_programs import list_names
from bot.config.policy_tables import PROFILES, RepositoryTable, read_profiles
from bot.config.settings import ConfigError, load_settings
from runner.model.environment import Limits
from runner.model.inventory import VENDORS
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


def use_own(folder: Path, **files: str) -> Path:
    """A configuration whose repository has the profile `own`, and a folder with these files beside it."""
    (folder / "mine").mkdir()
    for name, text in files.items():
        (folder / "mine" / name.replace("_", ".")).write_text(text)
    swap = ('agent = "mine"\n', 'agent = "mine"\nprofile = "own"\n')
    return configure(folder, 0, swap, ("[server]", '[profiles]\nfolder = "mine"\n\n[server]'))


def test_the_operators_own_profile_is_used_with_its_brief(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("Ask Ann.")
    config = use_own(tmp_path, own_toml='setup = ["make"]\nlint = ["tidy"]\nbrief = "own.md"\n', own_md="Use nox.")
    swap = ('profile = "own"', 'profile = "own"\nlint = ["tidier"]\nbrief = "other.md"')
    config.write_text(config.read_text().replace(*swap))
    settings = load_settings(config)
    ((name, table),) = settings.repos.items()
    assert (table.setup, table.lint) == (("make",), ("tidier",))
    assert table.as_rules(name, {}).brief == "Use nox.\n\nAsk Ann."


def test_the_operators_own_profile_comes_before_the_shipped_one_of_its_name(tmp_path: Path) -> None:
    config = use_own(tmp_path, torchtitan_toml='setup = ["make"]\n')
    config.write_text(config.read_text().replace('profile = "own"', 'profile = "torchtitan"'))
    (table,) = load_settings(config).repos.values()
    assert (table.setup, table.lint) == (("make",), ())


BROKEN = {
    "setup = make": "invalid TOML at line 1, column 9",
    'setpu = ["make"]': "setpu: unknown key; did you mean setup?",
    "lint = 7": "lint: must be a list",
    'brief = "missing.md"': "brief: does not exist: ",
    'agent = "mine"': "agent: only a repository's own table can have this key",
    "limits = { timeout = 7 }": "limits.timeout: unknown key; did you mean timeout_s?",
}


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_wrong_in_an_own_profile_is_reported_once_by_file_and_key(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(use_own(tmp_path, own_toml=text))
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'mine' / 'own.toml'}: {BROKEN[text]}")


def test_a_missing_folder_of_profiles_is_reported(tmp_path: Path) -> None:
    config = configure(tmp_path, 0, ("[server]", '[profiles]\nfolder = "nowhere"\n\n[server]'))
    with pytest.raises(ConfigError, match=r"profiles\.folder: there is no folder"):
        load_settings(config)


def test_the_network_of_an_own_profile_counts_for_agents_that_need_one(tmp_path: Path) -> None:
    config = use_own(tmp_path, own_toml='network = "none"\n')
    config.write_text(re.sub(r'kind = "command"\ncommand = .*', 'kind = "claude"', config.read_text()))
    with pytest.raises(ConfigError, match="network: with none, the agent mine needs"):
        load_settings(config)


def list_on_machine(name: str) -> set[str]:
    """What a profile asks of a machine: its programs with what they bring, and tools."""
    table = RepositoryTable.model_validate({"profile": name, "agent": "mine"})
    return {*list_names([table], {*VENDORS}), *(["uvx"] if "uv" in table.programs else [])}


@pytest.mark.parametrize("name", sorted(read_profiles()))
def test_a_profile_installs_every_program_that_it_calls_or_asks_its_machine_for_it(name: str) -> None:
    assert find_missing(read_profiles()[name], list_on_machine(name)) == []


def test_a_program_that_nobody_installs_is_found() -> None:
    profile = read_profiles()["pytorch"]
    machine = list_on_machine("pytorch")
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
        assert profile["lint"] == [profile["setup"][-1]]
        assert "UV_OFFLINE=1 spin quickfix" in profile["lint"][0]
        assert profile["setup"].index("git update-ref refs/remotes/origin/main HEAD") < len(profile["setup"]) - 2
        assert profile["update"][0] == "git update-ref refs/remotes/origin/main HEAD"
    titan = read_profiles()["torchtitan"]
    assert titan["setup"][-1] == titan["update"][-1] == "pre-commit install-hooks"


@pytest.mark.parametrize("status", [0, 3])
def test_what_the_linter_writes_into_the_version_of_torch_is_undone(tmp_path: Path, status: int) -> None:
    """spin generates `torch/version.py`, and knows no CUDA then (pytorch/pytorch `.spin/cmds.py` at 0ac23148)."""
    spin = tmp_path / "spin"
    spin.write_text(f"#!/bin/sh\necho 'cuda = None' > torch/version.py\nexit {status}\n")
    spin.chmod(0o755)
    version = tmp_path / "torch" / "version.py"
    version.parent.mkdir()
    (tmp_path / "tmp").mkdir()
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp")}
    for name in ("pytorch", "pytorch-python"):
        profile = read_profiles()[name]
        lines = [line for part in ("setup", "update", "lint") for line in profile[part] if "spin quick" in line]
        assert len(lines) == 4
        for line in lines:
            version.write_text("cuda = '13.0'\n")
            ended = subprocess.run(["/bin/sh", "-ec", line.replace("git ls-files", "echo")], cwd=tmp_path, env=env)
            assert version.read_text() == "cuda = '13.0'\n"
            assert ended.returncode == (0 if "|| :" in line else status)


def test_nightly_builds_come_from_an_index_that_the_profile_names() -> None:
    for profile in read_profiles().values():
        for line in filter(lambda line: "--pre" in line, profile["setup"]):
            assert "--index-url https://download.pytorch.org/whl/nightly/" in line
