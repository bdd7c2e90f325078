"""Usage: the tokens, money and time of one model answer, of one run, or of many runs together. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The usage of a model answer, of a run, or of many together."""

    jobs: int = 0
    """The number of jobs. 0 for a part of a job."""
    turns: int = 0
    input_tokens: int = 0
    """All input tokens, including those from a cache."""
    cached_tokens: int = 0
    """The input tokens from a cache."""
    output_tokens: int = 0
    known_usd: float = 0.0
    """The known part of the cost, in US dollars."""
    unpriced: int = 0
    """The number of parts (answers or runs) with an unknown cost."""
    unpriced_turns: int = 0
    """The turns of these parts."""
    unpriced_run_s: float = 0.0
    """Seconds that agents ran in these parts."""
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
        """The total cost in US dollars. None if the cost of any part is unknown."""
        return None if self.unpriced else self.known_usd

    def with_cost(self, cost_usd: float | None) -> Usage:
        """The same usage, as one part with this cost in US dollars. None means that the cost is unknown."""
        return replace(self, known_usd=cost_usd or 0.0, unpriced=int(cost_usd is None)).as_one()

    def with_run_s(self, run_s: float) -> Usage:
        """The same usage, as one part with this running time in seconds."""
        return replace(self, run_s=run_s).as_one()

    def as_one(self) -> Usage:
        """The same usage, as one part. If the cost of any part is unknown, all turns and seconds are at unknown cost.

        The known part of the cost is kept, so that it counts towards caps on money.
        """
        if not self.unpriced:
            return replace(self, unpriced_turns=0, unpriced_run_s=0.0)
        return replace(self, unpriced=1, unpriced_turns=self.turns, unpriced_run_s=self.run_s)

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in _NAMES})

    def __sub__(self, other: Usage) -> Usage:
        """The usage without `other`, which is a part of it. Nothing becomes negative."""
        return Usage(**{name: max(getattr(self, name) - getattr(other, name), 0) for name in _NAMES})


_NAMES = tuple(field.name for field in fields(Usage))

NOTHING = Usage()
