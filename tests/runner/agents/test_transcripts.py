"""What the real command lines printed, read by their backends. `make test-agents` checks that they still print it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.agents import AgentSpec, build_agent
from runner.agents.events import AgentEvent, Ending, EventKind, Tally
from runner.agents.verdict import Verdict, judge

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"


def read(kind: str, name: str) -> list[AgentEvent]:
    agent = build_agent(AgentSpec("mine", kind))
    lines = (TRANSCRIPTS / kind / f"{name}.jsonl").read_text().splitlines()
    return [event for line in lines for event in agent.read_line(line)]


def tally_of(kind: str, name: str) -> Tally:
    return Tally().add(read(kind, name))


def verdict_on(kind: str, name: str, exit_status: int) -> Verdict:
    return judge(tally_of(kind, name), exit_status, speaks=True)


@pytest.mark.parametrize(
    ("kind", "name", "exit_status", "ending"),
    [
        ("claude", "finished", 0, Ending.FINISHED),
        ("claude", "refused_twice", 0, Ending.FINISHED),
        ("claude", "denied", 0, Ending.DENIED),
        ("claude", "model_failed", 1, Ending.MODEL_FAILED),
        ("claude", "model_failed_later", 1, Ending.MODEL_FAILED),
        ("claude", "cut_once", 1, Ending.MODEL_FAILED),
        ("claude", "max_turns", 1, Ending.CAPPED),
        ("claude", "max_budget", 1, Ending.CAPPED),
        ("claude", "interrupted", 1, Ending.INTERRUPTED),
        ("claude", "terminated", 143, Ending.KILLED),
        ("codex", "finished", 0, Ending.FINISHED),
        ("codex", "cut_once", 0, Ending.FINISHED),
        ("codex", "refused_twice", 0, Ending.FINISHED),
        ("codex", "model_failed", 1, Ending.MODEL_FAILED),
        ("codex", "model_failed_later", 1, Ending.MODEL_FAILED),
        ("codex", "interrupted", 1, Ending.GAVE_UP),
        ("codex", "terminated", 143, Ending.KILLED),
        ("pi", "finished", 0, Ending.FINISHED),
        ("pi", "cut_once", 0, Ending.FINISHED),
        ("pi", "refused_twice", 0, Ending.FINISHED),
        ("pi", "model_failed", 0, Ending.MODEL_FAILED),
        ("pi", "model_failed_later", 0, Ending.MODEL_FAILED),
        ("pi", "interrupted", 130, Ending.KILLED),
        ("pi", "terminated", 143, Ending.KILLED),
    ],
)
def test_the_verdict_follows_from_what_happened(kind: str, name: str, exit_status: int, ending: Ending) -> None:
    verdict = verdict_on(kind, name, exit_status)
    assert verdict.ending is ending, verdict
    assert bool(verdict.reason) == (ending is not Ending.FINISHED)


@pytest.mark.parametrize("kind", ["claude", "codex", "pi"])
def test_a_finished_run_says_what_was_done_and_what_it_took(kind: str) -> None:
    tally = tally_of(kind, "finished")
    assert tally.tool_calls == 1
    assert tally.turns == 2
    assert tally.last_text == "All done."
    assert tally.session_id
    assert (tally.usage.input_tokens, tally.usage.output_tokens) == (2000, 200)
    assert tally.unknown == 0
    calls = [event for event in read(kind, "finished") if event.kind is EventKind.TOOL_CALL]
    results = [event for event in read(kind, "finished") if event.kind is EventKind.TOOL_RESULT]
    assert "echo hello" in calls[0].text
    assert "hello" in results[0].text


@pytest.mark.parametrize(("kind", "cost"), [("claude", 0.015), ("codex", None), ("pi", 0.0024)])
def test_the_money_is_the_backends_own_word_or_unknown(kind: str, cost: float | None) -> None:
    assert tally_of(kind, "finished").usage.cost_usd == (cost if cost is None else pytest.approx(cost))


@pytest.mark.parametrize(("kind", "tokens"), [("claude", 2000), ("pi", 2000)])
def test_a_run_that_was_killed_has_its_tokens_all_the_same(kind: str, tokens: int) -> None:
    assert tally_of(kind, "terminated").usage.input_tokens == tokens


@pytest.mark.parametrize("kind", ["claude", "codex", "pi"])
def test_what_failed_is_told_in_the_models_words(kind: str) -> None:
    assert "scripted" in verdict_on(kind, "model_failed", 1).reason


@pytest.mark.parametrize(
    ("kind", "name", "retries"), [("claude", "refused_twice", 2), ("codex", "cut_once", 1), ("pi", "cut_once", 1)]
)
def test_retries_are_counted(kind: str, name: str, retries: int) -> None:
    assert tally_of(kind, name).retries == retries


def test_the_budget_stop_counts_the_answer_that_went_over_it() -> None:
    assert tally_of("claude", "max_budget").usage.input_tokens == 2000
