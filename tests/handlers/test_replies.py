from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from handlers.words.status_comment import MAX_LAST_STEP, drop_progress, render_finished_status, render_status
from runner.model.job import JobState
from runner.model.meter import Meter
from tests.support.jobs import make_job
from tests.support.meters import make_meter

URL = "https://ptq.example"
RUNNING = make_job(state=JobState.RUNNING, machine="gpu-1")
METER = make_meter(turns=12, tool_calls=34, input_tokens=110_000, output_tokens=10_000, cost_usd=0.42)


def render(last_tool: str = "", secrets: tuple[str, ...] = (), meter: Meter = METER) -> str:
    return render_status(RUNNING, URL, 0, replace(meter, last_tool=last_tool), secrets)


def test_a_job_at_work_says_what_it_has_taken_and_done_last() -> None:
    text = render("Bash: python -m pytest")
    assert text.endswith("\n\n**So far:** 12 turns, 34 tool calls, 120k tokens, $0.42 · `Bash: python -m pytest`")
    assert drop_progress(text) == render_status(RUNNING, URL, 0)


def test_an_agent_that_says_nothing_about_itself_leaves_the_numbers_out() -> None:
    assert render("Looked around.", meter=Meter("j")).endswith("**So far:** `Looked around.`")
    assert render(meter=Meter("j")) == render_status(RUNNING, URL, 0)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PREPARING, JobState.COLLECTING])
def test_only_an_agent_at_work_is_counted(state: JobState) -> None:
    assert "So far" not in render_status(replace(RUNNING, state=state), URL, 0, METER)


@given(st.text(st.sampled_from("`@#<!->|\\ \n\t/ptq1a\u202e")))
def test_the_last_step_stays_one_span_of_code_whatever_it_is(words: str) -> None:
    (paragraph,) = [token for token in MarkdownIt().parse(render(f"x{words}")) if "So far" in token.content]
    kinds = [child.type for child in paragraph.children or () if child.type != "text"]
    assert kinds == ["strong_open", "strong_close", "code_inline"]
    code = next(child.content for child in paragraph.children or () if child.type == "code_inline")
    assert len(code) <= MAX_LAST_STEP
    assert "\u202e" not in code


@pytest.mark.parametrize("cut", [400, 200])
@pytest.mark.parametrize("before", ["", "run it with a key that is as secret as only a secret key can be: "])
def test_the_last_step_shows_no_secret_even_where_it_reached_us_cut(before: str, cut: int) -> None:
    secret = "k3y-" * 70
    text = render(f"{before}{secret}"[:cut], secrets=(secret,))
    assert "[redacted]" in text
    assert "k3y" not in text


def test_a_status_of_a_confidential_report_says_no_more_than_that_it_ended() -> None:
    failed = make_job(state=JobState.FAILED, failure="the agent gave up")
    text = render_finished_status(failed, URL, "https://github.example/1", confidential=True)
    assert text == "**ptq** · `fix` attempt 1: ended · [report](https://github.example/1)"
    assert ": failed · [report](https://github.example/1)" in render_finished_status(
        failed, URL, "https://github.example/1"
    )
