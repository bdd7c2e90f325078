"""What agents take: tokens, money and time, from one answer of a model to all runs of a month. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one answer of a model, one run, or many together have taken."""

    jobs: int = 0
    """How many jobs it is of; 0 for a part of one."""
    turns: int = 0
    input_tokens: int = 0
    """All that models read, tokens out of a cache included."""
    cached_tokens: int = 0
    """The input tokens that came out of a cache."""
    output_tokens: int = 0
    known_usd: float = 0.0
    """The cost in US dollars, as far as it is known."""
    unpriced: int = 0
    """How many of its parts, answers or runs, have an unknown cost: 1 where an agent does not name its cost."""
    run_s: float = 0.0
    """Seconds that agents ran."""
    output_bytes: int = 0
    """Bytes that agents printed."""

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def cost_usd(self) -> float | None:
        """The whole cost in US dollars; None, which is not 0, where nobody knows the cost of some part."""
        return None if self.unpriced else self.known_usd

    def with_cost(self, cost_usd: float | None) -> Usage:
        """The same usage as one part with this cost in US dollars; None where nobody knows it."""
        return replace(self, known_usd=cost_usd or 0.0, unpriced=int(cost_usd is None))

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in _NAMES})

    def __sub__(self, other: Usage) -> Usage:
        """What is left without `other`, which is a part of it. Nothing gets negative."""
        return Usage(**{name: max(getattr(self, name) - getattr(other, name), 0) for name in _NAMES})


_NAMES = tuple(field.name for field in fields(Usage))

NOTHING = Usage()
