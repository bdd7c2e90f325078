"""What every backend keeps to. A new one passes it with transcripts and `verdicts.toml`, and no line of test code."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.agents import BACKENDS, Launch, Run
from runner.agents.configuration import configures_agents
from runner.agents.events import MAX_TEXT, AgentEvent, EventKind, Tally
from runner.agents.verdict import judge
from tests.support.agent_runs import HAPPENINGS, build, list_judged, list_speaking, list_transcripts

KINDS = sorted(BACKENDS)
SECRET = "sk-a-secret-of-the-operators"
ARGS = ("--operators-own", "argument")
RUN = Run(session_id="6f1b2c34-0000-4000-8000-000000000001", has_skills=True, max_turns=300, max_cost_usd=10.0)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("half \ud800 a character"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def launch(kind: str, run: Run = RUN, **fields: object) -> Launch:
    given_fields = {"args": ARGS, "env": {"THE_KEY": SECRET}, "model": "the-usual", "thinking": "high", **fields}
    return build(kind, **given_fields).launch(run)


def is_below(path: str) -> bool:
    return not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts


def check_events(events: tuple[AgentEvent, ...]) -> None:
    for event in events:
        for text in (event.text, event.tool, event.model, event.turn, event.scope):
            assert len(text) <= MAX_TEXT
            text.encode()
        for usage in filter(None, (event.usage, event.before)):
            assert min(usage.input_tokens, usage.cached_tokens, usage.output_tokens) >= 0
            assert usage.cost_usd is None or usage.cost_usd >= 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_launch_is_the_same_each_time_and_changes_nothing(kind: str) -> None:
    agent = build(kind, args=ARGS, env={"THE_KEY": SECRET}, model="the-usual", thinking="high")
    spec = copy.deepcopy(agent.spec)
    assert agent.launch(RUN) == agent.launch(RUN)
    assert agent.spec == spec


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_can_have_another_level_of_thinking_if_its_agent_has_levels(kind: str) -> None:
    agent, run = build(kind, thinking="high"), replace(RUN, thinking="low")
    assert agent.launch(run) == build(kind, thinking="low").launch(RUN)
    assert bool(agent.levels) is (agent.launch(run) != agent.launch(RUN))


@pytest.mark.parametrize("kind", KINDS)
def test_secrets_are_in_the_environment_and_nowhere_else(kind: str) -> None:
    launched = launch(kind)
    assert launched.env["THE_KEY"] == SECRET
    assert SECRET not in str(launched.argv)
    assert SECRET.encode() not in b"".join(launched.files.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_operators_program_and_arguments_are_used(kind: str) -> None:
    argv = launch(kind, command=("/opt/program", "first")).argv
    assert argv[:2] == ("/opt/program", "first")
    assert argv[argv.index(ARGS[0]) :][:2] == ARGS


@pytest.mark.parametrize("kind", KINDS)
def test_no_option_of_ours_comes_after_the_operators(kind: str) -> None:
    argv = launch(kind).argv
    behind = argv[argv.index(ARGS[-1]) + 1 :]
    assert [word for word in behind if word.startswith("-") and word != "-"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_that_was_asked_for_wins_over_the_configured_one(kind: str) -> None:
    usual, other = launch(kind), launch(kind, Run(session_id=RUN.session_id, model="another"))
    assert "the-usual" in [*usual.argv, *usual.env.values()]
    assert "another" in [*other.argv, *other.env.values()]
    assert "the-usual" not in [*other.argv, *other.env.values()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_is_resumed_with_the_same_options(kind: str) -> None:
    first, then = launch(kind), launch(kind, replace(RUN, resumes="a-session"))
    if not build(kind).resumes:
        assert then == first
        return
    added = [word for word in then.argv if word not in first.argv]
    assert added[-1] == "a-session"
    assert added[0] in ("--resume", "--session", "resume")
    assert {word for word in first.argv if word not in then.argv} <= {"--session-id", RUN.session_id}
    assert then.prompt_on_stdin
    assert then.env == first.env


@pytest.mark.parametrize("kind", KINDS)
def test_every_path_is_below_the_home(kind: str) -> None:
    launched = launch(kind)
    tail = [launched.tail.glob] if launched.tail else []
    for path in (launched.skills_folder, *launched.files, *tail):
        assert is_below(path), path
    assert launched.skills_folder, "a backend without a place of its own can still name one in its prompt"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_hidden_from_an_agent_is_held_to_configure_agents(kind: str) -> None:
    for name in launch(kind).hidden:
        assert "/" not in name, "it is a name, hidden wherever it lies, and no path"
        for path in (name, name.upper(), f"{name}/deep/hooks.json", f"sub/{name}", f"sub/deep/{name}/hooks.json"):
            assert configures_agents(path), f"edits of {path} would be lost: hidden later, and named and kept nowhere"


@pytest.mark.parametrize("kind", list_speaking())
def test_the_prompt_comes_on_standard_input(kind: str) -> None:
    assert launch(kind).prompt_on_stdin, "an argument has room for 128 KiB, and everybody on the machine can read it"


@pytest.mark.parametrize("kind", list_speaking())
def test_there_are_transcripts_and_each_has_its_verdict(kind: str) -> None:
    judged = {judged.name for judged in list_judged() if judged.kind == kind}
    assert judged == {path.stem for path in list_transcripts(kind)}
    assert judged >= {"finished", "model_failed"}
    assert judged <= HAPPENINGS.keys()


@pytest.mark.parametrize("kind", list_speaking())
def test_what_is_not_known_is_kept_as_that(kind: str) -> None:
    (event,) = build(kind).read_line('{"type":"something_of_next_year","result":"success"}')
    assert (event.kind, event.text) == (EventKind.UNKNOWN, "something_of_next_year")


@pytest.mark.parametrize("kind", KINDS)
@given(line=st.text())
@example(line="[" * 100_000)
@example(line="1" * 10_000)
@example(line="x" * 10_000)
@example(line='{"type": "\\ud800"}')
def test_any_line_is_read(kind: str, line: str) -> None:
    check_events(build(kind).read_line(line))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(value=json_values)
def test_any_json_is_read(kind: str, value: Any) -> None:
    check_events(build(kind).read_line(json.dumps(value)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", list_speaking())
@given(data=st.data())
def test_any_change_to_a_real_line_is_read(kind: str, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(list_entries(kind)), min_size=1, max_size=4))
    agent, tally = build(kind), Tally()
    for entry in chosen:
        events = agent.read_line(json.dumps(change(data, copy.deepcopy(entry))))
        check_events(events)
        tally = tally.add(events)
    assert judge(tally, data.draw(st.sampled_from([None, 0, 1, 143])), speaks=True).ending
    assert min(tally.turns, tally.tool_calls, tally.retries, tally.unknown, tally.denials) >= 0


@cache
def list_entries(kind: str) -> list[Any]:
    """What the agents of these transcripts wrote. It is read once: every example draws from it."""
    lines = [line for path in list_transcripts(kind) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def change(data: st.DataObject, entry: Any) -> Any:
    """The entry with something else at some place in it."""
    inner = data.draw(st.sampled_from([None, *entry])) if isinstance(entry, dict) and entry else None
    if isinstance(entry, list) and entry:
        inner = data.draw(st.sampled_from([None, *range(len(entry))]))
    if inner is None:
        return data.draw(
            json_values | st.just("long " * MAX_TEXT) | st.just([{"type": "text", "text": "x" * 3_000}] * 3)
        )
    entry[inner] = change(data, entry[inner])
    return entry
