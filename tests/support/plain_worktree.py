"""A worktree without a machine: a script works there, and the machine-side program's own code reads what it left.

For what git makes of files. What a sandbox, a base or the modes of files change about it takes a job (`Jobd.run`).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.environment.carry import Change as Edit
from runner.jobd.environment.carry import HeldBack, apply_edits
from runner.jobd.files import Failure
from runner.jobd.git import GitFolders
from runner.jobd.verbs.collect import find_change, restore
from tests.support.jobd import COLLECT, GIT, Change, Repository, make_repository

TIMEOUT_S = 20
IDENTITY = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def run_script(folder: Path, script: str, env: Mapping[str, str]) -> str:
    """What a script says that works in a folder, as an agent may."""
    command = ["/bin/sh", "-ec", script]
    ran = subprocess.run(command, cwd=folder, env={**env, **IDENTITY}, check=True, stdout=subprocess.PIPE, text=True)
    return ran.stdout


class PlainWorktree:
    """A worktree, its repository, and a folder for git."""

    def __init__(self, folders: GitFolders, base_commit: str) -> None:
        self.folders, self.base_commit = folders, base_commit
        self.path = folders.worktree

    def run(self, script: str) -> str:
        """What a script says that works there."""
        return run_script(self.path, script, {"PATH": os.environ["PATH"], "HOME": str(self.path.parent)})

    def carry_over(self, edits: Sequence[Edit], begun_at: str = "") -> list[str]:
        """Apply an earlier attempt's edits. Returns the paths in conflict."""
        return apply_edits(self.folders, self.base_commit, edits, TIMEOUT_S, begun_at)

    def collect(self, held_back: Sequence[Edit] = (), problems: list[str] | None = None, **changes: Any) -> Change:
        """What is collected. Raises `Failure`; what is to be said of it is in `problems` then."""
        problems = [] if problems is None else problems
        request = {**COLLECT, "base_commit": self.base_commit, "left": [], **changes}
        restore(self.folders, request, HeldBack(held_back, ""), problems, time.monotonic() + TIMEOUT_S)
        found = find_change(self.folders, request, problems, TIMEOUT_S)
        return Change({**found, "problems": problems})

    def find_failure(self, **changes: Any) -> Failure:
        """Why nothing is collected."""
        with pytest.raises(Failure) as failure:
            self.collect(**changes)
        return failure.value


def check_out(repository: Repository) -> PlainWorktree:
    """A worktree of a repository's newest commit, in a folder beside the repository."""
    parent = repository.folder.parent
    place = parent / f"plain-{len([*parent.glob('plain-*')])}"
    folders = GitFolders(place / "worktree", repository.folder / ".git", place / "git")
    folders.throwaways.mkdir(parents=True)
    subprocess.run([*GIT, "clone", "--quiet", "--shared", repository.folder, folders.worktree], check=True)
    return PlainWorktree(folders, repository.git("rev-parse", "main"))


def check_out_files(folder: Path, files: Mapping[str, str]) -> PlainWorktree:
    """A worktree of a repository with these files."""
    return check_out(make_repository(folder / "clone", files))


def find_change_of(repository: Repository, script: str, **changes: Any) -> Change:
    """What is collected after a script."""
    worktree = check_out(repository)
    worktree.run(script)
    return worktree.collect(**changes)
