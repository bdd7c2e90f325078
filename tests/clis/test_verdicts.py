"""The table of verdicts, held against the real command lines: every row of it is run."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from runner.agents.events import Tally
from runner.agents.verdict import judge
from tests.support.cli_stories import KINDS, SCENARIOS, run_scenario

pytestmark = pytest.mark.agents

TABLE = tomllib.loads((Path(__file__).parents[1] / "transcripts" / "verdicts.toml").read_text())
ROWS = [(kind, name) for kind in KINDS for name in TABLE[kind]]


@pytest.mark.parametrize(("kind", "name"), ROWS)
async def test_a_real_run_ends_as_the_table_says(tmp_path: Path, kind: str, name: str) -> None:
    ended = await run_scenario(tmp_path, kind, SCENARIOS[name])
    expected = TABLE[kind][name]
    assert ended.exit_status == expected["exit_status"]
    verdict = judge(Tally().add(ended.events()), ended.exit_status, speaks=True)
    assert verdict.ending == expected["ending"], verdict
