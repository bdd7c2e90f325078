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
    """How a run ended. If it did not finish, `reason` says why, as a clause for people."""

    ending: Ending
    reason: str = ""

    @property
    def finished(self) -> bool:
        """Whether the agent finished its work."""
        return self.ending is Ending.FINISHED
