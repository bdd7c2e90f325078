"""Applies an earlier attempt's edits to a worktree, with git, which converts files, writes links, and follows none.

Edits to configuration files of coding agents are held back. Agents and commands do not see them, but the final change
contains them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..files import Failure, JobPaths, read_json
from ..git import Git, GitFolders, find_git_folders, open_throwaway, show_path
from ..requests import is_change
from ..stages.stage import Stage
from .change import PathReader
from .merge import merge
from .trees import open_up

Change = Mapping[str, Any]
"""An edit: `path`, `mode` (None: the file is deleted), `content` in Base64 (of a link: its target), and `old_mode`."""


def carry_over(stage: Stage, base: str, changes: Sequence[Change], begun_at: str = "") -> list[str]:
    """Apply edits to a worktree that was just checked out. Raises `Failure`.

    Edits that were made on another commit, `begun_at`, are merged. Returns the paths in conflict.
    """
    if not changes:
        return []
    folders, timeout_s = find_git_folders(stage.job), stage.request["timeout_s"]
    conflicts: list[str] = stage.do_inside(lambda: apply_edits(folders, base, changes, timeout_s, begun_at))
    return conflicts


def apply_edits(
    folders: GitFolders, base: str, changes: Sequence[Change], timeout_s: float, begun_at: str = ""
) -> list[str]:
    """Apply edits as `carry_over` does, but with plain values, and without entering a sandbox."""
    with open_throwaway(folders, base, timeout_s) as git:
        tree = write_tree(git, begun_at or base, changes)
        conflicts: list[str] = []
        if begun_at not in ("", base):
            tree, conflicts = merge(git, begun_at, base, tree)
        git.run("read-tree", "--reset", "-u", base, tree)
        return conflicts


class HeldBack(NamedTuple):
    """Edits that agents and commands do not see."""

    changes: Sequence[Change]
    begun_at: str
    """The commit that the edits were made on. Empty means the environment's own base commit."""


def find_held_back(job: JobPaths, max_changes: int) -> HeldBack:
    """The held-back edits of a prepared job."""
    prepared = read_json(job.of_stage("prepare", "request"))
    changes, begun_at = prepared.get("held_back"), str(prepared.get("changes_from", ""))
    # In a job without a sandbox, an agent may have written to this file, but can only spoil its own change.
    if not isinstance(changes, list) or len(changes) > max_changes or not all(map(is_change, changes)):
        changes = []
    return HeldBack(changes, begun_at)


def put_back(
    folders: GitFolders, request: Mapping[str, Any], held_back: HeldBack, problems: list[str], deadline: float
) -> None:
    """Apply the held-back edits, except to paths that the run or the new base has changed.

    `problems` names the edits that are left out. Raises `Failure`.
    """
    if not held_back.changes:
        return
    base = request["base_commit"]
    open_up(folders.worktree, deadline)
    with open_throwaway(folders, base, request["timeout_s"]) as git:
        for change in held_back.changes:
            left_out = f"an earlier edit of {show_path(change['path'])} was left out"
            if not has_same(git, change["path"], held_back.begun_at, base):
                problems.append(f"{left_out}: the new base also changes it")
            elif not put_back_one(git, folders.worktree, base, change, request["max_change_bytes"]):
                problems.append(f"{left_out}: the run edited it again")


def has_same(git: Git, path: str, begun_at: str, base: str) -> bool:
    """Whether two commits have the same content at a path. True if `begun_at` is empty."""
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", begun_at):
        return not begun_at
    words = ("ls-tree", "-z", "--full-tree")
    try:
        return git.run(*words, begun_at, "--", path) == git.run(*words, base, "--", path)
    except Failure as failure:
        if failure.name != "git_failed":
            raise
        return False


def put_back_one(git: Git, worktree: Path, base: str, change: Change, max_bytes: int) -> bool:
    """Apply one edit. Returns False, and changes nothing, if the path differs from the base commit."""
    about = PathReader(worktree).stat(change["path"])
    if about and about.st_size > max_bytes:  # Too large to read, so it cannot be the base's file.
        return False
    tree = write_tree(git, base, [change])
    try:
        git.run("update-index", "-z", "--remove", "--stdin", stdin=f"{change['path']}\0".encode())
        # Git refuses if the path differs from `base`, or if a link or a new file is in the way.
        git.run("read-tree", "-m", "-u", base, tree)
    except Failure as failure:
        if failure.name != "git_failed":
            raise
        return False
    return True


def write_tree(git: Git, base: str, changes: Iterable[Change]) -> str:
    """Write the tree of the base commit with edits, and return its id. Resets the index to `base`. Raises `Failure`."""
    lines = []
    for change in sorted(changes, key=lambda change: change["mode"] is not None):  # Deletions first: they make room.
        about = f"0 {'0' * len(base)}"  # A path to remove (git-update-index(1), "using --index-info").
        if change["mode"] is not None:
            content = base64.b64decode(change["content"])
            about = f"{change['mode']} {git.run('hash-object', '-w', '--stdin', stdin=content).decode().strip()}"
        lines.append(f"{about}\t{change['path']}\0")
    git.run("read-tree", base)
    git.run("update-index", "-z", "--add", "--replace", "--index-info", stdin="".join(lines).encode())
    tree = git.run("write-tree").decode().strip()
    git.run("read-tree", base)
    if git.ignored:
        raise Failure("git_failed", f"git does not accept an edit of the earlier attempt:\n{git.ignored[0]}")
    return tree
