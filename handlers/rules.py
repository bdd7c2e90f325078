"""What an operator allows for each repository: plain values out of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from runner.model.caps import Caps, Scope
from runner.model.job import KINDS, JobKind

REBASE, VERIFY = "rebase", "verify"
"""The presets whose jobs are of a kind of their own."""

_OWN_KINDS = {REBASE: JobKind.REBASE, VERIFY: JobKind.VERIFY}


class Role(IntEnum):
    """What somebody may do in a repository, in GitHub's own words and order."""

    NONE = 0
    READ = 1
    TRIAGE = 2
    WRITE = 3
    MAINTAIN = 4
    ADMIN = 5

    @property
    def word(self) -> str:
        """As GitHub and people say it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Preset:
    """A depth of work. `may_change` says whether its diff can become a pull request."""

    name: str
    may_change: bool
    goal: str
    """What it does, as the end of the sentence "the agent will ..."."""
    carries_on: bool = False
    """Whether it takes up the edits of the issue's last attempt, and makes no sense without."""
    needs_advice: bool = False
    """Whether the advice of whoever asks is all that says what is to be done."""
    instructions: str | None = None
    """The operator's own: how to work, as Markdown. None where a template of ours says it."""

    @property
    def kind(self) -> JobKind:
        """The kind of its jobs on issues."""
        return _OWN_KINDS.get(self.name, JobKind.AGENT)

    @property
    def has_agent(self) -> bool:
        """Whether an agent works, or the service only looks itself."""
        return KINDS[self.kind].has_agent

    @property
    def promise(self) -> str:
        """What it does, as a sentence."""
        return f"{'The agent' if self.has_agent else 'ptq-bot itself'} will {self.goal}."

    @property
    def command(self) -> str:
        """What somebody types to have it."""
        return find_command(self.name)


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("repro", False, "try to reproduce the issue"),
        Preset("diagnose", False, "reproduce the issue and look for its root cause"),
        Preset("fix", True, "reproduce the issue, fix it and add a regression test"),
        Preset("simplify", True, "make the last attempt's change simpler, and keep what it does", carries_on=True),
        Preset(
            REBASE,
            True,
            "carry the change over to the newest commit of its base branch, where git alone cannot",
            carries_on=True,
        ),
        Preset(VERIFY, False, "run the scripts that are known of the issue, on today's base branch"),
        Preset("ad-hoc", True, "do what your advice says", needs_advice=True),
    )
}
"""Those that we bring along; an operator may add their own."""

COMMANDED = frozenset({"repro", "diagnose", "fix", "simplify", REBASE, VERIFY})
"""Presets that are commands by themselves."""


def find_command(preset: str) -> str:
    """What somebody types to have a preset of that name."""
    return f"/ptq {preset}" if preset in COMMANDED else f"/ptq run {preset}"


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
    requires: tuple[str, ...] = ()
    """The labels of the machines that its jobs run on."""
    pause_label: str = "ptq:pause"
    """On any issue it keeps new jobs of the repository from beginning."""
    case_labels: bool = False
    """Whether issues show by a label where their case stands."""
    who_may_start: Role = Role.WRITE
    who_may_open: Role = Role.WRITE
    """Who may give a note, and enter an environment."""
    takeover: bool = True
    """Whether people may take jobs over by a comment."""
    presets: tuple[str, ...] | None = None
    """The only ones that may be asked for; None: all there are."""
    quotas: Mapping[Scope, int] = field(default_factory=dict)
    """Jobs, at most, beside what the operator's caps say."""
    fault: str | None = None
    """Why the repository's own file cannot be understood: nothing starts until it is mended."""

    @property
    def own_caps(self) -> Mapping[Scope, Caps]:
        """The quotas as caps."""
        return {scope: Caps(jobs=limit) for scope, limit in self.quotas.items()}
