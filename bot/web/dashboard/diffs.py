"""Diffs as pages show them: folded by file, each line with what it is. Pure.

They are shown already (`handlers.text.shown_patch`), and what is drawn here has every line of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.changes.patch import PatchLine, list_lines

COLOURED_DIFF, COLOURED_LINES = 200_000, 10_000
"""Characters and lines beyond which a diff is shown without colours: each line would cost an element."""

UNFOLDED_LINES = 400
"""Lines of a diff up to which all of its files are shown unfolded."""

_KINDS = {"added": "plus", "removed": "minus", "hunk": "hunk"}

Lines = Sequence[tuple[str, str]]
"""Each with what it is: `plus`, `minus`, `hunk`, or nothing."""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What a diff says of one file."""

    name: str
    lines: Lines
    unfolded: bool

    def count(self, kind: str) -> int:
        """How many lines are of a kind."""
        return sum(one == kind for one, _ in self.lines)


def read_diff(text: str) -> list[FileDiff]:
    """The files of a diff, in its order; one without a name where there is too much of it."""
    if len(text) >= COLOURED_DIFF or text.count("\n") > COLOURED_LINES:
        return [FileDiff("", [("", text)], True)]
    return fold_diff(list_lines(text))


def fold_diff(lines: Iterable[PatchLine]) -> list[FileDiff]:
    """The files of a diff, in its order."""
    files: list[tuple[str, list[tuple[str, str]]]] = []
    count = 0
    for kind, name, line in lines:
        if not files or (kind == "header" and line.startswith("diff --git ")):
            files.append((name, []))
        files[-1][1].append((_KINDS.get(kind, ""), f"{line}\n"))
        count += 1
    return [FileDiff(name, found, count <= UNFOLDED_LINES) for name, found in files]
