"""Counts what goes to machines and comes back in this process, and what took its time there: for whoever watches us."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

STEPS = ("fetch", "base", "tree", "checkout", "update", "edits")
"""Of making an environment, in their order."""

MAX_STEP_S = 1e6


class Took(NamedTuple):
    """How often something was done, and for how many seconds in all."""

    times: int
    seconds: float


class Traffic:
    """Round trips to each machine, how many of them failed, and what environments took. Of the event loop's thread."""

    def __init__(self) -> None:
        self._trips: Counter[str] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._rests: Counter[str] = Counter()
        self._steps: dict[str, Took] = {}

    def count_trip(self, machine: str) -> None:
        """A command is sent to a machine."""
        self._trips[machine] += 1

    def count_failure(self, machine: str, error: Exception) -> None:
        """It did not come back with an answer, for a reason of this kind."""
        self._failures[machine, type(error).__name__] += 1

    def count_rest(self, machine: str) -> None:
        """Reading from a machine rests, because it used up its share of the event loop."""
        self._rests[machine] += 1

    def read_rests(self) -> Mapping[str, int]:
        """How often reading rested, by machine."""
        return dict(self._rests)

    def read_trips(self) -> Mapping[str, int]:
        """How many commands were sent, by machine."""
        return dict(self._trips)

    def read_failures(self) -> Mapping[tuple[str, str], int]:
        """How many had no answer, by machine and kind of error."""
        return dict(self._failures)

    def count_steps(self, told: object) -> None:
        """An environment was made, and its machine says what took how many seconds: whatever it says."""
        for step in STEPS:
            seconds = told.get(step) if isinstance(told, dict) else None
            if isinstance(seconds, float) and 0 <= seconds < MAX_STEP_S:
                before = self._steps.get(step, Took(0, 0.0))
                self._steps[step] = Took(before.times + 1, before.seconds + seconds)

    def read_steps(self) -> Mapping[str, Took]:
        """What the steps of environments took, all together."""
        return dict(self._steps)


TRAFFIC = Traffic()
"""Of this process."""
