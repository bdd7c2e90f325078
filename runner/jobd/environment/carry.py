"""Carries an earlier attempt's edits over into a worktree, by git: it converts, makes links, and follows none.

Edits to what configures coding agents are held back: no agent and no command of a run sees them, and the change at its
end has them nevertheless.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import Failure, JobPaths, read_json
from ..git import Git, find_own_clone, open_throwaway, show
from ..requests import is_change
from .change import PathReader
from .merge import merge
from .trees import open_up

Change = Mapping[str, Any]
"""`path`, `mode` (None when it is deleted), `content` in Base64 (for a link its target) and `old_mode`."""


def carry_over(
    job: JobPaths, clone: Path, base: str, changes: Sequence[Change], timeout_s: float, begun_at: str = ""
) -> list[str]:
    """Write edits into a worktree as it was just checked out. Raises `Failure`.

    Those that were made on another commit, `begun_at`, are merged; the paths in conflict are returned.
    """
    if not changes:
        return []
    with open_throwaway(job, clone, base, timeout_s) as git:
        tree = write_tree(git, begun_at or base, changes)
        conflicts: list[str] = []
        if begun_at not in ("", base):
            tree, conflicts = merge(git, begun_at, base, tree)
        git.run("read-tree", "--reset", "-u", base, tree)
        return conflicts


def put_back(job: JobPaths, request: Mapping[str, Any], problems: list[str]) -> None:
    """Write the edits that were held back, but where the run has itself changed the path, which is then said."""
    prepared = read_json(job.of_stage("prepare", "request"))
    held_back, begun_at = prepared.get("held_back"), str(prepared.get("changes_from", ""))
    # An agent may have written there: it is its own change that it spoils.
    if not isinstance(held_back, list) or not 0 < len(held_back) <= request["max_changes"]:
        return
    if not all(map(is_change, held_back)):
        return
    base = request["base_commit"]
    open_up(job.worktree)
    with open_throwaway(job, find_own_clone(job), base, request["timeout_s"]) as git:
        for change in held_back:
            left_out = f"an earlier edit of {show(change['path'])} was left out"
            if not has_same(git, change["path"], begun_at, base):
                problems.append(f"{left_out}: its new base changes that, too")
            elif not put_back_one(git, job.worktree, base, change, request["max_change_bytes"]):
                problems.append(f"{left_out}: it was edited anew")


def has_same(git: Git, path: str, begun_at: str, base: str) -> bool:
    """Whether two commits have the same at a path; without `begun_at` there is only one."""
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
    """Write one edit. False, and nothing is changed, when the path is not as the base commit has it."""
    about = PathReader(worktree).look(change["path"])
    if about and about.st_size > max_bytes:  # Too large to be read, so it is nothing that we would replace.
        return False
    tree = write_tree(git, base, [change])
    try:
        git.run("update-index", "-z", "--remove", "--stdin", stdin=f"{change['path']}\0".encode())
        # Where the path is not as in `base`, git refuses; so it does where a link or a new file is in the way.
        git.run("read-tree", "-m", "-u", base, tree)
    except Failure as failure:
        if failure.name != "git_failed":
            raise
        return False
    return True


def write_tree(git: Git, base: str, changes: Iterable[Change]) -> str:
    """The tree of the base commit with edits; the index has it without. Raises `Failure`."""
    lines = []
    for change in sorted(changes, key=lambda change: change["mode"] is not None):  # What gives way goes first.
        about = f"0 {'0' * len(base)}"  # A path to be removed (git-update-index(1), "using --index-info").
        if change["mode"] is not None:
            content = base64.b64decode(change["content"])
            about = f"{change['mode']} {git.run('hash-object', '-w', '--stdin', stdin=content).decode().strip()}"
        lines.append(f"{about}\t{change['path']}\0")
    git.run("read-tree", base)
    git.run("update-index", "-z", "--add", "--replace", "--index-info", stdin="".join(lines).encode())
    tree = git.run("write-tree").decode().strip()
    git.run("read-tree", base)
    if git.ignored:
        raise Failure("git_failed", f"git does not take an edit of the earlier attempt: {git.ignored[0]}")
    return tree
