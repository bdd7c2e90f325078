"""The meter of a job: what its run has used so far. People see it, and caps are checked against it. Pure.

This module does not know where an agent's events come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.model.usage import Usage

UNKNOWN = Usage(jobs=1, unpriced=1)
"""The usage of a run about which nothing is known."""


@dataclass(frozen=True, slots=True)
class Meter:
    """The current values of one job's meter. They are counted while the agent runs, so a killed run has values, too."""

    job_id: str
    usage: Usage = UNKNOWN
    """The usage of the job. The cost is unknown if neither the agent nor the price table says it."""
    model: str | None = None
    """The model, as the agent reports it."""
    tool_calls: int = 0
    retries: int = 0
    unknown_events: int = 0
    cost_is_estimate: bool = False
    """Whether the cost was computed from tokens and the price table, because the agent did not report it."""
    is_self_reported: bool = False
    """Whether turns, tokens and cost are only the agent's own claims, because the gateway did not count them."""
    last_tool: str = ""
    """The name of the last used tool, as untrusted text. The tool's input may be confidential, so it is left out."""
    ending: str | None = None
    """A value of `runner.model.ending.Ending`. None while the run has not ended."""
