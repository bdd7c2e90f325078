"""The whole story with the real command lines of agents, against a scripted model on loopback (`make test-agents`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.cli_stories import KEY, KINDS, WORK, Scenario, open_story, run_scenario
from tests.support.model_endpoint import Refuse, Run, Say, Step
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
        assert "It is fixed" in report
        assert "3 turns" in report
        (job,) = await world.jobs()
        log = await story.read_log(job)
        assert "/venv" in log, "`python` is the job's own"
        assert "message_update" not in log
        meter = await story.read_meter(job)
        assert (meter.usage.input_tokens, meter.usage.output_tokens, meter.ending) == (3000, 300, "finished")
        assert meter.usage.cost_usd > 0
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
        assert "It is fixed" in report, "what it had found by then is there all the same"


async def test_what_all_runs_of_an_issue_have_taken_ends_the_one_at_work(tmp_path: Path) -> None:
    script: list[Step] = [WORK, Say("Done.", times=1), *MANY]
    async with open_story(tmp_path, "claude", *script, more_toml="[caps.issue]\ntokens = 9000\n") as story:
        await story.world.wait_for_report()
        await story.world.comment("/ptq retry")
        report = await story.world.wait_for_report(count=2)
        assert "the cap of 9,000 tokens for all attempts together" in report


@EACH_KIND
async def test_an_agent_hears_that_its_end_is_near(tmp_path: Path, kind: str) -> None:
    async with open_story(tmp_path, kind, WORK, *MANY, Say("Done."), more_toml="[caps.job]\ntokens = 30000\n") as story:
        await story.world.wait_for_report()
        heard = [json.dumps(request).count("Finish now") for request in story.endpoint.requests]
        assert max(heard) == 1, "in one of its tools' results, and once"


@EACH_KIND
async def test_an_agent_hears_what_was_said_while_its_model_was_thinking(tmp_path: Path, kind: str) -> None:
    scenario = Scenario([Run("echo one"), Run("echo two"), Say("Done.")], notice="Finish now.")
    ended = await run_scenario(tmp_path, kind, scenario)
    assert [json.dumps(request).count("Finish now.") for request in ended.requests] == [0, 0, 1]


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
        asked = json.dumps(story.endpoint.requests[first])
        assert '"role": "assistant"' not in asked, "it has no memory but its brief, whoever wrote into the old one"
        assert "and mark the module" in asked
        second, one = await world.jobs()
        assert (second.attempt, second.follows, second.base_commit) == (2, one.id, one.base_commit)
        meter = await story.read_meter(second)
        assert meter.usage.input_tokens == 3000, "three requests of its own, without the two of the first attempt"
        earlier = await story.read_meter(one)
        assert meter.usage.cost_usd == pytest.approx(1.5 * earlier.usage.cost_usd), "and its own money"
        assert "went on" in await story.read_log(second)
        assert "went on" not in await story.read_log(one)


@EACH_KIND
async def test_skills_of_a_label_and_of_the_repository_are_there(tmp_path: Path, kind: str) -> None:
    skills, folder = '[skills.graph-breaks]\nlabels = ["ptq:fix"]\n', 'skills = ["tools/skills"]\n'
    described = "---\nname: houses\ndescription: How the carpenters of Widgets measure.\n---\n"
    base = {"tools/skills/houses/SKILL.md": described}
    async with open_story(
        tmp_path, kind, WORK, Say("Done."), more_toml=skills, repository_toml=folder, base=base
    ) as story:
        await story.world.wait_for_report()
        asked = json.dumps(story.endpoint.requests[0])
        assert "graph-breaks" in asked
        assert "torch.compile" in asked, "it reads the description"
        assert "carpenters of Widgets" in asked, "and that of a skill in the repository's folder"


async def test_codex_does_not_show_the_model_key_to_its_tools(tmp_path: Path) -> None:
    async with open_story(tmp_path, "codex", WORK, Run("env"), Say("Done.")) as story:
        await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        log = await story.read_log(job)
        assert "PTQ_OUTPUT_DIR" in log
        assert KEY not in log


@EACH_KIND
async def test_the_operators_path_reaches_the_commands_of_an_agent_and_codex_withholds_secrets(
    tmp_path: Path, kind: str
) -> None:
    path = f"/opt/node-of-the-operators/bin:{os.environ['PATH']}"
    env = f'PATH = {json.dumps(path)}\nBILLING = "Zx9kQ2mW7pL4tR8vN1cB"\n'
    async with open_story(tmp_path, kind, WORK, Run("ls; env"), Say("Done."), more_toml=env) as story:
        assert "It is fixed" in await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        log = await story.read_log(job)
        assert "widgets" in log, "`ls` is found"
        assert "/venv/bin:/opt/node-of-the-operators/bin:" in log
        assert ("BILLING=" in log) is (kind != "codex")
