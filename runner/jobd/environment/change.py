"""Computes the change in a worktree with git, but without the worktree's own git folder, hooks, filters and settings.

Sizes are checked before anything is hashed, so a sparse file of a terabyte only leads to an error message.
"""

from __future__ import annotations

import base64
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..files import Failure, is_utf8
from ..git import Git, GitFolders, join_paths, open_throwaway, show_path, split_paths, write_lines

PATCH_FACTOR = 4
"""How many times larger than the changed files a patch may be. A patch also holds the old content."""

CONVERSION_FACTOR, CONVERSION_BYTES = 2, 1_000
"""An unchanged file in the worktree may have this many times its size in git, and this many bytes more: git may have
written CRLF or UTF-16, or expanded `$Id$` (gitattributes(5))."""

MAX_NEW_BYTES = 64_000_000
"""The limit for git's list of new files: all their paths together, in bytes."""

MAX_FOLDERS = 200
"""A new file that is nested in more folders is left out: a path of thousands of names costs too much everywhere."""

COMPARE = ("diff-index", "--cached", "--ignore-submodules=dirty")
"""Without `--ignore-submodules`, `.gitmodules` decides which submodules are compared (gitmodules(5), `ignore`)."""

SUBMODULE = "160000"
ABSENT = "000000"
"""The mode for a missing file in git's raw format (git-diff(1), "raw output format")."""


HIDE_COMMITS = "--ignore-submodules=all"
"""Leaves submodules out of the patch. A job's files say where git reads a submodule's commit, so git could read one of
another repository. A change of a submodule is refused anyway."""

SHOW_ALL_TEXT = "* !diff"
"""Overrides `.gitattributes`: git itself decides which contents are text, and shows those (gitattributes(5))."""

NEVER_PART_OF_A_CHANGE = ("__pycache__/", ".hypothesis/")
"""Folders that running Python leaves behind. Left out even if the project's `.gitignore` does not list them."""


class ChangedPath(NamedTuple):
    """A changed path, as git reports it. A mode is None on the side where the file is missing."""

    path: str
    mode: str | None
    old_mode: str | None
    object: str


def compute_change(folders: GitFolders, request: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The changed files, and a patch for people. `problems` names what is left out."""
    base, max_bytes = request["base_commit"], request["max_change_bytes"]
    with open_throwaway(folders, base, request["timeout_s"]) as git:
        write_lines(git.folder / "info" / "exclude", *NEVER_PART_OF_A_CHANGE)
        write_lines(git.folder / "info" / "attributes", SHOW_ALL_TEXT)
        git.run("read-tree", base)
        found = Survey(git, folders.worktree, request, problems)
        git.run("update-index", "-z", "--force-remove", "--stdin", stdin=join_paths(found.gone))
        git.run("update-index", "-z", "--add", "--replace", "--stdin", stdin=join_paths(found.present))
        problems += [f"left out, because git does not accept it: {line}" for line in git.ignored]
        entries = read_entries(git.run(*COMPARE, "-z", "--no-renames", "--no-abbrev", base))
        require_few(len(entries), request["max_changes"])
        problems += find_twins(found.tracked, entries)
        contents = read_contents(git, entries, max_bytes)
        as_patch = ("--patch", "--binary", "--find-renames", "--no-ext-diff", "--no-textconv")
        limit = PATCH_FACTOR * max_bytes + request["max_text_bytes"]
        patch = git.run(*COMPARE, *as_patch, HIDE_COMMITS, base, limit=limit)
    return {
        "changes": [
            {"path": entry.path, "mode": entry.mode, "old_mode": entry.old_mode, "content": contents.get(entry.object)}
            for entry in entries
        ],
        # Exact: in JSON each byte that is not UTF-8 becomes a lone surrogate.
        "patch": patch.decode(errors="surrogateescape"),
    }


# Which paths to read


class Survey:
    """The paths that git should read, and those that are gone. Raises `Failure` if there is too much to read."""

    def __init__(self, git: Git, worktree: Path, request: Mapping[str, Any], problems: list[str]) -> None:
        self.tracked: list[str] = []
        self.present: list[str] = []
        self.gone: list[str] = []
        self._sizes: dict[str, int] = {}
        self._tree = PathReader(worktree)
        self._problems = problems
        for path, mode, size in list_tracked(git, request["base_commit"]):
            self.tracked.append(path)
            self._look_at_tracked(path, mode, size)
        require_room(self._sizes, request["max_change_bytes"])
        # Only now: to find new files, git reads each `.gitignore` completely.
        left = set(request["left"])
        for path in list_new(git):
            if path not in left:
                self._look_at_new(path)
        require_room(self._sizes, request["max_change_bytes"])
        require_few(len(self._sizes) + len(self.gone), request["max_changes"])

    def _look_at_tracked(self, path: str, mode: str, size: int) -> None:
        about = self._tree.stat(path)
        if not is_utf8(path):
            if about is None or about.st_size != size:
                self._leave_out(path, "its name is not UTF-8")
        elif about and fits(about, mode):
            self.present.append(path)
            if about.st_size > CONVERSION_FACTOR * size + CONVERSION_BYTES and not stat.S_ISDIR(about.st_mode):
                self._sizes[path] = about.st_size
        else:
            self.gone.append(path)
            if about and not stat.S_ISDIR(about.st_mode):
                self._problems.append(f"{show_path(path)} counts as deleted: it is no longer a regular file")

    def _look_at_new(self, path: str) -> None:
        if path.count("/") > MAX_FOLDERS:
            self._leave_out(path, f"it is in more than {MAX_FOLDERS} folders")
        elif path.endswith("/"):
            self._leave_out(path, "it is a git repository")
        elif not is_utf8(path):
            self._leave_out(path, "its name is not UTF-8")
        elif about := self._tree.stat(path):
            self.present.append(path)
            self._sizes[path] = about.st_size

    def _leave_out(self, path: str, reason: str) -> None:
        self._problems.append(f"{show_path(path)} was left out: {reason}")


class PathReader:
    """Looks up paths in a worktree, and never follows a link."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders = {"": True}

    def stat(self, path: str) -> os.stat_result | None:
        """The file's status. None if there is nothing, or if a folder on the way is a link."""
        if not self._is_folder(path.rstrip("/").rpartition("/")[0]):
            return None
        return self._lstat(path)

    def _is_folder(self, path: str) -> bool:
        if path not in self._folders:
            about = self._lstat(path) if self._is_folder(path.rpartition("/")[0]) else None
            self._folders[path] = about is not None and stat.S_ISDIR(about.st_mode)
        return self._folders[path]

    def _lstat(self, path: str) -> os.stat_result | None:
        try:
            return os.lstat(os.fsencode(f"{self._root}/{path}"))
        except OSError:
            return None


def list_tracked(git: Git, base: str) -> Iterable[tuple[str, str, int]]:
    """Path, mode and size in bytes of each file in the base commit (git-ls-tree(1), "output format")."""
    for line in split_paths(git.run("ls-tree", "-r", "-l", "-z", "--full-tree", base)):
        about, _, path = line.partition("\t")
        mode, _, _, size = about.split()
        yield path, mode, 0 if size == "-" else int(size)


def list_new(git: Git, max_bytes: int = MAX_NEW_BYTES) -> list[str]:
    """The files that git neither tracks nor ignores. Raises `Failure` if there are far too many."""
    try:
        return split_paths(git.run("ls-files", "-z", "--others", "--exclude-standard", limit=max_bytes))
    except Failure as failure:
        if failure.name != "change_too_large":
            raise
        reason = f"the paths of the new files have more than {max_bytes} bytes in total"
        raise Failure("change_too_large", reason) from None


def fits(about: os.stat_result, mode: str) -> bool:
    """Whether git can read a file or folder with this status as an entry with this mode."""
    if stat.S_ISDIR(about.st_mode):
        return mode == SUBMODULE
    return stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)


def require_few(count: int, limit: int) -> None:
    """Raises `Failure` if more than `limit` files are changed."""
    if count > limit:
        raise Failure("change_too_large", f"{count} files are changed, and {limit} are allowed")


def require_room(sizes: Mapping[str, int], limit: int) -> None:
    """Raises `Failure` if the changed files have more than `limit` bytes in total."""
    if sum(sizes.values()) > limit:
        largest = max(sizes, key=lambda path: sizes[path])
        reason = f"the changed files have more than {limit} bytes in total; {show_path(largest)} has {sizes[largest]}"
        raise Failure("change_too_large", reason)


# The changed paths


def read_entries(raw: bytes) -> list[ChangedPath]:
    """The changed paths, from git's raw format (git-diff(1), "raw output format")."""
    fields = split_paths(raw)
    entries = []
    for about, path in zip(fields[::2], fields[1::2]):  # noqa: B905 - not in Python 3.9
        old_mode, mode, _, new, _ = about.lstrip(":").split()
        entries.append(ChangedPath(path, none_if_absent(mode), none_if_absent(old_mode), new))
    return entries


def none_if_absent(mode: str) -> str | None:
    """A mode of git's raw format. None if the file is missing."""
    return None if mode == ABSENT else mode


def find_twins(tracked: Iterable[str], entries: Iterable[ChangedPath]) -> list[str]:
    """A sentence for each new path or folder whose name differs only in case from an existing one that stays."""
    gone = {entry.path for entry in entries if entry.mode is None}
    new: dict[str, set[str]] = {}
    for part in {part for entry in entries if entry.old_mode is None for part in list_parts(entry.path)}:
        new.setdefault(fold_case(part), set()).add(part)
    twins, known = dict[str, str](), set[str]()
    for part in {part for path in tracked if new and path not in gone for part in list_parts(path)}:
        spellings = new.get(fold_case(part), set())
        known |= spellings & {part}
        twins.update(dict.fromkeys(spellings, part))
    names = sorted(twins.keys() - known)
    return [
        f"{show_path(name)} differs only in case from {show_path(twins[name])}, which existed before" for name in names
    ]


def fold_case(path: str) -> str:
    """A path as case-insensitive file systems compare it."""
    return unicodedata.normalize("NFC", path).casefold()


def list_parts(path: str) -> Iterator[str]:
    """The path, and each folder that contains it."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def read_contents(git: Git, entries: Iterable[ChangedPath], limit: int) -> dict[str, str]:
    """The new content of each changed file, in Base64, by object id."""
    files = [entry for entry in entries if entry.mode not in (None, SUBMODULE)]
    names = "".join(f"{entry.object}\n" for entry in files).encode()
    checked = git.run("cat-file", "--batch-check=%(objectsize)", stdin=names).split()
    require_room({entry.path: int(size) for entry, size in zip(files, checked)}, limit)  # noqa: B905 - as above
    contents = git.read_objects(entry.object for entry in files)
    return {name: base64.b64encode(content).decode() for name, content in contents.items()}
