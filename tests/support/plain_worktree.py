"""A worktree without a machine: a script works there, and the machine-side program's own code reads what it left.

For what git makes of files. What a sandbox, a base or the modes of files change about it takes a job (`Jobd.run`).
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.jobd.environment.carry import Change as Edit
from runner.jobd.environment.carry import HeldBack, apply_edits
from runner.jobd.git import GitFolders
from runner.jobd.verbs.collect import find_change, restore
from tests.support.jobd import COLLECT, GIT, Change, Repository

TIMEOUT_S = 20


class PlainWorktree:
    """The newest commit of a repository, checked out."""

    def __init__(self, repository: Repository) -> None:
        place = Path(tempfile.mkdtemp(prefix="plain-", dir=repository.folder.parent))
        self.base_commit = repository.git("rev-parse", "main")
        self.path = place / "worktree"
        self._folders = GitFolders(self.path, repository.folder / ".git", place / "git")
        self._folders.throwaways.mkdir()
        subprocess.run([*GIT, "clone", "--quiet", "--shared", repository.folder, self.path], check=True)

    def run(self, script: str) -> str:
        """What a script says that works there."""
        ran = subprocess.run(["/bin/sh", "-ec", script], cwd=self.path, check=True, stdout=subprocess.PIPE, text=True)
        return ran.stdout

    def carry_over(self, edits: Sequence[Edit]) -> None:
        """Have an earlier attempt's edits there."""
        assert apply_edits(self._folders, self.base_commit, edits, TIMEOUT_S) == []

    def collect(self, held_back: Sequence[Edit] = (), problems: list[str] | None = None, **changes: Any) -> Change:
        """What is collected. Raises `Failure`; what is to be said of it is in `problems` then."""
        problems = [] if problems is None else problems
        request = {**COLLECT, "base_commit": self.base_commit, "left": [], **changes}
        restore(self._folders, request, HeldBack(held_back, ""), problems, time.monotonic() + TIMEOUT_S)
        found = find_change(self._folders, request, problems, TIMEOUT_S)
        return Change({**found, "problems": problems})


def find_change_of(repository: Repository, script: str, **changes: Any) -> Change:
    """What is collected after a script."""
    worktree = PlainWorktree(repository)
    worktree.run(script)
    return worktree.collect(**changes)
