"""A worktree as an agent may leave it, without its job. The change in it is computed in this process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.environment.carry import apply_edits
from runner.jobd.files import Failure
from runner.jobd.git import GitFolders
from runner.jobd.verbs.collect import find_change
from tests.support.jobd import COLLECT, Change, Repository, make_repository
from tests.support.made_base import copy

IDENTITY = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def do(worktree: Path, deed: str, env: Mapping[str, str]) -> None:
    """Do what an agent may do."""
    subprocess.run(["/bin/sh", "-ec", deed], cwd=worktree, env={**env, **IDENTITY}, check=True)


class Left:
    """A worktree, without the rest of its job."""

    def __init__(self, folders: GitFolders, base_commit: str) -> None:
        self.folders, self.base_commit = folders, base_commit

    def do(self, deed: str) -> None:
        do(self.folders.worktree, deed, {"PATH": os.environ["PATH"], "HOME": str(self.folders.worktree.parent)})

    def find_change(self, **limits: Any) -> Change:
        request = {**COLLECT, "left": [], "base_commit": self.base_commit, **limits}
        problems: list[str] = []
        return Change({**find_change(self.folders, request, problems, 20), "problems": problems})

    def carry_over(self, changes: list[dict[str, Any]], begun_at: str = "") -> list[str]:
        """Apply an earlier attempt's edits. Returns the paths in conflict."""
        return apply_edits(self.folders, self.base_commit, changes, 20, begun_at)

    def find_failure(self, **limits: Any) -> Failure:
        with pytest.raises(Failure) as failure:
            self.find_change(**limits)
        return failure.value


def leave_files(folder: Path, files: Mapping[str, str]) -> Left:
    """The worktree of a repository with these files."""
    return check_out(make_repository(folder / "clone", files), folder)


def check_out(repository: Repository, folder: Path) -> Left:
    """The worktree of a repository's newest commit."""
    (folder / "throwaways").mkdir()
    copy(repository.folder, folder / "worktree")
    folders = GitFolders(folder / "worktree", repository.folder / ".git", folder / "throwaways")
    return Left(folders, repository.git("rev-parse", "main"))
