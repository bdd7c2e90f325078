"""How a run of an agent ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    GAVE_UP = "gave up"
    MODEL_FAILED = "model failed"
    CAPPED = "capped"
    STUCK = "stuck"
    DENIED = "denied"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """How a run ended, and for anything but a finished run why, as a clause for people."""

    ending: Ending
    reason: str = ""

    @property
    def finished(self) -> bool:
        """Whether the agent did what it set out to do."""
        return self.ending is Ending.FINISHED
