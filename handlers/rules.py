"""The operator's rules for each repository, as plain values from the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from runner.model.caps import Caps, Scope
from runner.model.job import KINDS, JobKind

REBASE, VERIFY = "rebase", "verify"
"""The presets whose jobs have a kind of their own."""

_OWN_KINDS = {REBASE: JobKind.REBASE, VERIFY: JobKind.VERIFY}


class Role(IntEnum):
    """A person's role in a repository, with GitHub's names and order."""

    NONE = 0
    READ = 1
    TRIAGE = 2
    WRITE = 3
    MAINTAIN = 4
    ADMIN = 5

    @property
    def word(self) -> str:
        """The name on GitHub."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Preset:
    """A kind of work. `may_change` says whether its diff can become a pull request."""

    name: str
    may_change: bool
    goal: str
    """The end of the sentence "The agent will ..."."""
    carries_on: bool = False
    """Whether it continues with the edits of the last attempt, and needs them."""
    needs_advice: bool = False
    """Whether the advice is the whole task."""
    instructions: str | None = None
    """How the operator wants agents to work, in Markdown. None: as ptq-bot's template says."""

    @property
    def kind(self) -> JobKind:
        """The kind of its jobs on issues."""
        return _OWN_KINDS.get(self.name, JobKind.AGENT)

    @property
    def has_agent(self) -> bool:
        """Whether an agent works, or only the service itself."""
        return KINDS[self.kind].has_agent

    @property
    def is_replaceable(self) -> bool:
        """Whether an operator can replace its instructions. The service has a part in the work of the others."""
        return self.kind is JobKind.AGENT

    @property
    def promise(self) -> str:
        """A sentence about what it does."""
        return f"{'The agent' if self.has_agent else 'ptq-bot itself'} will {self.goal}."

    @property
    def command(self) -> str:
        """The command that starts it."""
        return find_command(self.name)


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("repro", False, "try to reproduce the issue"),
        Preset("diagnose", False, "reproduce the issue and look for its root cause"),
        Preset("fix", True, "reproduce the issue, fix it and add a regression test"),
        Preset("simplify", True, "simplify the last attempt's change without changing its behaviour", carries_on=True),
        Preset(
            REBASE,
            True,
            "resolve the conflicts between the change and the newest commit of its base branch",
            carries_on=True,
        ),
        Preset(VERIFY, False, "run the issue's known scripts on the current base branch"),
        Preset("ad-hoc", True, "do what your advice says", needs_advice=True),
    )
}
"""The built-in presets. An operator can add others."""

COMMANDED = frozenset(PRESETS) - {"ad-hoc"}
"""The presets that are commands by themselves. `/ptq run` starts the others."""


def find_command(preset: str) -> str:
    """The command that starts the preset of this name."""
    return f"/ptq {preset}" if preset in COMMANDED else f"/ptq run {preset}"


@dataclass(frozen=True, slots=True)
class Offer:
    """What people may request of an agent."""

    models: tuple[str, ...] = ()
    """The configured model first."""
    thinking: tuple[str, ...] = ()
    """The levels of thinking; empty if it has no such option."""
    is_counted: bool = True
    """Whether somebody counts its turns and its cost, so that a run can have limits of its own."""


@dataclass(frozen=True, slots=True)
class RepositoryRules:
    """One `[repos."owner/name"]` table of the configuration."""

    name: str
    agent: str
    agents: tuple[str, ...] = ()
    """The agents that `--agent` may request."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Trigger label -> preset name."""
    clone_url: str | None = None
    """The address that machines fetch from; None means GitHub's address."""
    base_branch: str | None = None
    """None means the repository's default branch."""
    environment_branch: str | None = None
    """The branch that environments and jobs begin from; None means the base branch."""
    test_command: str = "python -m pytest"
    """The command in the brief for running tests, with the job's virtual environment active."""
    lint_command: str | None = None
    rebuild_command: str | None = None
    """The command in the brief for rebuilding after edits of compiled code."""
    tools: tuple[str, ...] = ()
    """Debugging tools that the brief mentions."""
    companions: tuple[str, ...] = ()
    """Other repositories whose files its agents can read."""
    skills: tuple[str, ...] = ()
    """The skills of all its jobs: names, and folders of the repository (`runner.agents.skills`)."""
    brief: str = ""
    """What the operator tells every agent about the project, as Markdown."""
    push_to: str | None = None
    """The fork for branches and commits; None means the repository itself."""
    commit_author: str = "app"
    """`app`, or `approver`: the person whose note approves the change."""
    sign_off: bool = False
    """Whether commits carry the approver's `Signed-off-by:` line."""
    max_open_pulls: int = 5
    """With this many open pull requests of ours, notes open no more."""
    import_names: tuple[str, ...] = ()
    """The project's top-level modules: a code block that imports one is a repro. Empty: any import counts."""
    requires: tuple[str, ...] = ()
    """The labels that machines must have for its jobs."""
    routes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label of an issue -> further labels that machines must have for its jobs."""
    pause_label: str = "ptq:pause"
    """On any issue, it pauses new jobs of the repository."""
    case_labels: bool = False
    """Whether a label on each issue shows the state of its case."""
    who_may_start: Role = Role.WRITE
    who_may_open: Role = Role.WRITE
    """Who may write notes, and enter environments."""
    takeover: bool = True
    """Whether people may take over jobs with a comment."""
    presets: tuple[str, ...] | None = None
    """The only allowed presets; None: all."""
    caps: Mapping[Scope, Caps] = field(default_factory=dict)
    """The operator's caps."""
    quotas: Mapping[Scope, int] = field(default_factory=dict)
    """The most jobs, in addition to the operator's caps."""
    fault: str | None = None
    """Why the repository's own file is not valid. Nothing starts until it is fixed."""

    def find_route(self, labels: Iterable[str]) -> tuple[str, ...]:
        """The machine labels to which the labels of an issue lead. GitHub ignores upper and lower case in labels."""
        routes, wanted = {label.casefold(): machines for label, machines in self.routes.items()}, dict[str, None]()
        for label in labels:
            wanted |= dict.fromkeys(routes.get(label.casefold(), ()))
        return tuple(wanted)

    @property
    def run_caps(self) -> Caps:
        """The operator's caps of one run."""
        return self.caps.get(Scope.JOB, Caps())

    @property
    def own_caps(self) -> Mapping[Scope, Caps]:
        """The quotas as caps."""
        return {scope: Caps(jobs=limit) for scope, limit in self.quotas.items()}
