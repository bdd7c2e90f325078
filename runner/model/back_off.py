"""How long to wait before a retry, with growing waits. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_DOUBLINGS = 60
"""The most times that a wait doubles. Failures may be counted for years, and a float overflows near 2 ** 1024."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """The first and the longest wait, in seconds. Each wait is twice as long as the one before."""

    first_s: float
    longest_s: float = math.inf

    def after(self, failures: int, *, asked_s: float = 0.0, chance: float = 0.5) -> float:
        """The wait after this many failures in a row (from 1).

        It is at least `asked_s`, which the other side has asked for. `chance` (0 to 1) spreads the wait over 50 to
        150 %, so that many clients do not retry at the same moment.
        """
        doubled_s = self.first_s * 2.0 ** min(failures - 1, MAX_DOUBLINGS)
        return max(asked_s, min(doubled_s * (0.5 + chance), self.longest_s))

    def since(self, elapsed_s: float) -> float:
        """The wait if failures are not counted. It equals the time since the first failure, so each wait doubles it."""
        return min(max(elapsed_s, self.first_s), self.longest_s)
