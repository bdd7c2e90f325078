"""Whether a patch says all of a change: what people read must be what is proposed, byte for byte. Pure.

The patch and the changes come from the same machine, and an agent may have written either. So the patch is applied:
on what the base commit really holds it must give the changed files, and it must name no others. A patch is text as
`decode_exactly` gives it, and lines end at line feeds alone: texts are equal only where their bytes are.
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
    Section,
    Untrue,
    check_header,
    name_section,
    read_hunks,
    split,
)
from runner.characters import decode_exactly, drop_cut_character, show_path
from runner.model.job import FileChange

LINK, SUBMODULE = "120000", "160000"


class PatchLine(NamedTuple):
    """A line of a patch, what it is, and the file that it belongs to (empty before the first one)."""

    kind: Literal["header", "hunk", "added", "removed", "context", "remark"]
    """`remark` is git's own word on a missing line end. What means nothing is taken for a header."""
    file: str
    text: str


def list_lines(patch: str) -> Iterator[PatchLine]:
    """Every line of any text, read as a patch."""
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
    "": "context",  # Some programs leave out the space of an empty line.
}


def _name_file(line: str) -> str:
    """The file's name, as the first line of its section has it; both names where it is renamed."""
    words = line.removeprefix("diff --git ")
    half = len(words) // 2
    same = words[:half].removeprefix("a/") == words[half + 1 :].removeprefix("b/")
    return words[half + 1 :].removeprefix("b/") if same else words


def list_additions(patch: str) -> list[str]:
    """What a patch adds to each file. Raises `Untrue` for what is no patch."""
    return ["\n".join(line[1:] for line in section.hunks if line[:1] == "+") for section in split(patch)]


def list_bare_returns(patch: str) -> list[str]:
    """The files to which a patch adds a carriage return that no line feed follows.

    Python and JavaScript end a line there, and readers of the diff would see the rest without its `+`. May raise
    `Untrue` for what is no patch.
    """
    if "\r" not in patch:  # Most often: the lines need not be read one by one.
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
    """The numbers, from 1, of the lines that each changed file has new. Raises `Untrue` for what is no such patch."""
    names, added = _Names(changes), dict[str, set[int]]()
    for section in split(patch):
        numbers = added.setdefault(names.identify(section)[0].path, set())
        for hunk in read_hunks(section):
            kept = [mark for mark, _ in hunk.lines if mark != "-"]
            numbers.update(hunk.start + hunk.grown + at for at, mark in enumerate(kept, 1) if mark == "+")
    return added


def list_unshown(patch: str, changes: Sequence[FileChange]) -> frozenset[str]:
    """The changed files whose lines the patch does not show. Raises `Untrue` for what is no such patch."""
    names = _Names(changes)
    return frozenset(names.identify(section)[0].path for section in split(patch) if section.binary)


def list_bases(changes: Sequence[FileChange]) -> list[str]:
    """The paths of the base commit on whose content the meaning of a patch depends."""
    return sorted(change.path for change in changes if change.old_mode not in (None, SUBMODULE))


def check_patch(patch: str, changes: Sequence[FileChange], base: Mapping[str, bytes] | None = None) -> None:
    """Raise `Untrue` unless the patch shows exactly these changes.

    `base` holds the files of `list_bases`, and the targets of links, from where no agent can write. Without it the
    patch is only compared with what it leads to, and a line that it does not show could be anything. That the changes
    name the modes of the base commit is checked by `runner.changes.base_files`.
    """
    names = _Names(changes)
    waiting = {key for change in changes for key in _expect(change)}
    for section in split(patch):
        change, old_path = names.identify(section)
        covered = {(ADDED, change.path), (DELETED, old_path)} if section.kind == RENAMED else {(section.kind, old_path)}
        if not covered <= waiting:
            raise Untrue(f"{show_path(change.path)} is shown as {section.kind}, and is not")
        waiting -= covered
        old_mode = names.by_path[old_path].old_mode
        if section.kind == RENAMED and (change.mode == LINK) != (old_mode == LINK):
            raise Untrue(
                f"{show_path(change.path)} is shown as renamed, and is of another type than {show_path(old_path)}"
            )
        check_header(section, change.path, old_path, change.mode, old_mode)
        _check_content(section, change, old_path, base)
    if waiting:
        kind, path = min(waiting)
        raise Untrue(f"{show_path(path)} is {kind}, and the diff does not show it")


def _expect(change: FileChange) -> Iterator[tuple[str, str]]:
    """What a patch must say of a change. A file that becomes a link, or the reverse, goes and comes."""
    if change.mode and change.old_mode and (change.mode == LINK) == (change.old_mode == LINK):
        yield MODIFIED, change.path
        return
    if change.old_mode:
        yield DELETED, change.path
    if change.mode:
        yield ADDED, change.path


class _Names:
    """Finds the change that a section speaks of. Quotes each path once: a path may be long, and there may be many."""

    def __init__(self, changes: Sequence[FileChange]) -> None:
        self.by_path = {change.path: change for change in changes}
        self._by_header = {name_section(change.path, change.path): change for change in changes}

    def identify(self, section: Section) -> tuple[FileChange, str]:
        """The change, and the path before it: another one only where a file is renamed."""
        old_path, path = section.renamed_from, section.renamed_to
        if section.kind != RENAMED and (found := self._by_header.get(section.header[0])):
            return found, found.path
        if old_path and path in self.by_path and old_path != path and section.header[0] == name_section(old_path, path):
            return self.by_path[path], old_path
        raise Untrue(f"the diff shows {show_path(section.header[0][11:])}, which is not changed")


def _check_content(section: Section, change: FileChange, old_path: str, base: Mapping[str, bytes] | None) -> None:
    name, before = show_path(change.path), b"" if section.kind == ADDED else None
    new = b"" if section.kind == DELETED else change.content or b""
    if base is not None and section.kind != ADDED:
        if old_path not in base:
            raise Untrue(f"{name} is not in the base commit")
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
        raise Untrue(f"{name} {'held' if section.kind == DELETED else 'holds'} something else than the diff shows")


def _check_blobs(name: str, section: Section, before: bytes | None, new: bytes) -> None:
    """The header names contents by the beginning of their ids, and a side without the file by zeros."""
    sides = ((before, section.kind == ADDED), (new, section.kind == DELETED))
    for told, (content, is_absent) in zip(section.blobs or (), sides, strict=False):
        if content is not None and not ("0" * 40 if is_absent else _name_blob(content)).startswith(told):
            raise Untrue(f"the diff of {name} names a content `{told}`, which is another one")


def _name_blob(content: bytes) -> str:
    """As GitHub names it (gitformat-loose(5) has the form)."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _check_binary(name: str, section: Section, change: FileChange, before: bytes | None, new: bytes) -> None:
    """Only what git takes for no text may be shown as none."""
    was_binary = section.kind != ADDED and (before is None or is_shown_as_binary(before))
    if section.kind != DELETED and not (is_shown_as_binary(new) or (change.binary and was_binary)):
        raise Untrue(f"{name} is text, and the diff does not show it")
    if section.kind == DELETED and not was_binary:
        raise Untrue(f"{name} was text, and the diff does not show it")
    if section.header[-1] == BINARY and not check_body(section.binary_body, before, new):
        raise Untrue(f"{name} holds something else than the diff shows")


def is_shown_as_binary(content: bytes) -> bool:
    """Whether git shows nothing of a content: it looks for a NUL in the first 8000 bytes (`buffer_is_binary`)."""
    return b"\0" in content[:8000]


# Hunks


def _apply(name: str, hunks: Sequence[Hunk], before: str) -> str:
    """What the patch makes of a file."""
    old, at, new = _lines(before), 0, list[str]()
    find_first = _index_beginnings(old if any(hunk.heading for hunk in hunks) else [])
    for start, _, lines, heading in hunks:
        shown = [text for mark, text in lines if mark != "+"]
        if not at <= start <= len(old) or old[start : start + len(shown)] != shown:
            raise Untrue(f"the diff of {name} does not fit the base commit")
        heading = drop_cut_character(heading)
        if heading and find_first(heading) >= start:
            raise Untrue(
                f"the diff of {name} repeats a line that the base commit does not have there: {show_path(heading)}"
            )
        new += old[at:start]
        new += [text for mark, text in lines if mark != "-"]
        at = start + len(shown)
    new += old[at:]
    if any(not line.endswith("\n") for line in new[:-1]):
        raise Untrue(f"the diff of {name} says in the middle of the file that the file ends there")
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
    """Without the base: whether what each hunk shows stands where it says."""
    lines = _lines(new)
    sides = [(hunk.start + hunk.grown, [text for mark, text in hunk.lines if mark != "-"]) for hunk in hunks]
    return all(lines[at : at + len(side)] == side for at, side in sides)


def _lines(text: str) -> list[str]:
    """As git splits: at line feeds alone."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
