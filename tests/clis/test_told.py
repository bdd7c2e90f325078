"""Real agents are told something while they work: they go on in the same session, and each word reaches the model."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from runner.agents import AgentSpec, build_agent
from runner.agents.events import GOES_ON, Tally
from runner.agents.verdict import judge
from runner.model.ending import Ending
from tests.clis.test_gateway import open_behind
from tests.support.cli_stories import AT_WORK, KINDS, WORK, Scenario, open_story, run_scenario
from tests.support.model_endpoint import TOKENS_IN, Hang, Say, Step

pytestmark = pytest.mark.agents

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
WORDS = "Mind the last chunk."


@EACH_KIND
async def test_a_real_agent_hears_a_maintainer_and_goes_on_with_all_that_it_knows(tmp_path: Path, kind: str) -> None:
    async with open_story(tmp_path, kind, WORK, Hang(times=1), Say("Done.")) as story:
        world = story.world
        await world.wait(lambda: len(story.endpoint.requests) >= 2 or None, "a model that thinks for long")
        await world.comment(f"/ptq tell {WORDS}")
        report = await world.wait_for_report()
        (job,) = await world.jobs()
        assert "It is fixed" in report, await story.read_log(job)
        assert "not delivered" not in report
        asked = [json.dumps(request) for request in story.endpoint.requests]
        assert [text.count(WORDS) for text in asked] == [0] * (len(asked) - 1) + [1]
        assert "It loses the last chunk" in asked[-1] or "chunked" in asked[-1], "the brief is still there"
        assert GOES_ON in await story.read_log(job)
        meter = await story.read_meter(job)
        assert meter.ending == "finished"
        assert meter.usage.input_tokens == 2 * TOKENS_IN, "the answer that never came has no tokens"
        assert meter.usage.cost_usd > 0


@EACH_KIND
async def test_a_session_is_resumed_even_if_a_tool_was_at_work(tmp_path: Path, kind: str) -> None:
    """The conversation is whole again: the call has some result before the words."""
    scenario = Scenario([AT_WORK, Say("All done.")], signal=signal.SIGINT, told=WORDS)
    ended = await run_scenario(tmp_path, kind, scenario)
    assert WORDS in json.dumps(ended.requests[-1])
    agent, tally = build_agent(AgentSpec("real", kind)), Tally()
    for line in ended.lines:
        tally = tally.go_on() if line == GOES_ON else tally.add(agent.read_line(line))
    assert judge(tally, ended.exit_status, speaks=True).ending is Ending.FINISHED
    assert tally.usage.input_tokens == len([one for one in ended.requests if "A title" not in str(one)]) * TOKENS_IN
    calls, results = count_calls(ended.requests[-1])
    assert calls == results, "a model's host refuses a call without a result"


def count_calls(request: dict[str, object]) -> tuple[int, int]:
    """The calls of tools in a request, and the results."""
    text = json.dumps(request)
    calls = text.count('"type": "tool_use"') + text.count('"type": "function_call"') + text.count('"tool_calls"')
    results = text.count('"type": "tool_result"') + text.count('"type": "function_call_output"')
    return calls, results + text.count('"role": "tool"')


@pytest.mark.sshd
@EACH_KIND
async def test_it_asks_its_model_by_the_gateway_again(tmp_path: Path, kind: str) -> None:
    script: list[Step] = [WORK, Hang(times=1), Say("Done.")]
    async with open_behind(tmp_path, kind, script, repository_toml='network = "none"\n') as story:
        await story.wait_for_requests(2)
        await story.world.comment(f"/ptq tell {WORDS}")
        report = await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        assert "not delivered" not in report, await story.read_log(job)
        assert "Not finished" not in report, await story.read_log(job)
        assert WORDS in json.dumps(story.endpoint.requests[-1])
        await story.check_account(job, assumed=1)
