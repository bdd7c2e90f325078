"""What a run has taken so far, as people and caps see it. Pure; refuses to know where events come from."""

from __future__ import annotations

from dataclasses import dataclass

from runner.model.usage import Usage

UNKNOWN = Usage(jobs=1, unpriced=1)
"""What a run has taken about which nothing is known."""


@dataclass(frozen=True, slots=True)
class Meter:
    """The reading of one job's meter: counted live, so that a run which was killed has one too."""

    job_id: str
    usage: Usage = UNKNOWN
    """Of one job. Its cost is unknown where neither the agent nor the price table knows it."""
    model: str | None = None
    """As the agent itself says it."""
    tool_calls: int = 0
    retries: int = 0
    unknown_events: int = 0
    cost_is_estimate: bool = False
    """Whether the money was computed from tokens and the price table, because nobody reported it."""
    is_self_reported: bool = False
    """Whether turns, tokens and money are the agent's own words: nobody else has counted them."""
    last_tool: str = ""
    """Which tool it used last: a stranger's text. What it did with it may be what only the operator should know."""
    ending: str | None = None
    """One of `runner.model.ending.Ending` once the run has ended."""
