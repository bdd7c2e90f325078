"""The machine's clone of a repository: the objects that all its jobs read, brought up to date for each of them."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from .files import Failure, write_file
from .git import CLONE_CONFIG, GIT, find_clone, git_environment
from .locks import locked
from .stage import Stage

SUBMODULE = b"160000"
"""A mode (git-diff(1), "raw output format")."""

HEAD = "HEAD"
"""Stands for the repository's default branch."""

COMMIT_IS_GONE = ("not our ref", "unadvertised object", "find remote ref")
"""How servers say, one way or another, that they have no such commit to give."""


def fetch_commit(stage: Stage) -> str:
    """Fetch the commit that a request wants, and return its full name. Raises `Failure`."""
    clone, branch = find_clone(stage.job, stage.request["clone_url"]), stage.request["base_branch"]
    # A name of its own kind: `release` may give way to `release/1.0`, and as files the two exclude each other.
    ref = f"refs/ptq/{hashlib.sha256(branch.encode()).hexdigest()[:12]}"
    source = branch if branch.startswith("refs/") or branch == HEAD else f"refs/heads/{branch}"
    base = stage.request["base_commit"] or ref
    clone.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(clone.with_name(f"{clone.name}.lock"), stage.deadline):
        disarm(clone)
        run_git(stage, clone, "the machine's clone could not be made", "init", "--quiet", "--bare", "--template=")
        try:
            fetch(stage, clone, f"+{source}:{ref}")
        except Failure as failure:
            if "find remote ref" in failure.message:
                raise Failure("branch_missing", f"the repository has no branch {branch}") from None
            raise
        if not find_commit(clone, base):
            fetch_lost(stage, clone, base)
        return find_commit(clone, base)


def run_git(stage: Stage, clone: Path, what: str, *words: str) -> None:
    """Run a git command in the clone. Raises `Failure`, with `what` it meant to do."""
    argv = [*GIT, f"--git-dir={clone}", *words]
    stage.must("clone_failed", what, argv, git_environment(), stage.job.root, in_cell=False)


def fetch(stage: Stage, clone: Path, refspec: str) -> None:
    """Fetch into the clone. Raises `Failure`."""
    words = ("fetch", "--no-tags", "--no-write-fetch-head", "--", stage.request["clone_url"], refspec)
    run_git(stage, clone, "the repository could not be fetched", *words)


def fetch_lost(stage: Stage, clone: Path, commit: str) -> None:
    """Fetch a commit that is on the branch no more. Raises `Failure`."""
    try:
        fetch(stage, clone, commit)
    except Failure as failure:
        if any(words in failure.message for words in COMMIT_IS_GONE):
            reason = "the commit that the earlier attempt started from is no longer in the repository"
            raise Failure("base_gone", reason) from None
        raise


def find_commit(clone: Path, name: str) -> str:
    """The full name of a commit that the clone has; empty when it has none of this name."""
    words = [*GIT, f"--git-dir={clone}", "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"]
    found = subprocess.run(words, env=git_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return found.stdout.decode().strip()


def disarm(clone: Path) -> None:
    """Make a clone that an agent could write to safe to use, and one that was left in the middle of work usable."""
    settings = [clone / "commondir", clone / "info" / "attributes"]
    # We hold the clone's own lock: git's are left from a git that was killed.
    for path in [*settings, *clone.glob("*.lock"), *clone.glob("refs/ptq/*.lock")]:
        path.unlink(missing_ok=True)
    write_file(clone / "config", CLONE_CONFIG)


def changes_submodules(clone: Path, before: str, after: str) -> bool:
    """Whether two commits have different submodules."""
    words = [*GIT, f"--git-dir={clone}", "diff-tree", "-r", "--raw", before, after]
    lines = subprocess.run(words, env=git_environment(), stdout=subprocess.PIPE, check=True).stdout.splitlines()
    return any(SUBMODULE in line.split(b"\t")[0].split()[:2] for line in (raw.lstrip(b":") for raw in lines))
