"""Merges an earlier attempt's edits into a commit other than the one they were made on, with git's three-way merge.

The merge runs in a new, empty folder. It reads nothing from a worktree.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ..git import Git, as_environment, join_paths, split_paths, write_lines
from .change import PathReader

ONTO, CHANGE = "onto", "change"
"""The names of the two sides in conflict markers, and in the names of displaced files: `path~change`."""

ATTRIBUTES = "* -text -ident -filter !eol !working-tree-encoding conflict-marker-size=7"
"""Overrides the repository: files stay as git stores them, and all conflict markers have the same length."""

SETTINGS = {
    **{"merge.conflictStyle": "diff3", "merge.renames": "true", "merge.directoryRenames": "true"},
    # Links are written as files with their target: git before 2.50 can move a link, and then write to its target.
    "core.symlinks": "false",
}

OURS = "2"
"""The stage of our side of a conflict in the index (git-ls-files(1), "--stage")."""


def merge(git: Git, begun_at: str, onto: str, changed: str) -> tuple[str, list[str]]:
    """Merge what `changed` has changed since `begun_at` into `onto`. Returns the tree, and the paths in conflict.

    Files in which both sides changed the same lines get conflict markers. Binary files cannot have markers: they stay
    as in `onto`, or as changed if `onto` does not have them. The index is left at `onto`. Raises `Failure`.
    """
    names = {f"GITHEAD_{onto}": ONTO, f"GITHEAD_{changed}": CHANGE}
    attributes = git.folder / "info" / "attributes"
    with tempfile.TemporaryDirectory(prefix="merge-", dir=git.folder.parent) as folder:
        write_lines(attributes, ATTRIBUTES)
        merging = git.with_worktree(Path(folder), {**names, **as_environment(SETTINGS)})
        merging.run("read-tree", onto)
        merging.run("merge-recursive", begun_at, "--", onto, changed, statuses=(0, 1))
        conflicts = settle(merging, Path(folder), nothing=f"0 {'0' * len(onto)}")
        tree = merging.run("write-tree").decode().strip()
        attributes.unlink()
    git.run("read-tree", onto)
    return tree, conflicts


def settle(git: Git, folder: Path, nothing: str) -> list[str]:
    """Update the index with each conflicting path as the merge left it. Returns these paths.

    `nothing` tells the index that a path does not exist (git-update-index(1), "using --index-info").
    """
    stages: dict[str, dict[str, str]] = {}
    for line in split_paths(git.run("ls-files", "-z", "--unmerged")):
        about, _, path = line.partition("\t")
        mode, name, stage = about.split()
        stages.setdefault(path, {})[stage] = f"{mode} {name}"
    tree = PathReader(folder)
    found = {path: tree.stat(path) for path in stages}
    written = [path for path, about in found.items() if about and not stat.S_ISDIR(about.st_mode)]
    # Files that the merge did not touch are not in the folder. If a folder took a file's place, the file was renamed.
    rest = {path: nothing if found[path] else stages[path].get(OURS, nothing) for path in stages}
    lines = "".join(f"{about}\t{path}\0" for path, about in rest.items() if path not in written)
    displaced = split_paths(git.run("ls-files", "-z", "--others"))
    git.run("update-index", "-z", "--index-info", stdin=os.fsencode(lines))
    git.run("update-index", "-z", "--add", "--stdin", stdin=join_paths([*written, *displaced]))
    return sorted({*stages, *displaced})
