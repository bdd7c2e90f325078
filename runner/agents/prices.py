"""What tokens cost, for backends that do not say it themselves. Pure.

An estimate: list prices. What vendors take off for batches is not in it. What they add for long prompts and for writing
a cache depends on single requests, so only the gateway adds it. The operator's own table (`[prices]`) goes over this
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date

from runner.model.usage import Usage


@dataclass(frozen=True, slots=True)
class Price:
    """USD for a million tokens."""

    input: float
    cached: float
    """What comes out of a cache."""
    output: float
    written: float | None = None
    """What is written into a cache for minutes; None: `WRITTEN_SURCHARGE` more than `input`."""
    long_input: float | None = None
    """What input costs in a request with a long prompt. The other input prices rise as much. None: no more."""
    long_output: float | None = None

    def for_prompt(self, tokens: int) -> Price:
        """The price of a request with so many input tokens."""
        if tokens <= LONG_PROMPT:
            return self
        times = max(self.long_input / self.input, 1.0) if self.long_input and self.input else 1.0
        written = None if self.written is None else self.written * times
        output = max(self.long_output or 0.0, self.output)
        return Price(self.input * times, self.cached * times, output, written)

    @property
    def written_surcharge(self) -> float:
        """What writing into a cache costs more than `input`."""
        return WRITTEN_SURCHARGE * self.input if self.written is None else max(self.written - self.input, 0.0)


LONG_PROMPT = 272_000
"""The input tokens above which OpenAI charges more for the whole request."""

WRITTEN_SURCHARGE, WRITTEN_HOUR_SURCHARGE = 0.25, 1.0
"""The surcharge per token written into a cache for minutes and for an hour, as a share of the input price.
https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching#pricing"""

LONG_INPUT, LONG_OUTPUT = 2.0, 1.5
"""How many times as much OpenAI charges in a request with a long prompt."""

AS_OF = date(2026, 11, 21)
"""The day on which the figures of `PRICES` were looked up."""

_OPENAI: Mapping[str, Price] = {
    # litellm 1.109.1, model_prices_and_context_window.json, provider "openai"; the vendor's: openai.com/api/pricing
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
"""The beginnings of the models for which OpenAI charges more for long prompts, and for writing a cache. Where that is
not certain they are among them: caps must hold."""


def _add_surcharges(model: str, price: Price) -> Price:
    price = price if model.startswith(_WRITING_COSTS_MORE) else replace(price, written=price.input)
    if not model.startswith(_LONG_COSTS_MORE):
        return price
    return replace(price, long_input=LONG_INPUT * price.input, long_output=LONG_OUTPUT * price.output)


OPENAI: Mapping[str, Price] = {model: _add_surcharges(model, price) for model, price in _OPENAI.items()}

ANTHROPIC: Mapping[str, Price] = {
    # litellm 1.109.1, likewise, provider "anthropic"; the vendor's: docs.anthropic.com/en/docs/about-claude/pricing
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
    # Only on the vendor's own page by now.
    "claude-opus-4": Price(15.0, 1.5, 75.0),
    "claude-opus-4-1": Price(15.0, 1.5, 75.0),
    "claude-sonnet-4": Price(3.0, 0.3, 15.0),
}

PRICES: Mapping[str, Price] = {**OPENAI, **ANTHROPIC}

_EDITION = re.compile(r"(-\d{8}|-\d{4}-\d{2}-\d{2}|\[\w+\])+$")
"""The day on which a model came out, and the size of its context in brackets: `-20251101`, `-2025-08-07`, `[1m]`."""


def find_price(model: str | None, own: Mapping[str, Price]) -> Price | None:
    """The price of a model, of the operator's own table first; None when nobody knows it.

    In each table it is looked for under its name, then without the provider in front (`anthropic/`), then without the
    edition behind (`-20251101`, `-2025-08-07`, `[1m]`). Nothing else is guessed: a new version may cost anything.
    """
    names = [*_spell(model)] if model else []
    return next((table[name] for table in (own, PRICES) for name in names if name in table), None)


def _spell(model: str) -> Iterator[str]:
    name = model.rpartition("/")[2]
    yield from (model, name, strip_edition(name))


def strip_edition(model: str) -> str:
    """A model's name without the edition behind it."""
    return _EDITION.sub("", model)


def compute_cost(usage: Usage, price: Price) -> float:
    """USD."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    fresh = usage.input_tokens - cached
    return (fresh * price.input + cached * price.cached + usage.output_tokens * price.output) / 1_000_000
