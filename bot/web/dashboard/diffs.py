"""Splits a diff into files and kinds of lines for pages. Pure.

The input comes from `handlers.text.shown_patch`, and no line of it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.changes.patch import PatchLine, list_lines

COLOURED_DIFF, COLOURED_LINES = 200_000, 10_000
"""A diff with more characters or lines is shown without colours, because each line needs an element."""

UNFOLDED_LINES = 400
"""A diff with at most this many lines shows all files unfolded."""

_KINDS = {"added": "plus", "removed": "minus", "hunk": "hunk"}

Lines = Sequence[tuple[str, str]]
"""Lines with their kind: `plus`, `minus`, `hunk`, or empty."""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The part of a diff for one file."""

    name: str
    lines: Lines
    unfolded: bool

    def count(self, kind: str) -> int:
        """The number of lines of a kind."""
        return sum(one == kind for one, _ in self.lines)


def read_diff(text: str) -> list[FileDiff]:
    """The files of a diff, in order; if it is too large, one without a name."""
    if len(text) >= COLOURED_DIFF or text.count("\n") > COLOURED_LINES:
        return [FileDiff("", [("", text)], True)]
    return fold_diff(list_lines(text))


def fold_diff(lines: Iterable[PatchLine]) -> list[FileDiff]:
    """The files of a diff, in order."""
    files: list[tuple[str, list[tuple[str, str]]]] = []
    count = 0
    for kind, name, line in lines:
        if not files or (kind == "header" and line.startswith("diff --git ")):
            files.append((name, []))
        files[-1][1].append((_KINDS.get(kind, ""), f"{line}\n"))
        count += 1
    return [FileDiff(name, found, count <= UNFOLDED_LINES) for name, found in files]
