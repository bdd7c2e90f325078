"""What a run has taken so far, as people and caps see it. Pure; refuses to know where events come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meter:
    """The reading of one job's meter: counted live, so that a run which was killed has one too."""

    job_id: str
    model: str | None = None
    """As the agent itself says it."""
    turns: int = 0
    tool_calls: int = 0
    retries: int = 0
    unknown_events: int = 0
    input_tokens: int = 0
    """What came out of a cache included."""
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    """None when neither the agent nor the price table knows."""
    cost_is_estimate: bool = False
    """Whether the money was reckoned from tokens and the price table: the agent has not said it."""
    output_bytes: int = 0
    run_s: float = 0.0
    """Seconds since the agent was started."""
    last_tool: str = ""
    """Which tool it used last: a stranger's text. What it did with it may be what only the operator should know."""
    heading: str = ""
    """The last one of its worklog: a stranger's text, which may tell what only the operator should know."""
    ending: str | None = None
    """One of `runner.model.ending.Ending` once the run has ended."""

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.input_tokens + self.output_tokens
