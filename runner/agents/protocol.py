"""What every agent backend gives: a pure description of the process to start, and a reader of its log lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One `[agents.NAME]` table of the configuration."""

    name: str
    kind: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the agent's clean environment. Values are secrets: never logged, redacted from what is posted."""
    model: str | None = None
    """Disclosed in reports and pull requests."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The process to start: it runs in the worktree, with the contract's `PTQ_*` variables set."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the agent says that it did its work, and if not, why, as a sentence."""

    finished: bool
    reason: str = ""


class Agent(Protocol):
    """One backend, configured. Every method is pure."""

    spec: AgentSpec

    def launch(self) -> Launch:
        """The process that is this agent."""

    def read_line(self, line: str) -> str | None:
        """One line of its log as a person should see it; None to leave it out."""

    def judge(self, exit_status: int) -> Verdict:
        """What its end means."""
