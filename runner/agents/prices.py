"""What tokens cost, for backends that do not say it themselves. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.agents.events import Usage


@dataclass(frozen=True, slots=True)
class Price:
    """USD for a million tokens."""

    input: float
    cached: float
    """What comes out of a cache."""
    output: float


PRICES: Mapping[str, Price] = {}


def find_price(model: str | None, own: Mapping[str, Price]) -> Price | None:
    """The price of a model, of the operator's own table first; None when nobody knows it."""
    return (own.get(model) or PRICES.get(model)) if model else None


def reckon_cost(usage: Usage, price: Price) -> float:
    """USD."""
    fresh = usage.input_tokens - usage.cached_tokens
    return (fresh * price.input + usage.cached_tokens * price.cached + usage.output_tokens * price.output) / 1_000_000
