from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.words.status_comment import LAST_STEPS, drop_progress, render_finished_status, render_status
from runner.model.job import JobState
from runner.model.meter import Meter
from tests.support.jobs import make_job
from tests.support.meters import make_meter

URL = "https://ptq.example"
RUNNING = make_job(state=JobState.RUNNING, machine="gpu-1")
METER = make_meter(turns=12, tool_calls=34, input_tokens=110_000, output_tokens=10_000, cost_usd=0.42)


def render(last_tool: str = "", meter: Meter = METER) -> str:
    return render_status(RUNNING, URL, 0, replace(meter, last_tool=last_tool))


def test_a_job_at_work_says_what_it_has_taken_and_done_last() -> None:
    text = render("Bash")
    assert text.endswith("\n\n**So far:** 12 turns, 34 tool calls, 120k tokens, $0.42 · last step: ran a command")
    assert drop_progress(text) == render_status(RUNNING, URL, 0)


def test_an_agent_that_says_nothing_about_itself_leaves_the_numbers_out() -> None:
    assert render("Read", meter=Meter("j")).endswith("**So far:** last step: read a file")
    assert render(meter=Meter("j")) == render_status(RUNNING, URL, 0)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PREPARING, JobState.COLLECTING])
def test_only_an_agent_at_work_is_counted(state: JobState) -> None:
    assert "So far" not in render_status(replace(RUNNING, state=state), URL, 0, METER)


@given(st.text(min_size=1))
def test_no_word_that_an_agent_chose_is_in_a_status(name: str) -> None:
    steps = {*LAST_STEPS.values(), "used a tool"}
    assert render(name).partition(" · last step: ")[2] in steps


@pytest.mark.parametrize("name", ["mcp__leak__the_key_is_1234", "Bash: curl", "<!-- -->"])
def test_a_tool_with_an_unknown_name_is_only_a_tool(name: str) -> None:
    assert render(name).endswith(" · last step: used a tool")


def test_a_status_of_a_confidential_report_says_no_more_than_that_it_ended() -> None:
    failed = make_job(state=JobState.FAILED, failure="the agent gave up")
    text = render_finished_status(failed, URL, "https://github.example/1", confidential=True)
    assert text == "**ptq** · `fix` attempt 1: ended · [report](https://github.example/1)"
    assert ": failed · [report](https://github.example/1)" in render_finished_status(
        failed, URL, "https://github.example/1"
    )
