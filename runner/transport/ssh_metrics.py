"""Counts trips to machines, failures and durations in this process, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

STEPS = ("fetch", "base", "tree", "checkout", "update", "edits")
"""The parts of making an environment, in order."""

MAX_STEP_S = 1e6


class Took(NamedTuple):
    """How often something was done, and its total duration in seconds."""

    times: int
    seconds: float


class SshMetrics:
    """Trips to each machine, failures, pauses in reading, and durations of environments. Not thread-safe."""

    def __init__(self) -> None:
        self._trips: Counter[str] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._rests: Counter[str] = Counter()
        self._steps: dict[str, Took] = {}

    def count_trip(self, machine: str) -> None:
        """Count a command that is sent to a machine."""
        self._trips[machine] += 1

    def count_failure(self, machine: str, error: Exception) -> None:
        """Count a command that failed with this kind of error."""
        self._failures[machine, type(error).__name__] += 1

    def count_rest(self, machine: str) -> None:
        """Count a pause in reading from a machine that has used up its share of the event loop."""
        self._rests[machine] += 1

    def read_rests(self) -> Mapping[str, int]:
        """How often reading paused, by machine."""
        return dict(self._rests)

    def read_trips(self) -> Mapping[str, int]:
        """How many commands were sent, by machine."""
        return dict(self._trips)

    def read_failures(self) -> Mapping[tuple[str, str], int]:
        """How many commands failed, by machine and kind of error."""
        return dict(self._failures)

    def count_steps(self, told: object) -> None:
        """Add the durations in a machine's answer about an environment. Invalid ones are ignored."""
        for step in STEPS:
            seconds = told.get(step) if isinstance(told, dict) else None
            if isinstance(seconds, float) and 0 <= seconds < MAX_STEP_S:
                before = self._steps.get(step, Took(0, 0.0))
                self._steps[step] = Took(before.times + 1, before.seconds + seconds)

    def read_steps(self) -> Mapping[str, Took]:
        """The total durations of the parts of making environments."""
        return dict(self._steps)


SSH_METRICS = SshMetrics()
"""The counts of this process."""
