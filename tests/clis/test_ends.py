"""Runs that the service itself ends, with the real command lines: the second table of verdicts in `docs/agents.md`."""

from __future__ import annotations

import sys
from html import unescape
from pathlib import Path
from secrets import token_hex

import pytest

from tests.support.agent_runs import EndedByService, list_ended_by_service
from tests.support.cli_stories import KINDS, WORK, open_story
from tests.support.hiding import HIDES
from tests.support.jobd import processes_with
from tests.support.model_endpoint import Hang, Run, Say
from tests.support.world import SIGNS

pytestmark = pytest.mark.agents

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
ENDS = {row.name: row for row in list_ended_by_service()}
MANY = [Run(f"sleep 0.5; seq {number} 1000") for number in range(60)]
"""More of all than any cap allows. No cap is met before the first step is done: pi alone prints its brief twice."""


@pytest.mark.parametrize("row", [ENDS[name] for name in ("stuck", "timeout")], ids=str)
@EACH_KIND
async def test_an_agent_whose_model_never_answers_is_ended(tmp_path: Path, kind: str, row: EndedByService) -> None:
    async with open_story(tmp_path, kind, Hang(), more_toml=f"{row.config}\n") as story:
        assert row.says in await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        assert (await story.read_meter(job)).ending == row.ending


@EACH_KIND
async def test_a_cancelled_agent_says_what_it_has_cost_and_leaves_nothing_alive(tmp_path: Path, kind: str) -> None:
    at_work, mark = tmp_path / SIGNS / "at-work", f"mark-{token_hex(8)}"
    (tmp_path / "hides.py").write_text(HIDES)
    hide = Run(f"{sys.executable} {tmp_path / 'hides.py'} {mark}; touch {at_work}; sleep 60")
    async with open_story(tmp_path, kind, WORK, hide, Say("Done.")) as story:
        world = story.world
        job = await world.wait_for_job("running")
        await world.wait(lambda: at_work.exists() or None, "the second tool")
        await world.wait(lambda: processes_with(mark) or None, "what hides")
        await world.comment("/ptq cancel")
        report = await world.wait_for_report()
        assert ENDS["cancelled"].says in report
        assert "2k tokens" in report or "2.2k tokens" in report
        assert "$0." in report or "less than $0.01" in report
        meter = await story.read_meter(job)
        assert meter.usage.input_tokens == 2000, "killed or not, what it took is known"
        assert meter.ending == ENDS["cancelled"].ending
        assert processes_with(mark) == []


@pytest.mark.parametrize("row", [row for row in ENDS.values() if row.config.startswith("[caps.")], ids=str)
@EACH_KIND
async def test_a_run_is_ended_at_every_cap_and_reports_what_there_is(
    tmp_path: Path, kind: str, row: EndedByService
) -> None:
    async with open_story(tmp_path, kind, WORK, *MANY, Say("Done."), more_toml=f"{row.config}\n") as story:
        report = await story.world.wait_for_report()
        assert "### Partial" in report
        (why,) = (unescape(line) for line in report.splitlines() if line.startswith("**Why:**"))
        own = kind == "claude" and "its own cap" in why
        assert own or row.says in why, why
        assert "It is fixed" in report
        (job,) = await story.world.jobs()
        assert (await story.read_meter(job)).ending == row.ending
