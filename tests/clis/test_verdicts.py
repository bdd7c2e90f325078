"""The table of verdicts, held against the real command lines: every row of it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.agents.events import Tally
from runner.agents.verdict import judge
from tests.support.agent_runs import Judged, list_judged
from tests.support.cli_stories import KINDS, SCENARIOS, run_scenario

pytestmark = pytest.mark.agents

ROWS = [judged for judged in list_judged() if judged.kind in KINDS]


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_a_real_run_ends_as_the_table_says(tmp_path: Path, row: Judged) -> None:
    ended = await run_scenario(tmp_path, row.kind, SCENARIOS[row.name])
    assert ended.exit_status in row.exit_statuses
    verdict = judge(Tally().add(ended.events()), ended.exit_status, speaks=True)
    assert verdict.ending is row.ending, verdict
