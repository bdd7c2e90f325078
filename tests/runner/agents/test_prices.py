"""What a run cost, where its agent says tokens only."""

from __future__ import annotations

import json
import re
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.agents.prices import AS_OF, LONG_PROMPT, PRICES, Price, compute_cost, find_price
from tests.support.agent_runs import read_events, tally_of
from tests.support.meters import make_usage

OWN = Price(1.0, 0.5, 2.0)

counts = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("model", "priced_as"),
    [
        ("gpt-5-codex", "gpt-5-codex"),
        ("openai/gpt-5", "gpt-5"),
        ("openrouter/anthropic/claude-haiku-4-5", "claude-haiku-4-5"),
        ("claude-opus-4-5-20251101", "claude-opus-4-5"),
        ("anthropic/claude-opus-4-20250514", "claude-opus-4"),
        ("gpt-5-mini-2025-08-07", "gpt-5-mini"),
        ("claude-opus-4-8[1m]", "claude-opus-4-8"),
    ],
)
def test_a_model_is_found_without_its_provider_and_its_edition(model: str, priced_as: str) -> None:
    assert find_price(model, {}) is PRICES[priced_as]


@pytest.mark.parametrize(
    "model", [None, "", "gpt-5-ultra", "gpt-5.9", "claude-opus-4-9", "gpt-5-codex-2", "m", "/", "[1m]"]
)
def test_a_model_that_nobody_knows_has_no_price(model: str | None) -> None:
    assert find_price(model, {}) is None


def test_the_operators_table_goes_first_under_every_spelling() -> None:
    assert find_price("gpt-5", {"gpt-5": OWN}) is OWN
    assert find_price("openai/gpt-5-2025-08-07", {"gpt-5": OWN}) is OWN
    assert find_price("house/model", {"house/model": OWN, "model": Price(9, 9, 9)}) is OWN
    assert find_price("gpt-5-mini", {"gpt-5": OWN}) is PRICES["gpt-5-mini"]


def test_the_model_that_claude_names_has_a_price_should_claude_be_killed_before_it_says_its_cost() -> None:
    model = tally_of("claude", "terminated").model
    assert find_price(model, {}), model
    assert any(event.model for event in read_events("claude", "terminated"))


def test_what_comes_out_of_a_cache_is_cheaper() -> None:
    price = Price(10.0, 1.0, 100.0)
    assert compute_cost(make_usage(1_000_000, 0, 0), price) == pytest.approx(10.0)
    assert compute_cost(make_usage(1_000_000, 900_000, 0), price) == pytest.approx(1.9)
    assert compute_cost(make_usage(1_000_000, 900_000, 10_000), price) == pytest.approx(2.9)


def test_a_request_with_a_long_prompt_costs_more_where_the_vendor_says_so() -> None:
    price = Price(10.0, 1.0, 100.0, written=12.0, long_input=20.0, long_output=150.0)
    assert price.for_prompt(LONG_PROMPT) == price
    assert price.for_prompt(LONG_PROMPT + 1) == Price(20.0, 2.0, 150.0, written=24.0)
    assert OWN.for_prompt(LONG_PROMPT + 1) == OWN
    assert PRICES["gpt-5.5"].for_prompt(LONG_PROMPT + 1).input == 10.0
    assert PRICES["gpt-4.1"].for_prompt(LONG_PROMPT + 1).input == 2.0


@given(read=counts, cached=counts, written=counts, price=st.sampled_from([*PRICES.values()]))
def test_no_run_costs_less_than_nothing_or_more_than_without_a_cache(
    read: int, cached: int, written: int, price: Price
) -> None:
    most = compute_cost(make_usage(read, 0, written), price)
    assert 0 <= compute_cost(make_usage(read, cached, written), price) <= most * (1 + 1e-9)


def test_the_table_is_dated_and_every_figure_is_likely() -> None:
    assert date(2026, 1, 1) < AS_OF
    for model, price in PRICES.items():
        assert re.fullmatch(r"[a-z0-9.-]+", model), model
        assert 0 < price.cached < price.input < price.output < 200, json.dumps(model)
