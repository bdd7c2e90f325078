"""Takes what configures a coding agent out of the worktree while that agent runs, for those that no flag keeps from it.

What the base commit has of it stands there again before the change is computed: it was hidden, not deleted.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..files import Failure, JobPaths
from ..git import find_own_clone, join, open_throwaway, split
from .trees import open_up


def hide(job: JobPaths, names: Iterable[str]) -> None:
    """Remove files and folders of these names, at whatever depth; case does not count. Raises `Failure`."""
    unwanted = {name.casefold() for name in names}
    if not unwanted:
        return
    open_up(job.worktree)
    for folder, folders, files in os.walk(job.worktree):
        for name in [name for name in (*folders, *files) if name.casefold() in unwanted]:
            path = Path(folder, name)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
                folders.remove(name)
            else:
                path.unlink()
            if os.path.lexists(path):
                raise Failure("not_hidden", "what configures the agent cannot be put out of its sight")


def bring_back(job: JobPaths, request: Mapping[str, Any]) -> None:
    """Write what the base commit has under hidden names, but where something is in the way. Raises `Failure`."""
    unwanted, base = {name.casefold() for name in request["hidden"]}, request["base_commit"]
    if not unwanted:
        return
    with open_throwaway(job, find_own_clone(job), base, request["timeout_s"]) as git:
        tracked = split(git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", base))
        gone = [
            path
            for path in tracked
            if not unwanted.isdisjoint(path.casefold().split("/")) and is_free(job.worktree, path)
        ]
        git.run("read-tree", base)
        git.run("checkout-index", "-z", "--stdin", stdin=join(gone))


def is_free(root: Path, path: str) -> bool:
    """Whether nothing is at a path, and nothing but folders above it."""
    names = path.split("/")
    for depth in range(1, len(names) + 1):
        try:
            about = os.lstat(os.fsencode(f"{root}/{'/'.join(names[:depth])}"))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        if not stat.S_ISDIR(about.st_mode):
            return False
    return False
