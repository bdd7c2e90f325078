from __future__ import annotations

from dataclasses import replace

import pytest

from handlers.words.costs import describe_cost, describe_meter, describe_tokens
from runner.model.meter import Meter
from tests.support.meters import make_meter


@pytest.mark.parametrize(
    ("meter", "words"),
    [
        (Meter("j"), "cost unknown"),
        (make_meter(cost_usd=0.0), "$0.00"),
        (make_meter(cost_usd=0.004), "less than $0.01"),
        (make_meter(cost_usd=0.424), "$0.42"),
        (make_meter(cost_usd=1234.5, cost_is_estimate=True), "about $1,234.50"),
        (make_meter(cost_usd=0.424, is_self_reported=True), "the agent says $0.42"),
        (make_meter(is_self_reported=True), "cost unknown"),
    ],
)
def test_money_is_said_with_how_well_it_is_known(meter: Meter, words: str) -> None:
    assert describe_cost(meter) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        *((0, "0 tokens"), (1, "1 token"), (999, "999 tokens"), (1000, "1k tokens"), (1234, "1.2k tokens")),
        *((15_600, "16k tokens"), (999_499, "999k tokens"), (999_500, "1M tokens"), (12_345_678, "12M tokens")),
    ],
)
def test_tokens_are_said_in_round_numbers(count: int, words: str) -> None:
    assert describe_tokens(count) == words


def test_a_meter_is_one_line() -> None:
    meter = make_meter(turns=12, tool_calls=1, input_tokens=110_000, output_tokens=10_000, cost_usd=0.42)
    assert describe_meter(meter) == "12 turns, 1 tool call, 120k tokens, $0.42"
    said = replace(meter, is_self_reported=True)
    assert describe_meter(said) == "the agent says 12 turns, 1 tool call, 120k tokens, $0.42"


def test_an_agent_that_says_nothing_about_itself_is_said_to_be_unknown() -> None:
    assert describe_meter(make_meter(output_bytes=100)) == "tokens and cost unknown"
    assert describe_meter(make_meter(turns=2, cost_usd=0.5)) == "2 turns, tokens unknown, $0.50"
