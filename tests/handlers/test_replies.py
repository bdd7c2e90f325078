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


WORKLOG = """\
# Worklog

## Read the test

```sh
# a comment of a shell
```

## Run it ten times

It fails.

### Bisect the last ten commits ###

~~~ `text`
## no heading
```
~~~

#hash
## Ask @octocat
"""


def read_headings(worklog: str, state: JobState = JobState.RUNNING) -> list[str]:
    """The lines that a status comment shows of a worklog."""
    job = replace(RUNNING, state=state)
    text = render_status(job, URL, 0, METER, ("hunter2-hunter2",), worklog)
    assert drop_progress(text) == render_status(job, URL, 0)
    return text.partition("\n\n**From the agent's worklog:**\n\n")[2].splitlines()


def test_a_status_shows_the_last_headings_of_a_worklog_below_the_numbers() -> None:
    assert read_headings(WORKLOG) == [
        "> - `Run it ten times`",
        "> - `Bisect the last ten commits`",
        "> - `Ask @octocat`",
    ]
    assert "$0.42\n\n**From" in render_status(RUNNING, URL, 0, METER, (), WORKLOG)
    assert drop_progress(render_status(RUNNING, URL, 0, None, (), WORKLOG)) == render_status(RUNNING, URL, 0)
    assert read_headings("no heading\n#\n##  \n") == []
    assert read_headings(WORKLOG, JobState.COLLECTING) == []


def test_what_may_be_the_beginning_of_a_secret_is_held_back_from_the_headings() -> None:
    """As in a live log: the agent may still be writing it."""
    assert read_headings("# Plan\n\n# the key\n\n-----BEGIN PRIVATE KEY-----\n# MIIEvQIBADANBg\n") == [
        "> - `Plan`",
        "> - `the key`",
    ]


def test_a_heading_of_a_worklog_is_one_line_of_code_whatever_is_in_it() -> None:
    hostile = "## `**Pull request:** #1` <!-- ptq:report=1 --> @octocat\u202e hunter2-hunter2\r\n"
    assert read_headings(hostile) == ["> - `ʼ**Pull request:** #1ʼ <!-- ptq:report=1 --> @octocat⟨U+202E⟩ [redacted]`"]
    (line,) = read_headings(f"# {'x' * 100_000}\n")
    assert len(line) == len("> - ``") + 200


@pytest.mark.parametrize("heading", ["Security concern: paths", "Outcome: security concern", "A **security** issue"])
def test_no_heading_is_shown_once_one_names_a_security_concern(heading: str) -> None:
    assert read_headings(f"## Look\n\n## {heading}\n\n{WORKLOG}") == []


def test_a_status_of_a_confidential_report_says_no_more_than_that_it_ended() -> None:
    failed = make_job(state=JobState.FAILED, failure="the agent gave up")
    text = render_finished_status(failed, URL, "https://github.example/1", confidential=True)
    assert text == "**ptq** · `fix` attempt 1: ended · [report](https://github.example/1)"
    assert ": failed · [report](https://github.example/1)" in render_finished_status(
        failed, URL, "https://github.example/1"
    )
