"""The fold over an agent's events: what a run amounts to, whenever one looks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.agents.events import THREAD, WHOLE, AgentEvent, EventKind, Tally
from runner.agents.verdict import judge
from runner.model.ending import Ending
from runner.model.usage import Usage
from tests.support.agent_runs import build, read_lines
from tests.support.meters import make_usage

usages = st.builds(
    make_usage,
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.none() | st.floats(0, 100, allow_nan=False),
)
events = st.builds(
    AgentEvent,
    st.sampled_from(EventKind),
    text=st.text(max_size=8),
    usage=st.none() | usages,
    scope=st.sampled_from(["", "first answer", "second answer", THREAD, WHOLE]),
    before=st.none() | usages,
    model=st.sampled_from(["", "m"]),
    turn=st.sampled_from(["", "1", "2"]),
    ending=st.none() | st.sampled_from(Ending),
    denials=st.integers(0, 3),
)
many_events = st.lists(events, max_size=12)


def use(scope: str, tokens: int, *, before: int | None = None) -> AgentEvent:
    of_before = None if before is None else make_usage(before)
    return AgentEvent(EventKind.USAGE, usage=make_usage(tokens), scope=scope, before=of_before)


def tokens_of(*given_events: AgentEvent) -> int:
    return Tally().add(given_events).usage.input_tokens


def read_codex(*entries: dict[str, Any]) -> Tally:
    agent = build("codex")
    return Tally().add(event for entry in entries for event in agent.read_line(json.dumps(entry)))


def count_tokens(total: int | None, last: int = 0) -> dict[str, Any]:
    """A line of codex's session; `info` is null before the first answer."""
    info = None if total is None else {"total_token_usage": _used(total), "last_token_usage": _used(last)}
    payload = {"type": "token_count", "info": info, "rate_limits": None}
    return {"timestamp": "2026-11-21T09:53:52.060Z", "type": "event_msg", "payload": payload}


def _used(tokens: int) -> dict[str, int]:
    return {"input_tokens": tokens, "cached_input_tokens": tokens // 2, "output_tokens": tokens // 10}


@pytest.mark.slow
@given(many_events, many_events)
def test_it_makes_no_difference_how_many_events_come_at_once(first: list[AgentEvent], then: list[AgentEvent]) -> None:
    one_by_one = Tally()
    for event in [*first, *then]:
        one_by_one = one_by_one.add([event])
    assert one_by_one == Tally().add([*first, *then]) == Tally().add(first).add(then)


@pytest.mark.slow
@given(many_events)
def test_no_count_is_ever_less_than_nothing(given_events: list[AgentEvent]) -> None:
    tally = Tally().add(given_events)
    usage = tally.usage
    assert min(usage.input_tokens, usage.cached_tokens, usage.output_tokens) >= 0
    assert min(tally.turns, tally.tool_calls, tally.retries, tally.unknown, tally.denials) >= 0
    assert usage.cost_usd is None or usage.cost_usd >= 0


@pytest.mark.slow
@given(many_events, usages)
def test_what_covers_the_whole_run_is_believed_unless_more_was_counted(
    given_events: list[AgentEvent], whole: Usage
) -> None:
    end = AgentEvent(EventKind.END, usage=whole, scope=WHOLE, ending=Ending.FINISHED)
    assert Tally().add([end]).usage == whole
    usage = Tally().add([*given_events, end]).usage
    assert usage.input_tokens + usage.output_tokens >= whole.input_tokens + whole.output_tokens
    more = AgentEvent(EventKind.USAGE, usage=whole + make_usage(1, 0, 0))
    assert Tally().add([more, end]).usage == more.usage


@given(st.lists(usages, min_size=1, max_size=6))
def test_the_newest_usage_of_an_answer_counts_and_one_without_a_name_adds_up(given_usages: list[Usage]) -> None:
    def count(scope: str) -> int:
        return tokens_of(*(AgentEvent(EventKind.USAGE, usage=usage, scope=scope) for usage in given_usages))

    assert count("answer") == given_usages[-1].input_tokens
    assert count("") == sum(usage.input_tokens for usage in given_usages)


def test_a_thread_counts_from_what_it_had_taken_at_the_first_look() -> None:
    assert tokens_of(use(THREAD, 5000, before=4000)) == 1000
    assert tokens_of(use(THREAD, 5000, before=4000), use(THREAD, 7000, before=5000)) == 3000
    assert tokens_of(use(THREAD, 5000, before=4000), use(THREAD, 7000)) == 3000
    assert tokens_of(use(THREAD, 7000)) == 7000


def test_a_resumed_run_of_codex_counts_only_its_own_tokens() -> None:
    tally = read_codex(count_tokens(None), count_tokens(5000, 1000), count_tokens(7000, 2000))
    assert tally.usage == make_usage(3000, 1500, 300)
    assert tally.unknown == 0
    done = {
        "type": "turn.completed",
        "usage": {"input_tokens": 7000, "cached_input_tokens": 3500, "output_tokens": 700},
    }
    assert read_codex(count_tokens(5000, 1000), count_tokens(7000, 2000), done).usage == make_usage(3000, 1500, 300)


def test_a_fresh_run_of_codex_says_its_tokens_before_it_ends() -> None:
    assert read_codex(count_tokens(1000, 1000), count_tokens(2500, 1500)).usage == make_usage(2500, 1250, 250)


def test_a_tool_call_or_a_retry_after_an_end_means_that_it_goes_on() -> None:
    end = AgentEvent(EventKind.END, ending=Ending.MODEL_FAILED)
    for kind in (EventKind.TOOL_CALL, EventKind.RETRY):
        assert Tally().add([end, AgentEvent(kind)]).ending is None


def test_an_agent_that_was_permitted_some_of_its_calls_did_what_it_could() -> None:
    call, end = AgentEvent(EventKind.TOOL_CALL), AgentEvent(EventKind.END, ending=Ending.FINISHED)
    denied, done = AgentEvent(EventKind.TOOL_RESULT, denials=1), AgentEvent(EventKind.TOOL_RESULT)

    def ending_of(given_events: Iterable[AgentEvent]) -> Ending:
        return judge(Tally().add(given_events), 0, speaks=True).ending

    assert ending_of([call, denied, call, done, end]) is Ending.FINISHED
    assert ending_of([call, denied, call, denied, end]) is Ending.DENIED
    assert ending_of([end]) is Ending.FINISHED


def test_what_cursor_says_in_plain_words_is_why_it_ended() -> None:
    agent = build("cursor")
    *_, last = (event for line in read_lines("cursor", "model_failed") for event in agent.read_line(line))
    assert (last.kind, last.text) == (EventKind.ERROR, "Error: [unavailable] scripted")
    assert agent.read_line("  \n") == ()


def test_what_the_earlier_processes_of_a_session_have_taken_is_added_up() -> None:
    """A process of Claude Code counts only itself."""
    one = AgentEvent(EventKind.END, usage=make_usage(100, 0, 10, 0.25), scope=WHOLE, ending=Ending.INTERRUPTED)
    two = AgentEvent(EventKind.END, usage=make_usage(200, 0, 20, 0.5), scope=WHOLE, ending=Ending.FINISHED)
    call = AgentEvent(EventKind.TOOL_CALL)
    before = Tally().add([call, one]).go_on()
    assert (before.usage, before.ending, before.open_calls, before.processes) == (one.usage, None, 0, 1)
    after = before.add([two])
    assert (after.usage.tokens, after.usage.cost_usd, after.ending) == (330, 0.75, Ending.FINISHED)


def test_a_thread_that_goes_on_counts_what_came_before_once() -> None:
    """A process of Codex counts its whole thread."""
    first = [
        AgentEvent(
            EventKind.USAGE, usage=make_usage(tokens, 0, 0, None), scope=THREAD, before=make_usage(0, 0, 0, None)
        )
        for tokens in (100, 200)
    ]
    then = AgentEvent(EventKind.USAGE, usage=make_usage(300, 0, 0, None), scope=THREAD, before=first[1].usage)
    assert Tally().add(first).go_on().add([then]).usage.input_tokens == 300


def test_calls_without_a_result_are_counted() -> None:
    call, result = AgentEvent(EventKind.TOOL_CALL), AgentEvent(EventKind.TOOL_RESULT)
    counts = [Tally().add(events).open_calls for events in ([call], [call, call, result], [call, result], [result])]
    assert counts == [1, 1, 0, 0]


def test_each_process_of_a_session_has_turns_of_its_own() -> None:
    """Some command lines number the turns of each process from 1."""
    turn = AgentEvent(EventKind.TEXT, turn="1")
    before = Tally().add([turn]).go_on()
    assert (before.turns, before.turns_of_process) == (1, 0)
    after = before.add([turn])
    assert (after.turns, after.turns_of_process) == (2, 1)
