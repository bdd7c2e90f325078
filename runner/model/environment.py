"""How to build a job's environment, as plain values for the machine-side program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runner.model.caps import Caps, Scope

NAMED_PATHS = (".github/**", ".ci/**", ".gitmodules", "CODEOWNERS")
"""The protected paths that the brief lists. It leaves out those that configure other CI services."""

PROTECTED_PATHS = (
    *NAMED_PATHS,
    *(".gitlab-ci*", ".gitea/**", ".forgejo/**", ".circleci/**", ".buildkite/**", ".teamcity/**", ".semaphore/**"),
    *("Jenkinsfile*", "azure-pipelines*.y*", ".azure-pipelines/**", "bitbucket-pipelines.y*", ".travis.yml"),
    *("appveyor.yml", ".appveyor.yml", ".drone.*", ".woodpecker*", ".cirrus.*", "codefresh.y*", "cloudbuild.y*"),
    *("buildspec*.y*", ".pre-commit-config.y*ml", ".gitlab/**", ".tekton/**", ".builds/**", ".sourcehut/**"),
    *(".zuul.*", ".zuul.d/**", "zuul.*", "zuul.d/**", ".packit.y*ml", ".prow.y*ml", ".prow/**", ".evergreen*.y*ml"),
    *("bitrise.y*ml", "codemagic.y*ml", "wercker.y*ml", "screwdriver.y*ml", ".harness/**", "bors.toml"),
    *(".mergify.y*ml", ".mergify/**", "netlify.toml", "vercel.json", ".lfsconfig"),
)
"""Paths that agents may not change by default.

They contain rules for reviews and merges, commands that CI services run, often with secrets (pre-commit.ci may push to
branches), and the address from which Git LFS fetches files.
"""


NEWEST = "HEAD"
"""Git's name for the newest commit of the default branch. It is used if no branch is configured."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a job and its result. Durations in seconds, sizes in bytes."""

    timeout_s: int = 3600
    prepare_timeout_s: int = 1800
    base_timeout_s: int = 14_400
    """For building a repository's base, or waiting for it."""
    collect_timeout_s: int = 900
    verify_timeout_s: int = 1800
    """For all runs of scripts and tests together."""
    repro_timeout_s: int = 300
    """For one run of a script."""
    unreachable_after_s: int = 600
    """How long a job waits for an unreachable machine before it is lost."""
    orphan_after_s: int = 1800
    """How long an agent runs while no replica asks for it. Then its machine stops it."""
    stuck_after_s: int = 1800
    """How long an agent may run without an event before it is stopped. For kind `command`, every line is an event."""
    stop_grace_s: int = 20
    """How long an agent may take to report its cost after it is told to stop."""
    max_disk_bytes: int = 50_000_000_000
    max_files: int = 2_000_000
    """The most files that a job may write to its machine's disk while its agent runs."""
    max_log_bytes: int = 50_000_000
    """An agent that prints more is stopped, because its log could not be read completely."""
    max_session_bytes: int = 10_000_000
    """This limit has no effect any more, because no run resumes an earlier session."""
    max_text_bytes: int = 200_000
    """For each of report, worklog and repro."""
    max_change_bytes: int = 2_000_000
    """For all changed files together."""
    max_changes: int = 300


@dataclass(frozen=True, slots=True)
class Verification:
    """How the service itself checks that a repro fails without the change, and passes with it."""

    runs: int = 3
    """How often each script runs on each side. 0 turns verification off."""
    script: str = "python"
    """The shell command that runs a script. The script's path is appended."""
    tests: str = "python -m pytest"
    """The shell command that runs tests. Their file, and `-k` with their names, are appended."""
    rebuild: tuple[str, ...] = ()
    """Commands that run after the change was applied to the worktree."""
    network: Literal["none", "host"] = "none"
    """`none`: a stranger's script has no network, even if agents have. `host`: the same network as agents."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a machine builds one environment, as the machine-side program receives it."""

    clone_url: str
    trunk: str
    """The branch from which a missing base is built."""
    base_branch: str
    """A branch, or a full name, `refs/...`."""
    base_commit: str
    """Empty: the newest commit of the branch."""
    submodules: bool
    network: str
    """`host`, or `none`: agents and lint commands have no network, but the setup commands do."""
    create_venv: tuple[str, ...]
    setup: tuple[str, ...]
    update: tuple[str, ...]
    smoke_test: tuple[str, ...]
    imports: tuple[str, ...]
    """Shell commands that import the project's modules, as a script does."""
    slot: int
    timeout_s: int
    base_timeout_s: int
    max_log_bytes: int
    git: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Git's environment for fetching through the gateway (`runner.steps.gateway`)."""
    relay: bool = False


@dataclass(frozen=True, slots=True)
class Companion:
    """Another repository whose files agents can read, at the newest commit of a branch (`HEAD`: the default one)."""

    name: str
    url: str
    branch: str


def import_command(python: str, module: str) -> str:
    """The shell command that imports a module. As in a check's script, the current folder is not searched."""
    return f'{python} -c "import sys; sys.path[:1] = []; import {module}"'


@dataclass(frozen=True, slots=True)
class Profile:
    """One repository's recipe. Commands are the operator's shell commands."""

    repository: str
    requires: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    """The commands that build the base of the repository's environments, once on each machine."""
    update: tuple[str, ...] | None = None
    """The commands that update a job's environment if its commit is not its base's. None means those of `setup`."""
    smoke_test: tuple[str, ...] = ()
    """Commands that fail if a base is broken."""
    imports: tuple[str, ...] = ()
    """The project's top-level Python modules. If one of them cannot be imported, the base is broken."""
    submodules: bool = True
    network: Literal["host", "none"] = "host"
    package_hosts: tuple[str, ...] = ()
    """Hosts that an agent without a network can reach through the gateway: names, or `*.` and a domain."""
    refresh_hours: int = 24
    """The age at which a base is updated to the newest commit. 0 never updates it."""
    lint: tuple[str, ...] = ()
    create_venv: tuple[str, ...] = ("python3", "-m", "venv")
    """The command that creates a virtual environment. The path is appended."""
    protected_paths: tuple[str, ...] = PROTECTED_PATHS
    base_branch: str = NEWEST
    """The branch that changes are for."""
    environment_branch: str | None = None
    """The branch whose newest commit environments and jobs begin from. None means the base branch."""
    by_gateway: bool = True
    """Whether machines fetch the repository through the gateway if it is private. False if it has a `clone_url`."""
    private_repositories: tuple[str, ...] = ()
    """Other private repositories that jobs of this one may fetch through the gateway."""
    companions: tuple[Companion, ...] = ()
    verification: Verification = Verification()
    limits: Limits = Limits()
    caps: Mapping[Scope, Caps] = field(default_factory=dict)

    @property
    def trunk(self) -> str:
        """The branch that bases are built from."""
        return self.environment_branch or self.base_branch

    def recipe(
        self, clone_url: str, base_branch: str, base_commit: str = "", slot: int = 0, trunk: str | None = None
    ) -> Recipe:
        """The recipe for an environment at a commit. A missing base is built from `trunk`, or else `base_branch`."""
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
            imports=tuple(import_command(self.verification.script, name) for name in self.imports),
            slot=slot,
            timeout_s=self.limits.prepare_timeout_s,
            base_timeout_s=self.limits.base_timeout_s,
            max_log_bytes=self.limits.max_log_bytes,
        )
