"""Patches for people: by file, with line numbers and colours. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

_KINDS = {"+": "plus", "-": "minus", "@": "hunk"}
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+(\d{1,9})(?:,\d+)? @@")
_FILE = re.compile(r"^diff --git ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a hunk. `old` and `new` are its numbers before and after, empty if it is not there."""

    kind: str
    """`plus`, `minus`, `hunk`, or empty."""
    old: str
    new: str
    text: str


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The changes in one file."""

    path: str
    facts: str
    """Other changes than lines, such as a new mode."""
    lines: tuple[Line, ...]

    @property
    def additions(self) -> int:
        """Lines added."""
        return sum(line.kind == "plus" for line in self.lines)

    @property
    def deletions(self) -> int:
        """Lines deleted."""
        return sum(line.kind == "minus" for line in self.lines)


def parse_patch(patch: str) -> list[FileDiff]:
    """The files of a patch that git made without renames."""
    return [_parse_file(section) for section in _FILE.split(patch)[1:]]


def _parse_file(section: str) -> FileDiff:
    head, at, hunks = section.partition("\n@@")
    ends, *facts = head.split("\n")
    said = [fact for fact in facts if fact and not fact.startswith(("index ", "--- ", "+++ "))]
    # Without renames both sides have the same name, a/NAME b/NAME.
    path = ends[: len(ends) // 2].strip('"').removeprefix("a/")
    return FileDiff(path, ", ".join(said), tuple(_parse_hunks(f"@@{hunks}") if at else ()))


def _parse_hunks(text: str) -> Iterator[Line]:
    old = new = 0
    for line in text.removesuffix("\n").split("\n"):
        kind = _KINDS.get(line[:1], "")
        if kind == "hunk":
            found = _HUNK.match(line)
            old, new = (int(found[1]), int(found[2])) if found else (old, new)
            yield Line(kind, "", "", line)
        elif line.startswith("\\"):
            yield Line("", "", "", line)
        else:
            yield Line(kind, "" if kind == "plus" else str(old), "" if kind == "minus" else str(new), line)
            old, new = old + (kind != "plus"), new + (kind != "minus")


def render_diff(patch: str) -> Markup:
    """A patch with a colour for each line, as GitHub shows it in a comment."""
    lines = patch.removesuffix("\n").split("\n")
    return Markup().join(
        Markup('<span class="{}">{}\n</span>').format(_KINDS.get(line[:1], ""), line) for line in lines
    )
