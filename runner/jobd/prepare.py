"""The stage `prepare`: a worktree at the base branch's newest commit, and a virtual environment."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .files import Failure, open_plain, try_lock, write_file
from .git import CLONE_CONFIG, GIT, find_clone, git_environment
from .stage import TICK_S, Stage

PROFILE = 'export PATH="$VIRTUAL_ENV/bin:$PATH"\n'
"""For agents that run their tools in login shells (codex does): the host's own profile has just set another PATH."""


def prepare(stage: Stage) -> dict[str, Any]:
    """Make the environment. Raises `Failure` with the last words of what went wrong."""
    job, request = stage.job, stage.request
    for folder in (job.output, job.home, job.tmp):
        folder.mkdir(mode=0o700)
    write_file(job.home / ".profile", PROFILE)
    base_commit = check_out(stage, find_clone(job, request["clone_url"]))
    argv = [*request["create_venv"], str(job.venv)]
    stage.must("venv_failed", "the virtual environment could not be made", argv, job.environment(), job.root)
    for command in request["setup"]:
        shell = ["/bin/sh", "-ec", command]
        stage.must("setup_failed", f"the setup command `{command}` failed", shell, job.environment(), job.worktree)
    return {"base_commit": base_commit}


def check_out(stage: Stage, clone: Path) -> str:
    """Make the worktree from the machine's clone, which is brought up to date first. Returns the commit."""
    url, branch = stage.request["clone_url"], stage.request["base_branch"]
    git, env = [*GIT, f"--git-dir={clone}"], git_environment()
    # A name of its own kind: `release` may give way to `release/1.0`, and as files the two exclude each other.
    ref = f"refs/ptq/{hashlib.sha256(branch.encode()).hexdigest()[:12]}"

    def must(what: str, *words: str) -> None:
        stage.must("clone_failed", what, [*git, *words], env, stage.job.root)

    clone.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(clone.with_name(f"{clone.name}.lock"), stage.deadline):
        disarm(clone)
        must("the machine's clone could not be made", "init", "--quiet", "--bare", "--template=")
        fetch, refspec = ("fetch", "--no-tags", "--no-write-fetch-head"), f"+refs/heads/{branch}:{ref}"
        try:
            must("the repository could not be fetched", *fetch, "--", url, refspec)
        except Failure as failure:
            if "find remote ref" in failure.message:
                raise Failure("branch_missing", f"the repository has no branch {branch}") from None
            raise
        must("the worktree could not be made", "worktree", "add", "--detach", str(stage.job.worktree), ref)
        head = subprocess.run([*git, "rev-parse", ref], env=env, stdout=subprocess.PIPE, check=True)
    return head.stdout.decode().strip()


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
