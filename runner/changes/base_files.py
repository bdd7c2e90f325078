"""Whether the changes begin from what the base commit holds: modes, types, and folders in the way. Pure.

A machine says which mode each path had before. By that people are shown a new file, an edited one or a link; so it is
compared with what GitHub has, before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.changes.patch_text import Untrue
from runner.characters import show_path
from runner.model.job import FileChange

FOLDER = "040000"
"""The mode of a folder in a git tree."""

_TYPES = {"120000": "a link", "160000": "a submodule", FOLDER: "a folder"}


@dataclass(frozen=True, slots=True)
class BaseFile:
    """What a commit has at a path: a file, a link, a submodule or a folder, with the SHA of its git object."""

    mode: str
    sha: str


def list_folders(path: str) -> Iterator[str]:
    """The folders that a path lies in, the outermost first; the root, as an empty name, is not among them."""
    parts = path.split("/")
    return ("/".join(parts[:end]) for end in range(1, len(parts)))


def check_base(changes: Sequence[FileChange], found: Mapping[str, BaseFile]) -> None:
    """Raise `Untrue` unless each path is, in the base commit, what the change says that it was.

    `found` holds what the base commit has at these paths and at the folders that they lie in.
    """
    gone = {change.path for change in changes if change.mode is None}
    for change in changes:
        there = found.get(change.path)
        if (there.mode if there else None) != change.old_mode:
            raise Untrue(
                f"{show_path(change.path)} is {_describe(there)} in the base commit, and not {_name(change.old_mode)}"
            )
        for folder in list_folders(change.path):
            over = found.get(folder)
            if over and over.mode != FOLDER and folder not in gone:
                lies = f"{show_path(change.path)} lies in {show_path(folder)}"
                raise Untrue(f"{lies}, which is {_describe(over)} in the base commit")


def _describe(there: BaseFile | None) -> str:
    return _name(there.mode if there else None)


def _name(mode: str | None) -> str:
    return "absent" if mode is None else _TYPES.get(mode, f"a file with mode {mode}")
