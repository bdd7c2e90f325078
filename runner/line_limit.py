"""Bounds the lines of the log that others can cause, and says how many were left out."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_LINES, MINUTE_S = 20, 60.0


class LineLimit:
    """Twenty lines a minute."""

    def __init__(self, say_left_out: Callable[[int], None]) -> None:
        """`say_left_out` writes to the log how many lines were left out."""
        self._say_left_out = say_left_out
        self._lines = 0
        """How many there were in this minute, or would have been."""
        self._since = time.monotonic()

    def admit(self) -> bool:
        """Whether one more line may be in the log now."""
        self.end_minute()
        self._lines += 1
        return self._lines <= MAX_LINES

    def end_minute(self) -> None:
        """If a minute is over, say how many lines were left out in it, and begin the next one."""
        if time.monotonic() - self._since > MINUTE_S:
            self.end()
            self._since = time.monotonic()

    def end(self) -> None:
        """Say how many lines were left out."""
        lines, self._lines = self._lines, 0
        if lines > MAX_LINES:
            self._say_left_out(lines - MAX_LINES)
