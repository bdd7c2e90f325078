"""Prices of tokens, for backends that do not report their cost. Pure.

They are list prices, so a cost is an estimate. Discounts for batches are left out. Surcharges for long prompts and for
writing to a cache depend on single requests, so only the gateway adds them. The operator's own prices (`[prices]`) take
precedence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date

from runner.model.usage import Usage


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model, in US dollars for a million tokens."""

    input: float
    cached: float
    """The price of input tokens from a cache."""
    output: float
    written: float | None = None
    """The price of input tokens written to a cache for minutes. None means `input` plus `WRITTEN_SURCHARGE`."""
    long_input: float | None = None
    """The price of input tokens in a request with a long prompt. `cached` and `written` rise by the same factor. None
    means that input does not cost more."""
    long_output: float | None = None

    def for_prompt(self, tokens: int) -> Price:
        """The price of a request with this many input tokens."""
        if tokens <= LONG_PROMPT:
            return self
        times = max(self.long_input / self.input, 1.0) if self.long_input and self.input else 1.0
        written = None if self.written is None else self.written * times
        output = max(self.long_output or 0.0, self.output)
        return Price(self.input * times, self.cached * times, output, written)

    @property
    def written_surcharge(self) -> float:
        """The additional price of input tokens written to a cache for minutes, compared with `input`."""
        return WRITTEN_SURCHARGE * self.input if self.written is None else max(self.written - self.input, 0.0)


LONG_PROMPT = 272_000
"""The number of input tokens above which OpenAI charges more for the whole request."""

WRITTEN_SURCHARGE, WRITTEN_HOUR_SURCHARGE = 0.25, 1.0
"""The surcharges for tokens written to a cache for minutes, and for an hour, as a share of the input price.
https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching#pricing"""

LONG_INPUT, LONG_OUTPUT = 2.0, 1.5
"""The factors by which OpenAI's prices rise for a request with a long prompt."""

AS_OF = date(2026, 11, 21)
"""The day on which the prices in `PRICES` were looked up."""

_OPENAI: Mapping[str, Price] = {
    # litellm 1.109.1, model_prices_and_context_window.json, provider "openai". Vendor: openai.com/api/pricing
    "gpt-4.1": Price(2.0, 0.5, 8.0),
    "gpt-4.1-mini": Price(0.4, 0.1, 1.6),
    "gpt-4.1-nano": Price(0.1, 0.025, 0.4),
    "gpt-5": Price(1.25, 0.125, 10.0),
    "gpt-5-codex": Price(1.25, 0.125, 10.0),
    "gpt-5-mini": Price(0.25, 0.025, 2.0),
    "gpt-5-nano": Price(0.05, 0.005, 0.4),
    "gpt-5.1": Price(1.25, 0.125, 10.0),
    "gpt-5.1-codex": Price(1.25, 0.125, 10.0),
    "gpt-5.1-codex-max": Price(1.25, 0.125, 10.0),
    "gpt-5.1-codex-mini": Price(0.25, 0.025, 2.0),
    "gpt-5.2": Price(1.75, 0.175, 14.0),
    "gpt-5.2-codex": Price(1.75, 0.175, 14.0),
    "gpt-5.3-codex": Price(1.75, 0.175, 14.0),
    "gpt-5.4": Price(2.5, 0.25, 15.0),
    "gpt-5.4-mini": Price(0.75, 0.075, 4.5),
    "gpt-5.4-nano": Price(0.2, 0.02, 1.25),
    "gpt-5.5": Price(5.0, 0.5, 30.0),
    "gpt-5.6": Price(4.0, 0.4, 20.0),
    "gpt-5.6-luna": Price(0.2, 0.02, 1.2),
    "gpt-5.6-sol": Price(4.0, 0.4, 20.0),
    "gpt-5.6-terra": Price(2.0, 0.2, 12.0),
    "gpt-6-astra": Price(10.0, 1.0, 50.0),
    "gpt-6-luna": Price(0.1, 0.01, 0.5),
    "gpt-6-sol": Price(2.0, 0.2, 10.0),
    "gpt-6.1-sol": Price(2.0, 0.1, 10.0),
    "gpt-6.1-terra": Price(1.0, 0.05, 5.0),
    "o3": Price(2.0, 0.5, 8.0),
    "o3-mini": Price(1.1, 0.55, 4.4),
    "o4-mini": Price(1.1, 0.275, 4.4),
}

_LONG_COSTS_MORE, _WRITING_COSTS_MORE = ("gpt-5.4", "gpt-5.5", "gpt-5.6", "gpt-6"), ("gpt-5.6", "gpt-6")
"""Models whose names begin like this have a surcharge for long prompts, or for writing to a cache. Uncertain models are
included, because caps must hold."""


def _add_surcharges(model: str, price: Price) -> Price:
    price = price if model.startswith(_WRITING_COSTS_MORE) else replace(price, written=price.input)
    if not model.startswith(_LONG_COSTS_MORE):
        return price
    return replace(price, long_input=LONG_INPUT * price.input, long_output=LONG_OUTPUT * price.output)


OPENAI: Mapping[str, Price] = {model: _add_surcharges(model, price) for model, price in _OPENAI.items()}

ANTHROPIC: Mapping[str, Price] = {
    # The same file, provider "anthropic". Vendor: docs.anthropic.com/en/docs/about-claude/pricing
    "claude-fable-5": Price(10.0, 1.0, 50.0),
    "claude-fable-5-1": Price(10.0, 0.25, 50.0),
    "claude-haiku-4-5": Price(1.0, 0.1, 5.0),
    "claude-opus-4-5": Price(5.0, 0.5, 25.0),
    "claude-opus-4-6": Price(5.0, 0.5, 25.0),
    "claude-opus-4-7": Price(5.0, 0.5, 25.0),
    "claude-opus-4-8": Price(5.0, 0.5, 25.0),
    "claude-opus-5": Price(5.0, 0.5, 25.0),
    "claude-opus-5-5": Price(4.0, 0.2, 20.0),
    "claude-sonnet-4-5": Price(3.0, 0.3, 15.0),
    "claude-sonnet-4-6": Price(3.0, 0.3, 15.0),
    "claude-sonnet-5": Price(2.0, 0.2, 10.0),
    "claude-sonnet-5-5": Price(2.0, 0.1, 10.0),
    # These are only in the vendor's list.
    "claude-opus-4": Price(15.0, 1.5, 75.0),
    "claude-opus-4-1": Price(15.0, 1.5, 75.0),
    "claude-sonnet-4": Price(3.0, 0.3, 15.0),
}

PRICES: Mapping[str, Price] = {**OPENAI, **ANTHROPIC}

_EDITION = re.compile(r"(-\d{8}|-\d{4}-\d{2}-\d{2}|\[\w+\])+$")
"""The edition at the end of a model's name: its release date, or the size of its context in brackets."""


def find_price(model: str | None, own: Mapping[str, Price]) -> Price | None:
    """The price of a model, from the operator's own table (`own`) or else from `PRICES`. None if it is unknown.

    In each table, three names are tried: the model's name, the name without the provider (`anthropic/`), and that name
    without the edition (`-20251101`, `-2025-08-07`, `[1m]`). Nothing else is guessed, because a new version may have
    any price.
    """
    names = [*_spell(model)] if model else []
    return next((table[name] for table in (own, PRICES) for name in names if name in table), None)


def _spell(model: str) -> Iterator[str]:
    name = model.rpartition("/")[2]
    yield from (model, name, strip_edition(name))


def strip_edition(model: str) -> str:
    """A model's name without its edition (`-20251101`, `[1m]`)."""
    return _EDITION.sub("", model)


def compute_cost(usage: Usage, price: Price) -> float:
    """The cost of this usage in US dollars, without surcharges."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    fresh = usage.input_tokens - cached
    return (fresh * price.input + cached * price.cached + usage.output_tokens * price.output) / 1_000_000
