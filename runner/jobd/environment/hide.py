"""Hides agent configuration in the worktree from agents that have no option to ignore it.

The base commit's files are restored before the change is computed, so they do not count as deleted.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..files import Failure, JobPaths
from ..git import GitFolders, join_paths, open_throwaway, split_paths
from ..safe_paths import FolderEntry, walk
from .trees import open_up


def hide(job: JobPaths, names: Iterable[str], deadline: float) -> None:
    """Remove files and folders with these names at any depth, ignoring case. Raises `Failure`."""
    unwanted = {name.casefold() for name in names}
    if not unwanted:
        return
    open_up(job.worktree, deadline)
    for entry in walk(job.worktree):
        if entry.name.casefold() in unwanted:
            if time.monotonic() > deadline:
                raise Failure("timed_out", "the agent's configuration could not be hidden in time")
            remove(entry)


def remove(entry: FolderEntry) -> None:
    """Remove a file, or a folder with everything in it. Raises `Failure`."""
    if stat.S_ISDIR(entry.about.st_mode):
        # `rm` can remove a folder of any depth.
        subprocess.run(
            ["rm", "-rf", "--", entry.name], cwd=f"/proc/self/fd/{entry.folder}", stderr=subprocess.DEVNULL, check=False
        )
    else:
        with suppress(OSError):
            os.unlink(entry.name, dir_fd=entry.folder)
    with suppress(FileNotFoundError):
        os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
        raise Failure("not_hidden", "the agent's configuration cannot be hidden")


def bring_back(folders: GitFolders, request: Mapping[str, Any]) -> None:
    """Restore the base commit's files with hidden names, unless something is in the way. Raises `Failure`."""
    unwanted, base = {name.casefold() for name in request["hidden"]}, request["base_commit"]
    if not unwanted:
        return
    with open_throwaway(folders, base, request["timeout_s"]) as git:
        tracked = split_paths(git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", base))
        gone = [
            path
            for path in tracked
            if not unwanted.isdisjoint(path.casefold().split("/")) and is_free(folders.worktree, path)
        ]
        git.run("read-tree", base)
        git.run("checkout-index", "-z", "--stdin", stdin=join_paths(gone))


def is_free(root: Path, path: str) -> bool:
    """Whether nothing exists at a path, and each part above it is a folder or missing."""
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
