"""Parses patches: their files, headers, hunks and names, exactly as git writes them (git-diff(1)). Pure.

This module reads what a patch claims. `runner.changes.patch` checks whether it is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from runner.characters import show_path

ADDED, DELETED, MODIFIED, RENAMED = "added", "deleted", "modified", "renamed"

NO_NEWLINE = "\\ No newline at end of file"
BINARY = "GIT binary patch"

_KIND_WORDS = {"new file mode ": ADDED, "deleted file mode ": DELETED, "rename from ": RENAMED}
_NUMBER = "0|[1-9][0-9]{0,9}"
_NUMBERS = f"({_NUMBER})(?:,(?!1 )({_NUMBER}))?"
_HUNK = re.compile(f"@@ -{_NUMBERS} \\+{_NUMBERS} @@(?: ([A-Za-z_$][^\n]{{0,79}}))?")
"""After the numbers, git repeats up to 80 bytes of an earlier line that begins like this (`def_ff` in its
`xdiff/xemit.c`). A size of 1 is omitted."""


class PatchMismatch(Exception):  # noqa: N818 - a state
    """The patch does not show the changes. The message is a clause that names the path."""


@dataclass(frozen=True, slots=True)
class Section:
    """A patch's section for one file."""

    header: Sequence[str]
    hunks: Sequence[str]
    binary_body: Sequence[str] = ()
    """The lines after `GIT binary patch`."""

    @property
    def kind(self) -> str:
        """Added, deleted, renamed or modified, as the first decisive line of the header says."""
        words = _KIND_WORDS.items()
        return next((kind for line in self.header for word, kind in words if line.startswith(word)), MODIFIED)

    @property
    def renamed_from(self) -> str | None:
        """The old path of a renamed file."""
        return self._read_name("rename from ")

    @property
    def renamed_to(self) -> str | None:
        """The new path of a renamed file."""
        return self._read_name("rename to ")

    def _read_name(self, word: str) -> str | None:
        if self.kind != RENAMED:
            return None
        return next((unquote(line.removeprefix(word)) for line in self.header if line.startswith(word)), None)

    @property
    def blobs(self) -> tuple[str, str] | None:
        """The abbreviated object ids before and after, if the header has them."""
        found = (_BLOBS.match(line) for line in self.header)
        return next(((match[1], match[2]) for match in found if match), None)

    @property
    def binary(self) -> bool:
        """Whether the content is not shown."""
        return any(line == BINARY or line.startswith("Binary files ") for line in self.header)


def split(patch: str) -> Iterator[Section]:
    """The sections of a patch. No line of a hunk begins like a header. Raises `PatchMismatch`."""
    lines = patch.removesuffix("\n").split("\n") if patch else []
    starts = [number for number, line in enumerate(lines) if line.startswith("diff --git ")]
    if lines and starts[:1] != [0]:
        raise PatchMismatch("the diff does not begin with a file")
    for start, end in pairwise([*starts, len(lines)]):
        part = lines[start:end]
        body = next((at for at, line in enumerate(part) if line.startswith("@@ ") or line == BINARY), len(part))
        if part[body : body + 1] == [BINARY]:
            yield Section(part[: body + 1], [], part[body + 1 :])
        else:
            yield Section(part[:body], part[body:])


# Headers


def name_section(old_path: str, path: str) -> str:
    """The first line of a section."""
    return f"diff --git {quote(f'a/{old_path}')} {quote(f'b/{path}')}"


_SIMILARITY = re.compile("(dis)?similarity index [0-9]{1,3}%")
_INDEX = "index [0-9a-f]{{4,64}}\\.\\.[0-9a-f]{{4,64}}{}"
_BLOBS = re.compile("index ([0-9a-f]+)\\.\\.([0-9a-f]+)")


def check_header(section: Section, path: str, old_path: str, mode: str | None, old_mode: str | None) -> None:
    """Raise `PatchMismatch` unless the header is exactly as git writes it for this kind of section."""
    told = [] if mode == old_mode else [f"old mode {old_mode}", f"new mode {mode}"]
    if section.kind in (MODIFIED, RENAMED) and not set(told) <= set(section.header):
        raise PatchMismatch(f"{show_path(path)} gets another mode, and the diff does not show it")
    at = 1
    for line in _list_header(section, path, old_path, mode, old_mode):
        found = section.header[at] if at < len(section.header) else ""
        if isinstance(line, re.Pattern):
            at += line.fullmatch(found) is not None
        elif found == line:
            at += 1
        else:
            break
    else:
        if at == len(section.header):
            return
    wrong = section.header[at] if at < len(section.header) else "its header ends early"
    raise PatchMismatch(f"the diff of {show_path(path)} contains a false line: {show_path(wrong)}")


def _list_header(
    section: Section, path: str, old_path: str, mode: str | None, old_mode: str | None
) -> Iterator[str | re.Pattern[str]]:
    """The lines after `diff --git`, in order; a pattern stands for a line that may be missing.

    As in git's `diff.c`, `builtin_diff` and `fill_metadata_msg`.
    """
    kind = section.kind
    keeps_path = kind in (MODIFIED, RENAMED)
    if kind == ADDED:
        yield f"new file mode {mode}"
    elif kind == DELETED:
        yield f"deleted file mode {old_mode}"
    elif mode != old_mode:
        yield from (f"old mode {old_mode}", f"new mode {mode}")
    if keeps_path:
        yield _SIMILARITY
    if kind == RENAMED:
        yield from (f"rename from {quote(old_path)}", f"rename to {quote(path)}")
    yield re.compile(_INDEX.format(f"( {mode})?" if keeps_path and mode == old_mode else ""))
    old = "/dev/null" if kind == ADDED else quote(f"a/{old_path}")
    new = "/dev/null" if kind == DELETED else quote(f"b/{path}")
    if section.binary and section.hunks:
        raise PatchMismatch(f"the diff shows lines of {show_path(path)}, but calls it binary")
    if section.hunks:
        # Git writes a tab after a name with a space.
        yield from (f"{mark} {name}" + "\t" * (" " in name) for mark, name in (("---", old), ("+++", new)))
    elif section.binary:
        yield BINARY if section.header[-1] == BINARY else f"Binary files {old} and {new} differ"


# Hunks


class Hunk(NamedTuple):
    """A changed part of a file."""

    start: int
    """Its first line on the old side, counted from 0."""
    grown: int
    """How many lines the hunks before it have added."""
    lines: list[tuple[str, str]]
    """Pairs of mark and text, with the newline."""
    heading: str
    """The earlier line that its first line repeats, or the beginning of it."""


_MARKS = frozenset(" +-")


def read_hunks(section: Section) -> Iterator[Hunk]:
    """The hunks of a section. Raises `PatchMismatch` for anything that git does not write."""
    hunks = _group_hunks(section)
    for number, (_, lines) in enumerate(hunks, 1):
        for side in ([text for mark, text in lines if mark != other] for other in "+-"):
            if any(not text.endswith("\n") for text in (side[:-1] if number == len(hunks) else side)):
                raise PatchMismatch("the diff says in the middle of a file that the file ends there")
    grown = 0
    for found, lines in hunks:
        marks = [mark for mark, _ in lines]
        sizes = [len(marks) - marks.count(other) for other in "+-"]
        start, begins = (int(found[at]) - (size > 0) for at, size in zip((1, 3), sizes, strict=True))
        if not lines or sizes != [int(found[at] or 1) for at in (2, 4)] or begins != start + grown:
            raise PatchMismatch(f"the diff has a hunk that does not match its first line: {show_path(found[0])}")
        yield Hunk(start, grown, lines, found[5] or "")
        grown += sizes[1] - sizes[0]


def _group_hunks(section: Section) -> list[tuple[re.Match[str], list[tuple[str, str]]]]:
    """The first line of each hunk, and its other lines. A line has no newline if a remark follows it."""
    hunks: list[tuple[re.Match[str], list[tuple[str, str]]]] = []
    for line in section.hunks:
        if hunks and line[:1] in _MARKS:
            hunks[-1][1].append((line[0], f"{line[1:]}\n"))
        elif found := _HUNK.fullmatch(line):
            hunks.append((found, []))
        elif hunks and line == NO_NEWLINE and hunks[-1][1] and hunks[-1][1][-1][1].endswith("\n"):
            mark, text = hunks[-1][1][-1]
            hunks[-1][1][-1] = (mark, text.removesuffix("\n"))
        else:
            raise PatchMismatch("the diff has an unknown line")
    return hunks


# Names, as git quotes them with `core.quotePath` off (git-config(1))

_ESCAPES = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
_UNESCAPES = {short: char for char, short in _ESCAPES.items()}
_QUOTED = {code: f"\\{code:03o}" for code in (*range(0x20), 0x7F)} | {
    ord(char): f"\\{short}" for char, short in _ESCAPES.items()
}


def quote(path: str) -> str:
    """A name as git writes it."""
    quoted = path.translate(_QUOTED)
    return path if quoted == path else f'"{quoted}"'


def unquote(name: str) -> str:
    """The reverse of `quote`."""

    def unescape(found: re.Match[str]) -> str:
        return _UNESCAPES.get(found[1]) or chr(int(found[1], 8) if len(found[1]) == 3 else ord(found[1]))

    return re.sub(r"\\([0-7]{3}|.)", unescape, name[1:-1], flags=re.DOTALL) if name.startswith('"') else name
