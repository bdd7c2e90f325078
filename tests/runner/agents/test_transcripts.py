"""What the real command lines printed, read by their backends. `make test-agents` checks that they still print it."""

from __future__ import annotations

import pytest

from runner.agents.events import EventKind
from tests.support.agent_runs import Judged, list_judged, list_speaking, read_events, tally_of, verdict_on


@pytest.mark.parametrize("judged", list_judged(), ids=str)
def test_the_verdict_follows_from_what_happened(judged: Judged) -> None:
    for exit_status in judged.exit_statuses:
        verdict = verdict_on(judged.kind, judged.name, exit_status)
        assert verdict.ending is judged.ending, verdict
        assert bool(verdict.reason) == (not verdict.finished)


@pytest.mark.parametrize("kind", list_speaking())
def test_a_finished_run_says_what_was_done_and_what_it_took(kind: str) -> None:
    tally = tally_of(kind, "finished")
    assert tally.tool_calls == 1
    assert tally.turns == 2
    assert tally.session_id
    assert (tally.usage.input_tokens, tally.usage.output_tokens) == (2000, 200)
    assert tally.unknown == 0
    events = [*read_events(kind, "finished")]
    calls = [event for event in events if event.kind is EventKind.TOOL_CALL]
    texts = [event.text for event in events if event.kind is EventKind.TEXT]
    results = [event for event in events if event.kind is EventKind.TOOL_RESULT]
    assert "echo hello" in calls[0].text
    assert "hello" in results[0].text
    assert texts[-1] == "All done."


@pytest.mark.parametrize(("kind", "cost"), [("claude", 0.015), ("codex", None), ("cursor", None), ("pi", 0.0024)])
def test_the_money_is_the_backends_own_word_or_unknown(kind: str, cost: float | None) -> None:
    assert tally_of(kind, "finished").usage.cost_usd == (cost if cost is None else pytest.approx(cost))


@pytest.mark.parametrize(("kind", "tokens"), [("claude", 2000), ("pi", 2000)])
def test_a_run_that_was_killed_has_its_tokens_all_the_same(kind: str, tokens: int) -> None:
    assert tally_of(kind, "terminated").usage.input_tokens == tokens


@pytest.mark.parametrize("kind", list_speaking())
def test_what_failed_is_told_in_the_models_words(kind: str) -> None:
    assert "scripted" in verdict_on(kind, "model_failed", 1).reason


@pytest.mark.parametrize(
    ("kind", "name", "retries"),
    [("claude", "refused_twice", 2), ("codex", "cut_once", 1), ("cursor", "cut_once", 1), ("pi", "cut_once", 1)],
)
def test_retries_are_counted(kind: str, name: str, retries: int) -> None:
    assert tally_of(kind, name).retries == retries


def test_the_budget_stop_counts_the_answer_that_went_over_it() -> None:
    assert tally_of("claude", "max_budget").usage.input_tokens == 2000


def test_cursor_names_its_tools_and_tells_which_failed() -> None:
    events = [*read_events("cursor", "tool_failed")]
    asked = [(event.tool, event.text) for event in events if event.kind is EventKind.TOOL_CALL]
    assert asked == [("read", "/tmp/job/worktree/README.md"), ("applyPatch", '{"patch":"*** Begin Patch"}')]
    results = [event for event in events if event.kind is EventKind.TOOL_RESULT]
    assert [result.failed for result in results] == [True, False]
    assert results[0].text == "File not found"


def test_what_came_out_of_cursors_cache_is_input_too() -> None:
    usage = tally_of("cursor", "finished").usage
    assert (usage.input_tokens, usage.cached_tokens) == (2000, 1300)
