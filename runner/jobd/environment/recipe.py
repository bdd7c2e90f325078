"""What makes an environment at its place: the worktree at a commit, the virtual environment, the operator's commands.

All of it runs in the job's cell: commands of a repository's own may have run in the tree before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ..files import Failure, is_utf8
from ..git import GIT, SETTINGS, find_clone, open_throwaway, split, write
from ..stages.stage import Stage
from .fetching import lead_git, must_fetch
from .home import make_home

WHAT = {
    "setup": "the setup command",
    "update": "the update command",
    "smoke_test": "the smoke test",
    "rebuild": "the rebuild command",
}
"""The operator's commands, by the names of their fields."""

FETCHED_FROM = "git:http:https:ssh"
"""By what submodules may be fetched: a repository says itself where one is, and the machine's own files are not its."""


def check_out(stage: Stage, commit: str, *, submodules: bool = True) -> None:
    """Have the worktree at a commit, and its submodules unless they are there already. Raises `Failure`."""
    worktree = stage.job.worktree
    worktree.mkdir(mode=0o700, exist_ok=True)
    what = "the worktree could not be made"
    for left in (worktree / ".git").glob("*.lock"):  # By a git that was killed: nobody else is at work here.
        left.unlink()
    git(stage, what, "init", "--quiet", "--template=", f"--object-format={'sha256' if len(commit) == 64 else 'sha1'}")
    clone = find_clone(stage.job, stage.request["clone_url"])
    write(worktree / ".git" / "objects" / "info" / "alternates", str(clone / "objects"))
    # By it submodules may be named, and agents ask for it.
    git(stage, what, "config", "remote.origin.url", stage.request["clone_url"])
    git(stage, what, "checkout", "--quiet", "--force", "--detach", commit)
    if submodules and stage.request["submodules"] and (worktree / ".gitmodules").is_file():
        words = ("submodule", "update", "--init", "--recursive", "--force", "--jobs=8", "--depth=1")
        what = "the submodules could not be fetched"
        must_fetch(stage, "checkout_failed", what, [*GIT, *words], describe_git(stage), worktree)


def refresh_index(stage: Stage) -> None:
    """Let git know every file's time, so that the first look that a job takes costs it no reading."""
    what = "git's index could not be brought up to date"
    git(stage, what, "update-index", "-q", "--refresh", may_fail=True)
    if (stage.job.worktree / ".gitmodules").is_file():
        git(stage, what, *("submodule", "--quiet", "foreach", "--recursive", "git update-index -q --refresh || :"))


def git(stage: Stage, what: str, *words: str, may_fail: bool = False) -> None:
    """Run a git command in the worktree. Raises `Failure`, with `what` it meant to do."""
    try:
        stage.must("checkout_failed", what, [*GIT, *words], describe_git(stage), stage.job.worktree)
    except Failure:
        if not may_fail:
            raise


def describe_git(stage: Stage) -> dict[str, str]:
    """The environment of git in the worktree."""
    return {**stage.job.environment(), **SETTINGS, "GIT_ALLOW_PROTOCOL": FETCHED_FROM}


def make_venv(stage: Stage) -> None:
    """Make the home, and the virtual environment, in place of one that was begun. Raises `Failure`."""
    job = stage.job
    make_home(job)
    if os.path.lexists(job.venv):
        stage.must(
            "venv_failed", "the virtual environment could not be removed", ["rm", "-rf", str(job.venv)], {}, job.root
        )
    argv = [*stage.request["create_venv"], str(job.venv)]
    stage.must("venv_failed", "the virtual environment could not be made", argv, job.environment(), job.root)


def run_commands(stage: Stage, kind: str, commands: Iterable[str]) -> None:
    """Run commands of one kind, in the worktree. Raises `Failure`."""
    job = stage.job
    for command in commands:
        shell, (more, start_beside) = ["/bin/sh", "-ec", command], lead_git(stage)
        what, env = f"{WHAT[kind]} `{command}` failed", {**job.environment(), **more}
        stage.must(f"{kind}_failed", what, shell, env, job.worktree, start_beside=start_beside)


def list_left(stage: Stage, commit: str) -> list[str]:
    """The files that the operator's commands left in the worktree, and git neither tracks nor ignores.

    They are no part of a job's change.
    """
    job = stage.job
    clone = find_clone(job, stage.request["clone_url"])
    with open_throwaway(job, clone, commit, stage.limit_s) as throwaway:
        throwaway.run("read-tree", commit)
        found = split(throwaway.run("ls-files", "-z", "--others", "--exclude-standard"))
    return [path for path in found if is_utf8(path)]
