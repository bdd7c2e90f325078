"""The stage `prepare`: a worktree at the base branch's newest commit, or at an earlier one; a virtual environment."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .carry import carry_over
from .cell import decide
from .command import TICK_S
from .files import Failure, open_plain, try_lock, write_file
from .git import CLONE_CONFIG, GIT, find_clone, git_environment, write
from .home import make_home
from .stage import Stage

COMMIT_IS_GONE = ("not our ref", "unadvertised object", "find remote ref")
"""How servers say, one way or another, that they have no such commit to give."""


def prepare(stage: Stage) -> dict[str, Any]:
    """Make the environment. Raises `Failure` with the last words of what went wrong."""
    job, request = stage.job, stage.request
    for folder in (job.output, job.tmp):
        folder.mkdir(mode=0o700)
    make_home(job)
    stage.log.write(f"[{decide(job, request)}]\n".encode())
    clone = find_clone(job, request["clone_url"])
    base_commit = check_out(stage, clone)
    argv = [*request["create_venv"], str(job.venv)]
    stage.must("venv_failed", "the virtual environment could not be made", argv, job.environment(), job.root)
    for command in request["setup"]:
        shell = ["/bin/sh", "-ec", command]
        stage.must("setup_failed", f"the setup command `{command}` failed", shell, job.environment(), job.worktree)
    # Only now: nothing that an earlier attempt wrote may run before its successor does, for it could command that.
    carry_over(job, clone, base_commit, request["changes"], request["timeout_s"])
    return {"base_commit": base_commit}


def check_out(stage: Stage, clone: Path) -> str:
    """Make the worktree from the machine's clone, which is brought up to date first. Returns the commit.

    Its git writes to a repository of the job's own, and reads the clone, to which no job may write.
    """
    branch = stage.request["base_branch"]
    # A name of its own kind: `release` may give way to `release/1.0`, and as files the two exclude each other.
    ref = f"refs/ptq/{hashlib.sha256(branch.encode()).hexdigest()[:12]}"
    base = stage.request["base_commit"] or ref
    clone.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(clone.with_name(f"{clone.name}.lock"), stage.deadline):
        disarm(clone)
        run_git(stage, clone, "the machine's clone could not be made", "init", "--quiet", "--bare", "--template=")
        try:
            fetch(stage, clone, f"+refs/heads/{branch}:{ref}")
        except Failure as failure:
            if "find remote ref" in failure.message:
                raise Failure("branch_missing", f"the repository has no branch {branch}") from None
            raise
        if not find_commit(clone, base):
            fetch_lost(stage, clone, base)
        commit = find_commit(clone, base)
    own, what = stage.job.git, "the worktree could not be made"
    run_git(stage, own, what, "init", "--quiet", "--bare", "--template=")
    write(own / "objects" / "info" / "alternates", str(clone / "objects"))
    run_git(stage, own, what, "worktree", "add", "--detach", str(stage.job.worktree), commit)
    return commit


def run_git(stage: Stage, repository: Path, what: str, *words: str) -> None:
    """Run a git command of ours in a repository. Raises `Failure`, with `what` it meant to do."""
    argv = [*GIT, f"--git-dir={repository}", *words]
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


@contextmanager
def locked(path: Path, deadline: float) -> Iterator[None]:
    """Hold a lock. Raises `Failure` when others hold it until the deadline."""
    with open(path, "w", opener=open_plain) as file:
        while not try_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise Failure("timed_out", "other jobs were busy with the machine's clone for too long")
            time.sleep(TICK_S)
        yield
