"""Tellings: the messages that people send to a job's agent after the job was requested. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from runner.model.job import OPERATOR
from runner.model.jobd_answers import Poll, StageState

PATIENCE = timedelta(minutes=1)
"""How long a message waits for the agent's tools to finish. After that, the tools are ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """One message of a person to the agent of one job."""

    job_id: str
    number: int
    """The number of the message. Messages are numbered from 1 on, in the order in which the agent gets them."""
    occasion: str
    """A unique text for the request, so that its message is stored only once for a job."""
    told_by: str
    told_at: datetime
    words: str
    """The message as the person wrote it."""
    message: str
    """The message as the agent gets it."""
    given_at: datetime | None = None
    """When the machine reported that the agent has the message. None if the agent does not have it."""

    @property
    def teller(self) -> str:
        """The person's name, for the beginning of a sentence."""
        return f"T{OPERATOR[1:]}" if self.told_by == OPERATOR else f"@{self.told_by}"


def is_safe_point(*, turns: int, open_calls: int, waited: timedelta) -> bool:
    """Whether an agent's session can be interrupted and resumed now.

    The current process of the session must have read its input. It has done so if the model has answered it: `turns` is
    the number of these answers. No tool may be running, unless a message has `waited` for `PATIENCE`.
    """
    return turns > 0 and (open_calls == 0 or waited >= PATIENCE)


def add_messages(prompt: str, told: list[Telling]) -> str:
    """A prompt, followed by the messages that were sent before the agent began."""
    return "\n".join([prompt.rstrip("\n") + "\n", *(telling.message for telling in told)]) if told else prompt


def find_last_given(told: Sequence[Telling], poll: Poll) -> int:
    """The number of the last message that the agent has got, as its machine reports it. 0 if it has got none.

    The number can only become smaller when the agent has ended: no process could be started for the last messages then.
    A machine that has lost the job cannot report the number, so the stored one counts.
    """
    if poll.state in (StageState.DONE, StageState.FAILED):
        return poll.told
    return max([poll.told, *(telling.number for telling in told if telling.given_at)])
