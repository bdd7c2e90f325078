"""Checks that a patch shows all of a change, byte for byte: people approve what they read. Pure.

Patch and changes come from the same machine, and an agent may have written both. So the patch is applied: on the real
content of the base commit, it must give exactly the changed files. A patch is text from `decode_exactly`, and lines end
only at line feeds, so texts are equal only if their bytes are equal.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

from runner.changes.binary_patch import check_body
from runner.changes.patch_text import (
    ADDED,
    BINARY,
    DELETED,
    MODIFIED,
    NO_NEWLINE,
    RENAMED,
    Hunk,
    PatchMismatch,
    Section,
    check_header,
    name_section,
    read_hunks,
    split,
)
from runner.characters import decode_exactly, drop_cut_character, show_path
from runner.model.job import LINK, SUBMODULE, FileChange


class PatchLine(NamedTuple):
    """A line of a patch, its kind, and the file that it belongs to (empty before the first file)."""

    kind: Literal["header", "hunk", "added", "removed", "context", "remark"]
    """`remark` is git's note on a missing line end. Unknown lines count as headers."""
    file: str
    text: str


def list_lines(patch: str) -> Iterator[PatchLine]:
    """Every line of a text, read as a patch."""
    file, in_hunk = "", False
    for text in patch.removesuffix("\n").split("\n") if patch else ():
        if in_hunk and (kind := _KINDS.get(text[:1])):
            yield PatchLine(kind, file, text)
        elif text.startswith("@@ "):
            in_hunk = True
            yield PatchLine("hunk", file, text)
        elif in_hunk and text == NO_NEWLINE:
            yield PatchLine("remark", file, text)
        else:
            if text.startswith("diff --git "):
                file, in_hunk = _name_file(text), False
            yield PatchLine("header", file, text)


_KINDS: Mapping[str, Literal["added", "removed", "context"]] = {
    **{"+": "added", "-": "removed", " ": "context"},
    "": "context",  # Some programs omit the space of an empty line.
}


def _name_file(line: str) -> str:
    """The file's name in the first line of its section; both names if it is renamed."""
    words = line.removeprefix("diff --git ")
    half = len(words) // 2
    same = words[:half].removeprefix("a/") == words[half + 1 :].removeprefix("b/")
    return words[half + 1 :].removeprefix("b/") if same else words


def list_additions(patch: str) -> list[str]:
    """The text that a patch adds to each file. Raises `PatchMismatch` if it is not a patch."""
    return ["\n".join(line[1:] for line in section.hunks if line[:1] == "+") for section in split(patch)]


def list_bare_returns(patch: str) -> list[str]:
    """The files to which a patch adds a carriage return without a line feed.

    Python and JavaScript end a line there, so readers of the diff would see the rest without its `+`. May raise
    `PatchMismatch` if it is not a patch.
    """
    if "\r" not in patch:  # The usual case is fast.
        return []
    lines = [
        (section, mark, text) for section in split(patch) for hunk in read_hunks(section) for mark, text in hunk.lines
    ]
    names = [
        _name_file(section.header[0]) for section, mark, text in lines if mark == "+" and _BARE_RETURN.search(text)
    ]
    return list(dict.fromkeys(names))


_BARE_RETURN = re.compile(r"\r(?!\n)")


def list_added_lines(patch: str, changes: Sequence[FileChange]) -> dict[str, set[int]]:
    """The line numbers, from 1, that are new in each changed file. Raises `PatchMismatch` if the patch does not fit."""
    names, added = _Names(changes), dict[str, set[int]]()
    for section in split(patch):
        numbers = added.setdefault(names.identify(section)[0].path, set())
        for hunk in read_hunks(section):
            kept = [mark for mark, _ in hunk.lines if mark != "-"]
            numbers.update(hunk.start + hunk.grown + at for at, mark in enumerate(kept, 1) if mark == "+")
    return added


def list_unshown(patch: str, changes: Sequence[FileChange]) -> frozenset[str]:
    """The changed files whose lines the patch does not show. Raises `PatchMismatch` if the patch does not fit."""
    names = _Names(changes)
    return frozenset(names.identify(section)[0].path for section in split(patch) if section.binary)


def list_bases(changes: Sequence[FileChange]) -> list[str]:
    """The paths in the base commit whose content a patch depends on."""
    return sorted(change.path for change in changes if change.old_mode not in (None, SUBMODULE))


def check_patch(patch: str, changes: Sequence[FileChange], base: Mapping[str, bytes] | None = None) -> None:
    """Raise `PatchMismatch` unless the patch shows exactly these changes.

    `base` holds the content of `list_bases`, and the targets of links, from a source that agents cannot write to.
    Without it, only the result is checked, and lines that the patch does not show could be anything.
    `runner.changes.base_files` checks the modes of the base commit.
    """
    names = _Names(changes)
    waiting = {key for change in changes for key in _expect(change)}
    for section in split(patch):
        change, old_path = names.identify(section)
        covered = {(ADDED, change.path), (DELETED, old_path)} if section.kind == RENAMED else {(section.kind, old_path)}
        if not covered <= waiting:
            raise PatchMismatch(f"{show_path(change.path)} is shown as {section.kind}, and is not")
        waiting -= covered
        old_mode = names.by_path[old_path].old_mode
        if section.kind == RENAMED and (change.mode == LINK) != (old_mode == LINK):
            raise PatchMismatch(
                f"{show_path(change.path)} is shown as renamed, and is of another type than {show_path(old_path)}"
            )
        check_header(section, change.path, old_path, change.mode, old_mode)
        _check_content(section, change, old_path, base)
    if waiting:
        kind, path = min(waiting)
        raise PatchMismatch(f"{show_path(path)} is {kind}, and the diff does not show it")


def _expect(change: FileChange) -> Iterator[tuple[str, str]]:
    """What a patch must show for a change. A file that becomes a link, or the reverse, is deleted and added."""
    if change.mode and change.old_mode and (change.mode == LINK) == (change.old_mode == LINK):
        yield MODIFIED, change.path
        return
    if change.old_mode:
        yield DELETED, change.path
    if change.mode:
        yield ADDED, change.path


class _Names:
    """Finds the change for a section. Quotes each path only once, because paths can be long and many."""

    def __init__(self, changes: Sequence[FileChange]) -> None:
        self.by_path = {change.path: change for change in changes}
        self._by_header = {name_section(change.path, change.path): change for change in changes}

    def identify(self, section: Section) -> tuple[FileChange, str]:
        """The change, and its path before the change, which differs only for a renamed file."""
        old_path, path = section.renamed_from, section.renamed_to
        if section.kind != RENAMED and (found := self._by_header.get(section.header[0])):
            return found, found.path
        if old_path and path in self.by_path and old_path != path and section.header[0] == name_section(old_path, path):
            return self.by_path[path], old_path
        raise PatchMismatch(f"the diff shows {show_path(section.header[0][11:])}, which is not changed")


def _check_content(section: Section, change: FileChange, old_path: str, base: Mapping[str, bytes] | None) -> None:
    name, before = show_path(change.path), b"" if section.kind == ADDED else None
    new = b"" if section.kind == DELETED else change.content or b""
    if base is not None and section.kind != ADDED:
        if old_path not in base:
            raise PatchMismatch(f"{name} is not in the base commit")
        before = base[old_path]
    if section.binary:
        _check_binary(name, section, change, before, new)
    else:
        _check_text(name, section, before, new)
    _check_blobs(name, section, before, new)


def _check_text(name: str, section: Section, before: bytes | None, new: bytes) -> None:
    hunks, text = [*read_hunks(section)], decode_exactly(new)
    fits = _fits_shown(hunks, text) if before is None else _apply(name, hunks, decode_exactly(before)) == text
    if not fits:
        raise PatchMismatch(
            f"{name} {'held' if section.kind == DELETED else 'holds'} something else than the diff shows"
        )


def _check_blobs(name: str, section: Section, before: bytes | None, new: bytes) -> None:
    """Check the abbreviated object ids in the header; a missing side has zeros."""
    sides = ((before, section.kind == ADDED), (new, section.kind == DELETED))
    for told, (content, is_absent) in zip(section.blobs or (), sides, strict=False):
        if content is not None and not ("0" * 40 if is_absent else _name_blob(content)).startswith(told):
            raise PatchMismatch(f"the diff of {name} names a content `{told}`, which is another one")


def _name_blob(content: bytes) -> str:
    """The object id of a blob (gitformat-loose(5))."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _check_binary(name: str, section: Section, change: FileChange, before: bytes | None, new: bytes) -> None:
    """Check that only content that git treats as binary is shown as binary."""
    was_binary = section.kind != ADDED and (before is None or is_shown_as_binary(before))
    if section.kind != DELETED and not (is_shown_as_binary(new) or (change.binary and was_binary)):
        raise PatchMismatch(f"{name} is text, and the diff does not show it")
    if section.kind == DELETED and not was_binary:
        raise PatchMismatch(f"{name} was text, and the diff does not show it")
    if section.header[-1] == BINARY and not check_body(section.binary_body, before, new):
        raise PatchMismatch(f"{name} holds something else than the diff shows")


def is_shown_as_binary(content: bytes) -> bool:
    """Whether git treats content as binary: it looks for a NUL in the first 8000 bytes (`buffer_is_binary`)."""
    return b"\0" in content[:8000]


# Hunks


def _apply(name: str, hunks: Sequence[Hunk], before: str) -> str:
    """Apply the hunks to a file."""
    old, at, new = _lines(before), 0, list[str]()
    find_first = _index_beginnings(old if any(hunk.heading for hunk in hunks) else [])
    for start, _, lines, heading in hunks:
        shown = [text for mark, text in lines if mark != "+"]
        if not at <= start <= len(old) or old[start : start + len(shown)] != shown:
            raise PatchMismatch(f"the diff of {name} does not fit the base commit")
        heading = drop_cut_character(heading)
        if heading and find_first(heading) >= start:
            raise PatchMismatch(
                f"the diff of {name} repeats a line that the base commit does not have there: {show_path(heading)}"
            )
        new += old[at:start]
        new += [text for mark, text in lines if mark != "-"]
        at = start + len(shown)
    new += old[at:]
    if any(not line.endswith("\n") for line in new[:-1]):
        raise PatchMismatch(f"the diff of {name} says in the middle of the file that the file ends there")
    return "".join(new)


def _index_beginnings(lines: Sequence[str]) -> Callable[[str], int]:
    """Finds the first line that has a given beginning: its index, or the number of lines where none has it.

    No line is looked at for each hunk: a file may have many of both.
    """
    first = {line: at for at, line in reversed([*enumerate(lines)])}
    ordered = sorted(first)

    @cache
    def find_first(beginning: str) -> int:
        low, high = (
            bisect(ordered, beginning, key=lambda line: line[: len(beginning)])
            for bisect in (bisect_left, bisect_right)
        )
        return min((first[line] for line in ordered[low:high]), default=len(lines))

    return find_first


def _fits_shown(hunks: Sequence[Hunk], new: str) -> bool:
    """Without the base: whether the new side of each hunk is in the file at its place."""
    lines = _lines(new)
    sides = [(hunk.start + hunk.grown, [text for mark, text in hunk.lines if mark != "-"]) for hunk in hunks]
    return all(lines[at : at + len(side)] == side for at, side in sides)


def _lines(text: str) -> list[str]:
    """Split as git does: only at line feeds."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
