"""Merges an earlier attempt's edits into another commit than the one that they were made on: three ways, by git.

It happens in a folder of its own, which is empty but for what the merge writes: nothing of a worktree is read.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..git import Git, join, split, write
from .change import PathReader

ONTO, CHANGE = "onto", "change"
"""The two sides, as conflict markers name them, and files whose place was taken: `path~change`."""

ATTRIBUTES = "* -text -ident -filter !eol !working-tree-encoding conflict-marker-size=7"
"""Whatever the repository says: its files stay as git stores them, and every marker can be told by its length."""

SETTINGS = {"merge.conflictStyle": "diff3", "merge.renames": "true", "merge.directoryRenames": "true"}

OURS = "2"
"""The stage of an entry in conflict that has the side we merge into (git-ls-files(1), "--stage")."""


def merge(git: Git, begun_at: str, onto: str, changed: str) -> tuple[str, list[str]]:
    """The tree of a commit with what another tree has changed since `begun_at`, and the paths in conflict.

    Where both sides changed the same lines, the files have conflict markers; where there can be none, as in binary
    files, they are as in `onto`, or as changed where that has none. The index is left at `onto`. Raises `Failure`.
    """
    names = {f"GITHEAD_{onto}": ONTO, f"GITHEAD_{changed}": CHANGE}
    attributes = git.folder / "info" / "attributes"
    with tempfile.TemporaryDirectory(prefix="merge-", dir=git.folder.parent) as folder:
        write(attributes, ATTRIBUTES)
        merging = git.beside(Path(folder), {**names, **as_environment(SETTINGS)})
        merging.run("read-tree", onto)
        merging.run("merge-recursive", begun_at, "--", onto, changed, statuses=(0, 1))
        conflicts = settle(merging, Path(folder), nothing=f"0 {'0' * len(onto)}")
        tree = merging.run("write-tree").decode().strip()
        attributes.unlink()
    git.run("read-tree", onto)
    return tree, conflicts


def settle(git: Git, folder: Path, nothing: str) -> list[str]:
    """Let the index have every path in conflict as the merge has left it, and return these paths.

    `nothing` is how the index is told that a path is not there (git-update-index(1), "using --index-info").
    """
    stages: dict[str, dict[str, str]] = {}
    for line in split(git.run("ls-files", "-z", "--unmerged")):
        about, _, path = line.partition("\t")
        mode, name, stage = about.split()
        stages.setdefault(path, {})[stage] = f"{mode} {name}"
    tree = PathReader(folder)
    found = {path: tree.look(path) for path in stages}
    written = [path for path, about in found.items() if about and not stat.S_ISDIR(about.st_mode)]
    # What the merge leaves as it was is not in the folder; where a folder is in its place, it lies beside that.
    rest = {path: nothing if found[path] else stages[path].get(OURS, nothing) for path in stages}
    lines = "".join(f"{about}\t{path}\0" for path, about in rest.items() if path not in written)
    displaced = split(git.run("ls-files", "-z", "--others"))
    git.run("update-index", "-z", "--index-info", stdin=os.fsencode(lines))
    git.run("update-index", "-z", "--add", "--stdin", stdin=join([*written, *displaced]))
    return sorted({*stages, *displaced})


def as_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as git takes them from its environment (git-config(1), `GIT_CONFIG_COUNT`)."""
    found = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings.items()):
        found.update({f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value})
    return found
