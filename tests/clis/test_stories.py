"""The whole story with the real command lines of agents, against a scripted model on loopback (`make test-agents`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from secrets import token_hex

import pytest

from tests.support.cli_stories import KEY, KINDS, WORK, Scenario, open_story, run_scenario
from tests.support.hiding import HIDES
from tests.support.jobd import processes_with
from tests.support.model_endpoint import Hang, Refuse, Run, Say, Step
from tests.support.world import NOTE

pytestmark = pytest.mark.agents

MANY = [Run(f"sleep 0.2; echo {number}") for number in range(60)]
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


@EACH_KIND
async def test_a_real_agent_goes_from_label_to_draft_pull_request(tmp_path: Path, kind: str) -> None:
    look = Run("python -c 'import sys; print(sys.prefix)'; env")
    async with open_story(tmp_path, kind, WORK, look, Say("Done.")) as story:
        world = story.world
        report = await world.wait_for_report()
        assert "It is mended" in report
        assert "3 turns" in report
        (job,) = await world.jobs()
        log = await story.read_log(job)
        assert "/venv" in log, "`python` is the job's own"
        assert "message_update" not in log
        meter = await story.read_meter(job)
        assert (meter.input_tokens, meter.output_tokens, meter.ending) == (3000, 300, "finished")
        assert meter.cost_usd > 0
        assert meter.cost_is_estimate is (kind == "codex"), "it does not say it, and its model has a price"
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        pull = await world.wait_for_pull()
        assert pull.draft
        assert "len(items), size" in world.git("show", f"{pull.head}:widgets/chunks.py")


@EACH_KIND
async def test_a_model_that_fails_is_told_as_that_whatever_the_exit_status(tmp_path: Path, kind: str) -> None:
    async with open_story(tmp_path, kind, WORK, Refuse(400)) as story:
        report = await story.world.wait_for_report()
        assert "the agent's model failed" in report
        assert "It is mended" in report, "what it had found by then is there all the same"


@EACH_KIND
async def test_a_model_that_never_answers_ends_with_the_time_limit(tmp_path: Path, kind: str) -> None:
    async with open_story(tmp_path, kind, Hang(), more_toml="[limits]\ntimeout_s = 3\n") as story:
        assert "3 seconds" in await story.world.wait_for_report()


@EACH_KIND
async def test_an_agent_that_prints_nothing_is_ended_as_stuck(tmp_path: Path, kind: str) -> None:
    async with open_story(tmp_path, kind, Hang(), more_toml="[limits]\nstuck_after_s = 2\n") as story:
        assert "nothing had been heard of it for 2 seconds" in await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        assert (await story.read_meter(job)).ending == "stuck"


@EACH_KIND
async def test_a_cancelled_agent_says_what_it_has_cost_and_leaves_nothing_alive(tmp_path: Path, kind: str) -> None:
    at_work, mark = tmp_path / "at-work", f"mark-{token_hex(8)}"
    (tmp_path / "hides.py").write_text(HIDES)
    hide = Run(f"{sys.executable} {tmp_path / 'hides.py'} {mark}; touch {at_work}; sleep 60")
    async with open_story(tmp_path, kind, WORK, hide, Say("Done.")) as story:
        world = story.world
        job = await world.wait_for_job("running")
        await world.wait(lambda: at_work.exists() or None, "the second tool")
        await world.wait(lambda: processes_with(mark) or None, "what hides")
        await world.comment("/ptq cancel")
        report = await world.wait_for_report()
        assert "Cancelled: fix staged" in report
        assert "2k tokens" in report or "2.2k tokens" in report
        assert "$0." in report or "less than $0.01" in report
        meter = await story.read_meter(job)
        assert meter.input_tokens == 2000, "killed or not, what it took is known"
        assert meter.ending == "cancelled"
        assert processes_with(mark) == []


CAPS = {
    "turns = 6": "6 turns",
    "tokens = 6000": "6,000 tokens",
    "cost_usd = 0.02": "$0.02",
    "run_s = 4": "4 seconds",
    "output_bytes = 9000": "9,000 bytes of output",
}


@pytest.mark.parametrize("cap", CAPS)
@EACH_KIND
async def test_a_run_is_ended_at_every_cap_and_reports_what_there_is(tmp_path: Path, kind: str, cap: str) -> None:
    async with open_story(tmp_path, kind, WORK, *MANY, Say("Done."), more_toml=f"[caps.job]\n{cap}\n") as story:
        report = await story.world.wait_for_report()
        assert "### Partial" in report
        (why,) = (line for line in report.splitlines() if line.startswith("**Why:**"))
        own = kind == "claude" and "its own cap" in why
        assert own or f"its cap of {CAPS[cap]}" in why, why
        assert "It is mended" in report
        (job,) = await story.world.jobs()
        assert (await story.read_meter(job)).ending == "capped"


async def test_what_all_runs_of_an_issue_have_taken_ends_the_one_at_work(tmp_path: Path) -> None:
    script: list[Step] = [WORK, Say("Done.", times=1), *MANY]
    async with open_story(tmp_path, "claude", *script, more_toml="[caps.issue]\ntokens = 9000\n") as story:
        await story.world.wait_for_report()
        await story.world.comment("/ptq retry")
        report = await story.world.wait_for_report(count=2)
        assert "the cap of 9,000 tokens of all runs on this issue" in report


@EACH_KIND
async def test_an_agent_hears_that_its_end_is_near(tmp_path: Path, kind: str) -> None:
    async with open_story(tmp_path, kind, WORK, *MANY, Say("Done."), more_toml="[caps.job]\ntokens = 30000\n") as story:
        await story.world.wait_for_report()
        heard = [json.dumps(request).count("Come to an end now") for request in story.endpoint.requests]
        assert max(heard) == 1, "in one of its tools' results, and once"


@EACH_KIND
async def test_an_agent_hears_what_was_said_while_its_model_was_thinking(tmp_path: Path, kind: str) -> None:
    scenario = Scenario([Run("echo one"), Run("echo two"), Say("Done.")], notice="Come to an end now.")
    ended = await run_scenario(tmp_path, kind, scenario)
    assert [json.dumps(request).count("Come to an end now.") for request in ended.requests] == [0, 0, 1]


@EACH_KIND
async def test_a_second_attempt_carries_on_where_the_first_one_stopped(tmp_path: Path, kind: str) -> None:
    again = Run(f"git diff --stat; {WORK.command}; echo '# seen' >> widgets/__init__.py; echo went on")
    async with open_story(tmp_path, kind, WORK, Say("Done.", times=1), again, Say("Done again.")) as story:
        world = story.world
        await world.wait_for_report()
        first = len(story.endpoint.requests)
        await world.comment("/ptq retry and mark the module")
        report = await world.wait_for_report(count=2)
        assert "Diff: 2 files" in report, "the first attempt's edit and the second's"
        resumed = json.dumps(story.endpoint.requests[first])
        assert "Done." in resumed, "it remembers what it said"
        assert "and mark the module" in resumed
        second, one = await world.jobs()
        assert (second.attempt, second.follows, second.base_commit) == (2, one.id, one.base_commit)
        meter = await story.read_meter(second)
        assert meter.input_tokens == 2000, "its own, without what the first attempt took"
        assert meter.cost_usd == pytest.approx((await story.read_meter(one)).cost_usd), "and its own money"
        assert "went on" in await story.read_log(second)
        assert "went on" not in await story.read_log(one)


@EACH_KIND
async def test_a_skill_is_there_for_issues_with_its_label(tmp_path: Path, kind: str) -> None:
    skills = '[skills.graph-breaks]\nlabels = ["ptq:fix"]\n'
    async with open_story(tmp_path, kind, WORK, Say("Done."), more_toml=skills) as story:
        await story.world.wait_for_report()
        asked = json.dumps(story.endpoint.requests[0])
        assert "graph-breaks" in asked
        assert "torch.compile" in asked, "it reads the description"


async def test_codex_does_not_show_the_model_key_to_its_tools(tmp_path: Path) -> None:
    async with open_story(tmp_path, "codex", WORK, Run("env"), Say("Done.")) as story:
        await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        log = await story.read_log(job)
        assert "PTQ_OUTPUT_DIR" in log
        assert KEY not in log
