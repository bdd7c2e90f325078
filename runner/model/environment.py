"""How a job's environment is made: one repository's recipe, as plain values for the machine-side program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runner.model.caps import Caps, Scope

NAMED_PATHS = (".github/**", ".ci/**", ".gitmodules", "CODEOWNERS")
"""The protected paths that agents are told by name; the others are the configuration of other CI services."""

PROTECTED_PATHS = (
    *NAMED_PATHS,
    *(".gitlab-ci*", ".gitea/**", ".forgejo/**", ".circleci/**", ".buildkite/**", ".teamcity/**", ".semaphore/**"),
    *("Jenkinsfile*", "azure-pipelines*.y*", ".azure-pipelines/**", "bitbucket-pipelines.y*", ".travis.yml"),
    *("appveyor.yml", ".appveyor.yml", ".drone.*", ".woodpecker*", ".cirrus.*", "codefresh.y*", "cloudbuild.y*"),
    *("buildspec*.y*", ".pre-commit-config.yaml"),
)
"""Paths that no agent may change, unless the operator says otherwise: who has to review, and what CI services run,
often with secrets (pre-commit.ci may push to branches)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a job may take and what may come out of it. Durations in seconds, sizes in bytes."""

    timeout_s: int = 3600
    prepare_timeout_s: int = 1800
    base_timeout_s: int = 14_400
    """For making a repository's base, or waiting for it."""
    collect_timeout_s: int = 900
    verify_timeout_s: int = 1800
    """For all runs of scripts and tests together."""
    repro_timeout_s: int = 300
    """For one of them."""
    unreachable_after_s: int = 600
    """How long a job waits for a machine that cannot be reached before it is reported as failed."""
    orphan_after_s: int = 1800
    """How long an agent goes on that no replica asks for: its machine ends it then."""
    stuck_after_s: int = 1800
    """How long an agent may go without an event before it is taken for stuck; of a `command` any line is one."""
    stop_grace_s: int = 20
    """How long an agent that is told to end may take to say what it has cost."""
    max_disk_bytes: int = 50_000_000_000
    max_files: int = 2_000_000
    """What a job may write to its machine's disk while its agent is at work."""
    max_log_bytes: int = 50_000_000
    """An agent that prints more is ended: what cannot be read cannot be judged."""
    max_session_bytes: int = 10_000_000
    """Of no effect any more: no run goes on from the memory of an earlier one."""
    max_text_bytes: int = 200_000
    """Each of report, worklog, repro."""
    max_change_bytes: int = 2_000_000
    """All changed files together."""
    max_changes: int = 300


@dataclass(frozen=True, slots=True)
class Verification:
    """How the service looks for itself whether a repro fails, and whether it does no more with the change."""

    runs: int = 3
    """How often each script is run on each side; 0 switches it off."""
    script: str = "python"
    """Runs a script, whose path is put behind it; a shell line, as is `tests`."""
    tests: str = "python -m pytest"
    """Runs tests; their file, and `-k` with their names, are put behind it."""
    rebuild: tuple[str, ...] = ()
    """What is run once the change is in the worktree."""
    network: Literal["none", "host"] = "none"
    """`none`: a stranger's script reaches nothing, whatever agents may; `host`: what agents may."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a machine makes one environment, as the machine-side program is told it."""

    clone_url: str
    trunk: str
    """Where a base begins that is missing."""
    base_branch: str
    """Or a full name, `refs/...`."""
    base_commit: str
    """Empty for the branch's newest."""
    submodules: bool
    network: str
    """`host`, or `none`: then agents and lint commands reach nothing; what makes the environment does."""
    create_venv: tuple[str, ...]
    setup: tuple[str, ...]
    update: tuple[str, ...]
    smoke_test: tuple[str, ...]
    slot: int
    timeout_s: int
    base_timeout_s: int
    max_log_bytes: int
    git: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What git's environment has for it to fetch by the gateway (`runner.steps.gateway.Way`)."""
    relay: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """One repository's recipe. Commands are the operator's own shell lines."""

    repository: str
    requires: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    """Makes the base of the repository's environments, once on each machine."""
    update: tuple[str, ...] | None = None
    """Brings a job's environment up to date, when its commit is another than its base's; None means `setup` again."""
    smoke_test: tuple[str, ...] = ()
    """Fails when a base is of no use."""
    submodules: bool = True
    network: Literal["host", "none"] = "host"
    package_hosts: tuple[str, ...] = ()
    """Where an agent without a network may fetch from all the same, by the gateway: names, `*.` and their end."""
    refresh_hours: int = 24
    """How old a base may become before it is brought to the newest commit; 0 leaves it as it is."""
    lint: tuple[str, ...] = ()
    create_venv: tuple[str, ...] = ("python3", "-m", "venv")
    """The command that makes a virtual environment at the path appended to it."""
    protected_paths: tuple[str, ...] = PROTECTED_PATHS
    base_branch: str = "HEAD"
    """The branch whose newest commit is anybody's base; git's name for the default one."""
    by_gateway: bool = True
    """Whether machines fetch it by the gateway where it is private: its table does not say where else from."""
    private_repositories: tuple[str, ...] = ()
    """Others that its jobs may fetch by the gateway then."""
    verification: Verification = Verification()
    limits: Limits = Limits()
    caps: Mapping[Scope, Caps] = field(default_factory=dict)

    def recipe(
        self, clone_url: str, base_branch: str, base_commit: str = "", slot: int = 0, trunk: str | None = None
    ) -> Recipe:
        """How an environment at a commit is made; a base that is missing begins at `trunk`, or at the same branch."""
        return Recipe(
            clone_url=clone_url,
            base_branch=base_branch,
            trunk=base_branch if trunk is None else trunk,
            base_commit=base_commit,
            submodules=self.submodules,
            network=self.network,
            create_venv=self.create_venv,
            setup=self.setup,
            update=self.setup if self.update is None else self.update,
            smoke_test=self.smoke_test,
            slot=slot,
            timeout_s=self.limits.prepare_timeout_s,
            base_timeout_s=self.limits.base_timeout_s,
            max_log_bytes=self.limits.max_log_bytes,
        )
