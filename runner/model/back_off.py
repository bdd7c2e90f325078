"""How long to wait before something that failed is tried again, where each wait is longer than the last. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_DOUBLINGS = 60
"""Failures may be counted for years, and a float ends near 2 to the power of 1,024."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """Waits in seconds: the first, and the longest of all. Each is twice as long as the one before."""

    first_s: float
    longest_s: float = math.inf

    def after(self, failures: int, *, asked_s: float = 0.0, chance: float = 0.5) -> float:
        """The wait after so many failures in a row (from 1).

        It is never shorter than `asked_s`, which is what the other side asks for. `chance` (0 to 1) spreads the wait
        over 50 to 150 %, so that many clients do not come back at the same moment.
        """
        doubled_s = self.first_s * 2.0 ** min(failures - 1, MAX_DOUBLINGS)
        return max(asked_s, min(doubled_s * (0.5 + chance), self.longest_s))

    def since(self, elapsed_s: float) -> float:
        """The wait where failures are not counted: as long as it has failed already. So each about doubles the time."""
        return min(max(elapsed_s, self.first_s), self.longest_s)
