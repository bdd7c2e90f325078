"""Judges how a run ended. Pure."""

from __future__ import annotations

from runner.agents.events import Tally
from runner.model.caps import say_who_raises
from runner.model.ending import Ending, RunVerdict

KILLED_FROM = 128
"""An exit status above this number means a signal, as in a shell."""


OPERATOR_RAISES = say_who_raises("caps.job")


def judge(
    tally: Tally,
    exit_status: int | None,
    *,
    speaks: bool,
    told: RunVerdict | None = None,
    raising: str = OPERATOR_RAISES,
) -> RunVerdict:
    """The verdict on an ended run.

    `exit_status` is None if nobody saw the end. `speaks` says whether the backend reports the end with an event. If it
    does, and there is no such event, the agent did not finish. `told` is why the service stopped the agent, if it did.
    A run that had finished before that counts as finished, unless it was cancelled. `raising` says who can raise the
    cap at which an agent ends itself.
    """
    finished = speaks and tally.ending is Ending.FINISHED
    if told and (told.ending is Ending.CANCELLED or not finished):
        return told
    if tally.ending is Ending.FINISHED and tally.denials and tally.denials >= tally.tool_calls:
        return RunVerdict(Ending.DENIED, f"the agent was not permitted any of its {tally.tool_calls} tool calls")
    if tally.ending is not None:
        return RunVerdict(tally.ending, _explain(tally.ending, tally, raising))
    if exit_status is None:
        return RunVerdict(Ending.KILLED, "the agent was killed from outside, or its machine was restarted")
    if exit_status > KILLED_FROM:
        return RunVerdict(Ending.KILLED, f"the agent was killed by signal {exit_status - KILLED_FROM}")
    if exit_status:
        return RunVerdict(Ending.GAVE_UP, f"the agent exited with status {exit_status}{_quote(tally.last_error)}")
    if speaks:
        return RunVerdict(Ending.GAVE_UP, f"the agent ended without saying that it was done{_quote(tally.last_error)}")
    return RunVerdict(Ending.FINISHED)


def _explain(ending: Ending, tally: Tally, raising: str) -> str:
    told = _quote(tally.last_error)
    return {
        Ending.FINISHED: "",
        Ending.GAVE_UP: f"the agent gave up{told}",
        Ending.MODEL_FAILED: f"the agent's model failed{told}",
        Ending.CAPPED: f"the agent reached its own cap ({raising}){told}",
        Ending.STUCK: "the agent was stuck",
        Ending.CANCELLED: "the agent was cancelled",
        Ending.DENIED: "the agent was not permitted what it tried",
        Ending.INTERRUPTED: "the agent was interrupted",
        Ending.KILLED: "the agent was killed",
    }[ending]


def _quote(text: str) -> str:
    """The agent's own text, on a second line. Only people who may read the log see that line."""
    line = " ".join(text.split())
    return f":\n{line[:300]}" if line else ""
