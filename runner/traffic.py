"""Counts what goes to machines and comes back, in this process: for those who watch the service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class Traffic:
    """Round trips to each machine, and how many of them failed. Of the event loop's thread alone."""

    def __init__(self) -> None:
        self._trips: Counter[str] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()

    def count_trip(self, machine: str) -> None:
        """A command is sent to a machine."""
        self._trips[machine] += 1

    def count_failure(self, machine: str, error: Exception) -> None:
        """It did not come back with an answer, for a reason of this kind."""
        self._failures[machine, type(error).__name__] += 1

    def read_trips(self) -> Mapping[str, int]:
        """How many commands were sent, by machine."""
        return dict(self._trips)

    def read_failures(self) -> Mapping[tuple[str, str], int]:
        """How many had no answer, by machine and kind of error."""
        return dict(self._failures)


TRAFFIC = Traffic()
"""Of this process."""
