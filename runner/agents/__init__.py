"""Agents: how each backend is started on a machine, and what its events mean. One file for each backend. Pure.

A backend knows neither machines nor absolute paths: it is started in the worktree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from runner.agents.claude import ClaudeAgent
from runner.agents.codex import CodexAgent
from runner.agents.command import CommandAgent
from runner.agents.cursor import CursorAgent
from runner.agents.pi import PiAgent
from runner.agents.protocol import Agent, AgentSpec, Launch, Run, Tail

__all__ = ["BACKENDS", "Agent", "AgentSpec", "Launch", "Run", "Tail", "build_agent"]

BACKENDS: Mapping[str, Callable[[AgentSpec], Agent]] = {
    "claude": ClaudeAgent,
    "codex": CodexAgent,
    "command": CommandAgent,
    "cursor": CursorAgent,
    "pi": PiAgent,
}


def build_agent(spec: AgentSpec) -> Agent:
    """The agent that `spec` describes. Raises `KeyError` for an unknown kind."""
    return BACKENDS[spec.kind](spec)
