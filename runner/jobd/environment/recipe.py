"""The steps that make an environment: check out a worktree, create a virtual environment, run the operator's commands.

All of them run in the job's sandbox, because code of the repository may have run in the tree before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..files import Failure, is_utf8, require_folders
from ..git import GIT, SETTINGS, find_clone, find_git_folders, open_throwaway
from ..safe_paths import open_folder, write_safely
from ..stages.stage import Stage
from .change import list_new
from .fetching import find_git_access, must_fetch
from .home import make_home

COMMAND_NAMES = {
    "setup": "the setup command",
    "update": "the update command",
    "smoke_test": "the smoke test",
    "rebuild": "the rebuild command",
}
"""How messages name the operator's commands, by their fields."""

FETCHED_FROM = "git:http:https:ssh"
"""Protocols for submodules. The repository chooses their URLs, and must not reach the machine's own files."""

MAX_LEFT_BYTES = 20_000_000
"""The limit for the paths that the operator's commands leave, in bytes: in JSON they grow sixfold, to less than
`MAX_JSON`. A base whose description is larger could not be read, and would be built again and again."""


def check_out(stage: Stage, commit: str, *, submodules: bool = True) -> None:
    """Check out a commit, and its submodules if `submodules` is set. Raises `Failure`."""
    stage.say("Checking out the commit.")
    worktree = stage.job.worktree
    worktree.mkdir(mode=0o700, exist_ok=True)
    what, git = "the worktree could not be made", worktree / ".git"
    # Commands of an earlier commit may have run here.
    require_folders(worktree, *([git] if os.path.lexists(git) else []))
    if git.is_dir():
        remove_locks(worktree)
    run_git(
        stage, what, "init", "--quiet", "--template=", f"--object-format={'sha256' if len(commit) == 64 else 'sha1'}"
    )
    clone = find_clone(stage.job, stage.request["clone_url"])
    about = git / "objects" / "info"
    require_folders(worktree, git, about.parent, *([about] if os.path.lexists(about) else []))
    write_safely(worktree, ".git/objects/info/alternates", f"{clone / 'objects'}\n".encode())
    # Relative URLs of submodules depend on this setting, and agents look it up.
    run_git(stage, what, "config", "remote.origin.url", stage.request["clone_url"])
    run_git(stage, what, "checkout", "--quiet", "--force", "--detach", commit)
    if submodules and stage.request["submodules"] and (worktree / ".gitmodules").is_file():
        words = ("submodule", "update", "--init", "--recursive", "--force", "--jobs=8", "--depth=1")
        what = "the submodules could not be fetched"
        stage.say("Fetching the submodules.")
        must_fetch(stage, "checkout_failed", what, [*GIT, *words], describe_git(stage), worktree)


def remove_locks(worktree: Path) -> None:
    """Remove the locks of killed git processes. No other process uses this worktree. Raises `OSError`."""
    with open_folder(worktree, [".git"]) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 - a descriptor
            if name.endswith(".lock"):
                os.unlink(name, dir_fd=folder)


def refresh_index(stage: Stage) -> None:
    """Have git record each file's time, so that a job's first git command does not read all files."""
    what = "git's index could not be brought up to date"
    stage.say("Bringing git's index up to date.")
    run_git(stage, what, "update-index", "-q", "--refresh", may_fail=True)
    if (stage.job.worktree / ".gitmodules").is_file():
        run_git(stage, what, *("submodule", "--quiet", "foreach", "--recursive", "git update-index -q --refresh || :"))


def run_git(stage: Stage, what: str, *words: str, may_fail: bool = False) -> None:
    """Run a git command in the worktree. Raises `Failure`, with `what` as the start of its message."""
    try:
        stage.must("checkout_failed", what, [*GIT, *words], describe_git(stage), stage.job.worktree)
    except Failure:
        if not may_fail:
            raise


def describe_git(stage: Stage) -> dict[str, str]:
    """The environment variables of git in the worktree."""
    return {**stage.job.environment(), **SETTINGS, "GIT_ALLOW_PROTOCOL": FETCHED_FROM}


def make_venv(stage: Stage) -> None:
    """Create the home and the virtual environment; replace an unfinished one. Raises `Failure`."""
    job = stage.job
    stage.say("Making the virtual environment.")
    make_home(job)
    if os.path.lexists(job.venv):
        stage.must(
            "venv_failed", "the virtual environment could not be removed", ["rm", "-rf", str(job.venv)], {}, job.root
        )
    argv = [*stage.request["create_venv"], str(job.venv)]
    stage.must("venv_failed", "the virtual environment could not be made", argv, job.environment(), job.root)


def run_commands(stage: Stage, kind: str, commands: Iterable[str]) -> None:
    """Run the operator's commands of one kind in the worktree. Raises `Failure`."""
    job = stage.job
    for command in commands:
        stage.say(f"Running {COMMAND_NAMES[kind].replace('command', 'commands')}.")
        shell, (more, start_beside) = ["/bin/sh", "-ec", command], find_git_access(stage)
        what, env = f"{COMMAND_NAMES[kind]} `{command}` failed", {**job.environment(), **more}
        stage.must(f"{kind}_failed", what, shell, env, job.worktree, start_beside=start_beside)


def check_imports(stage: Stage) -> None:
    """Import the project's modules. Raises `Failure`, which says what to fix."""
    for command in stage.request["imports"]:
        stage.say("Importing the project's modules.")
        wrong = "the project cannot be imported, so its repository's `setup` or `import_names` is wrong"
        what = f"{wrong}: `{command}` failed"
        stage.must("imports_failed", what, ["/bin/sh", "-ec", command], stage.job.environment(), stage.job.worktree)


def list_untracked(stage: Stage, commit: str) -> list[str]:
    """The files that the operator's commands left in the worktree and that git neither tracks nor ignores.

    They are not part of a job's change. Raises `Failure` if there are far too many.
    """
    folders = find_git_folders(stage.job)

    def look() -> list[str]:
        with open_throwaway(folders, commit, stage.limit_s) as throwaway:
            throwaway.run("read-tree", commit)
            return list_new(throwaway, MAX_LEFT_BYTES)

    return [path for path in stage.do_inside(look) if is_utf8(path)]
