"""How a job's environment is made: one repository's recipe, as plain values for the machine-side program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.caps import Caps, Scope

PROTECTED_PATHS = (".github/**", ".ci/**", ".gitmodules", "CODEOWNERS")
"""Paths that no agent may change, unless the operator says otherwise."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a job may take and what may come out of it. Durations in seconds, sizes in bytes."""

    timeout_s: int = 3600
    prepare_timeout_s: int = 1800
    collect_timeout_s: int = 900
    unreachable_after_s: int = 600
    """How long a job waits for a machine that cannot be reached before it is reported as failed."""
    stuck_after_s: int = 1800
    """How long an agent may go without an event before it is taken for stuck; of a `command` any line is one."""
    stop_grace_s: int = 20
    """How long an agent that is told to end may take to say what it has cost."""
    max_log_bytes: int = 50_000_000
    """An agent that prints more is ended: what cannot be read cannot be judged."""
    max_session_bytes: int = 10_000_000
    """The agent's own memory of a run, which a later attempt resumes; a larger one is not kept."""
    max_text_bytes: int = 200_000
    """Each of report, worklog, repro."""
    max_change_bytes: int = 2_000_000
    """All changed files together."""
    max_changes: int = 300


@dataclass(frozen=True, slots=True)
class Profile:
    """One repository's recipe. Commands are the operator's own shell lines."""

    repository: str
    requires: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    lint: tuple[str, ...] = ()
    create_venv: tuple[str, ...] = ("python3", "-m", "venv")
    """The command that makes a virtual environment at the path appended to it."""
    protected_paths: tuple[str, ...] = PROTECTED_PATHS
    limits: Limits = Limits()
    caps: Mapping[Scope, Caps] = field(default_factory=dict)
