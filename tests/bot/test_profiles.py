"""The recipes of repositories that ship with the service."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bot.config.policy_tables import PROFILES, RepositoryTable
from bot.config.settings import load_settings
from runner.model.environment import Limits
from tests.bot.test_cli import configure


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
    with pytest.raises(Exception, match="unknown profile; available: pytorch, torchtitan"):
        load_settings(config)
