"""What agents have taken, said in as few words as a test needs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from runner.model.meter import Meter
from runner.model.usage import Usage

_COUNTS = {field.name for field in fields(Usage)}


def make_usage(
    input_tokens: int = 0, cached_tokens: int = 0, output_tokens: int = 0, cost_usd: float | None = None
) -> Usage:
    """What one answer of a model takes."""
    usage = Usage(input_tokens=input_tokens, cached_tokens=cached_tokens, output_tokens=output_tokens)
    return usage.with_cost(cost_usd)


def make_meter(job_id: str = "j", *, cost_usd: float | None = None, **values: Any) -> Meter:
    """A meter with these values of its own and of its usage."""
    counts = {name: values.pop(name) for name in [*values] if name in _COUNTS}
    return Meter(job_id, Usage(jobs=1, **counts).with_cost(cost_usd), **values)
