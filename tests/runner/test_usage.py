"""What agents have taken, added up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.model.usage import NOTHING, Usage
from tests.support.meters import make_usage

counts = st.integers(0, 10**6)
usages = st.builds(make_usage, counts, counts, counts, st.none() | st.integers(0, 100))


@given(usages, usages)
def test_what_was_added_can_be_taken_away_again(one: Usage, other: Usage) -> None:
    assert one + NOTHING == one
    assert one + other == other + one
    assert one + other - other == one


def test_a_cost_that_nobody_knows_stays_unknown_whatever_is_added() -> None:
    total = sum([make_usage(1, 0, 1, 0.5), make_usage(1, 0, 1, None), make_usage(1, 0, 1, 0.25)], NOTHING)
    assert total.cost_usd is None, "which is not 0"
    assert (total.known_usd, total.unpriced) == (0.75, 1)


def test_nothing_costs_nothing() -> None:
    assert (NOTHING.cost_usd, NOTHING.tokens) == (0.0, 0)


def test_a_run_of_many_answers_is_one_part_with_one_cost() -> None:
    answers = make_usage(1, 0, 1, None) + make_usage(1, 0, 1, None)
    assert answers.unpriced == 2
    assert answers.with_cost(None).unpriced == 1
    assert answers.with_cost(0.5).cost_usd == 0.5


def test_a_run_with_one_answer_of_unknown_cost_is_of_unknown_cost_and_what_is_known_of_it_stays_known() -> None:
    run = (Usage(turns=3, known_usd=0.5, run_s=9.0) + Usage(turns=1, unpriced=1, unpriced_turns=1)).as_one()
    assert (run.cost_usd, run.known_usd) == (None, 0.5)
    assert (run.unpriced, run.unpriced_turns, run.unpriced_run_s) == (1, 4, 9.0)
    assert run.with_run_s(7.0).known_usd == 0.5


@pytest.mark.parametrize("field", ["turns", "input_tokens", "known_usd", "run_s"])
def test_less_than_nothing_is_never_left(field: str) -> None:
    assert Usage(**{field: 1}) - Usage(**{field: 2}) == NOTHING
