"""Checks that the changes start from what the base commit holds: modes, types, and folders in the way. Pure.

A machine reports which mode each path had before. Reports use it to say whether a file is new, edited, or a link. So it
is compared with GitHub before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.changes.patch_text import PatchMismatch
from runner.characters import show_path
from runner.model.job import LINK, SUBMODULE, FileChange

FOLDER = "040000"
"""The mode of a folder in a git tree."""

_TYPES = {LINK: "a link", SUBMODULE: "a submodule", FOLDER: "a folder"}


@dataclass(frozen=True, slots=True)
class BaseFile:
    """An entry of a commit: a file, a link, a submodule or a folder, with the SHA of its git object."""

    mode: str
    sha: str


def list_folders(path: str) -> Iterator[str]:
    """The folders that contain a path, the outermost first, without the root."""
    parts = path.split("/")
    return ("/".join(parts[:end]) for end in range(1, len(parts)))


def check_base(changes: Sequence[FileChange], found: Mapping[str, BaseFile]) -> None:
    """Raise `PatchMismatch` unless each path has, in the base commit, the mode that the change reports.

    `found` holds the base commit's entries for these paths and for the folders that contain them.
    """
    gone = {change.path for change in changes if change.mode is None}
    for change in changes:
        there = found.get(change.path)
        if (there.mode if there else None) != change.old_mode:
            raise PatchMismatch(
                f"{show_path(change.path)} is {_describe(there)} in the base commit, and not {_name(change.old_mode)}"
            )
        for folder in list_folders(change.path):
            over = found.get(folder)
            if over and over.mode != FOLDER and folder not in gone:
                inside = f"{show_path(change.path)} is inside {show_path(folder)}"
                raise PatchMismatch(f"{inside}, which is {_describe(over)} in the base commit")


def _describe(there: BaseFile | None) -> str:
    return _name(there.mode if there else None)


def _name(mode: str | None) -> str:
    return "absent" if mode is None else _TYPES.get(mode, f"a file with mode {mode}")
