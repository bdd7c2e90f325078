"""Counts trips to machines, failures and durations in this process, for the metrics."""

from __future__ import annotations

from collections import Counter
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
        self.trips: Counter[str] = Counter()
        """How many commands were sent, by machine."""
        self.failures: Counter[tuple[str, str]] = Counter()
        """How many commands failed, by machine and kind of error."""
        self.rests: Counter[str] = Counter()
        """How often reading from a machine that had used up its share of the event loop paused, by machine."""
        self.steps: dict[str, Took] = {}
        """The total durations of the parts of making environments."""

    def count_failure(self, machine: str, error: Exception) -> None:
        """Count a command that failed with this kind of error."""
        self.failures[machine, type(error).__name__] += 1

    def count_steps(self, told: object) -> None:
        """Add the durations in a machine's answer about an environment. Invalid ones are ignored."""
        for step in STEPS:
            seconds = told.get(step) if isinstance(told, dict) else None
            if isinstance(seconds, float) and 0 <= seconds < MAX_STEP_S:
                before = self.steps.get(step, Took(0, 0.0))
                self.steps[step] = Took(before.times + 1, before.seconds + seconds)


SSH_METRICS = SshMetrics()
"""The counts of this process."""
