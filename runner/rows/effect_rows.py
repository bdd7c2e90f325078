"""The fields that the rows of all effects share. `runner.db.columns.retry_columns` has their columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow:
    """A row about something that should exist outside: when it is tried next, and what came of earlier attempts."""

    next_attempt_at: datetime
    attempts: int = 0
    """The number of consecutive attempts."""
    refusals: int = 0
    """The number of refused attempts."""
    absences: int = 0
    """How many consecutive refusals, up to the newest one, said that something does not exist."""
    trouble: str | None = None
    """Why the effect waits, for people."""
    abandoned: str | None = None
    """Why it is not tried again, for people."""
