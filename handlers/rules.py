"""What an operator allows for each repository: plain values out of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Preset:
    """A depth of work. `may_change` says whether its diff can become a pull request."""

    name: str
    may_change: bool
    goal: str
    """What it does, as the end of the sentence "the agent will ..."."""


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("repro", False, "try to reproduce the issue"),
        Preset("diagnose", False, "reproduce the issue and look for its root cause"),
        Preset("fix", True, "reproduce the issue, fix it and add a regression test"),
    )
}


@dataclass(frozen=True, slots=True)
class RepositoryRules:
    """One `[repos."owner/name"]` table of the configuration."""

    name: str
    agent: str
    agents: tuple[str, ...] = ()
    """Every agent that `--agent` may name."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Trigger label -> preset name."""
    clone_url: str | None = None
    """Where machines fetch from; None means the address GitHub gives."""
    base_branch: str | None = None
    """None means the repository's default branch."""
    test_command: str = "python -m pytest"
    """What the brief tells the agent to run, with the job's virtual environment active."""
    lint_command: str | None = None
    rebuild_command: str | None = None
    """What the brief tells the agent to run after it edited what is compiled."""
    tools: tuple[str, ...] = ()
    """Debugging tools that the brief names."""
    push_to: str | None = None
    """The fork that branches and commits go to; None means the repository itself."""
    commit_author: str = "app"
    """`app`, or `approver`: the person whose note approves the change."""
    sign_off: bool = False
    """Whether commits carry the approver's `Signed-off-by:` line."""
    max_open_pulls: int = 5
    """Open pull requests of ours at which no note opens another."""
    import_names: tuple[str, ...] = ()
    """The project's top-level modules: a code block that imports one is a repro. Empty: any import will do."""
