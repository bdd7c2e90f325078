"""What people tell a job's agent after its job was requested. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from runner.model.job import OPERATOR
from runner.model.jobd_answers import Poll, StageState

PATIENCE = timedelta(minutes=1)
"""How long a message waits until the agent's tools have finished. After that, they are ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """One message of a person to the agent of one job."""

    job_id: str
    number: int
    """From 1 on, in the order in which the agent gets them."""
    occasion: str
    """A unique text for the request, so that it is stored only once for its job."""
    told_by: str
    told_at: datetime
    words: str
    """As the person wrote them."""
    message: str
    """What the agent gets."""
    given_at: datetime | None = None
    """When the service heard from the machine that the agent has it; None if the agent has not got it."""

    @property
    def teller(self) -> str:
        """Who told it, for people, at the beginning of a sentence."""
        return f"T{OPERATOR[1:]}" if self.told_by == OPERATOR else f"@{self.told_by}"


def is_safe_point(*, turns: int, open_calls: int, waited: timedelta) -> bool:
    """Whether an agent's session can be interrupted and resumed now.

    It has read its input once the model has answered: `turns` counts the answers to the current process of its session.
    None of its tools is at work then, unless a message has `waited` too long for that.
    """
    return turns > 0 and (open_calls == 0 or waited >= PATIENCE)


def add_messages(prompt: str, told: list[Telling]) -> str:
    """A prompt with the messages that came before the agent began."""
    return "\n".join([prompt.rstrip("\n") + "\n", *(telling.message for telling in told)]) if told else prompt


def find_last_given(told: Sequence[Telling], poll: Poll) -> int:
    """The number of the last message that the agent has got, by what its machine says; 0 if it has got none.

    Only an agent that has ended can turn out to have got fewer than before, if no process could be started for the last
    ones. A machine that has lost the job does not know.
    """
    if poll.state in (StageState.DONE, StageState.FAILED):
        return poll.told
    return max([poll.told, *(telling.number for telling in told if telling.given_at)])
