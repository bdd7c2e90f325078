"""Splits a diff into files, headers and numbered lines for pages. Pure.

The input comes from `handlers.text.shown_patch`, and no line of it is dropped. If both sides are shown next to each
other, unchanged lines and the heads of hunks are on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from runner.changes.patch import PatchLine, list_lines

COLOURED_DIFF, COLOURED_LINES = 200_000, 10_000
"""A diff with more characters or lines is shown as one text, because each line needs an element."""

UNFOLDED_LINES = 400
"""A diff with at most this many lines shows all files unfolded."""

_KINDS = {"added": "plus", "removed": "minus", "hunk": "hunk", "context": "", "remark": "remark"}
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+(\d{1,9})(?:,\d+)? @@")
_INDEX = re.compile(r"index [0-9a-f]{7,64}\.\.[0-9a-f]{7,64}(?: 100(?:644|755))?")
_MODES = {
    "new file mode 100644": "new",
    "new file mode 100755": "new, executable",
    "deleted file mode 100644": "deleted",
    "deleted file mode 100755": "deleted",
}
"""A line of a header -> the words in the file's heading that replace it."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a hunk with its kind (`plus`, `minus`, `hunk`, `remark`, or empty), and its number on either side."""

    kind: str
    text: str
    """The line with its diff mark, without its line end."""
    old: int | None = None
    new: int | None = None

    @property
    def numbers(self) -> str:
        """Both numbers, in columns."""
        return f"{self.old or '':>5} {self.new or '':>5}"


Pair = tuple[DiffLine | None, DiffLine | None]
"""The old side and the new side, next to each other. An unchanged line is in both."""


@dataclass(frozen=True)
class FileDiff:
    """The part of a diff for one file."""

    name: str
    header: Sequence[str]
    lines: Sequence[DiffLine]
    unfolded: bool

    def count(self, kind: str) -> int:
        """The number of lines of a kind."""
        return sum(line.kind == kind for line in self.lines)

    @property
    def status(self) -> str:
        """The change of the whole file, in a word or two. Usually empty."""
        return "; ".join(_MODES[line] for line in self.header if line in _MODES)

    @cached_property
    def is_header_plain(self) -> bool:
        """Whether the header says nothing beyond the name and the status, so that it can be folded."""
        name = self.name
        usual = {f"diff --git a/{name} b/{name}", f"--- a/{name}", f"+++ b/{name}", "--- /dev/null", "+++ /dev/null"}
        # Git writes a tab after a name with spaces.
        lines = [line.removesuffix("\t") for line in self.header]
        return all(line in usual or line in _MODES or _INDEX.fullmatch(line) for line in lines)

    def pairs(self) -> Iterator[Pair]:
        """The lines as two sides. Removed lines are next to the lines that were added in their place."""
        removed: list[DiffLine] = []
        added: list[DiffLine] = []
        for line in self.lines:
            if line.kind == "plus":
                added.append(line)
            elif line.kind == "minus" and not added:
                removed.append(line)
            elif line.kind == "remark" and (removed or added):
                (added or removed).append(line)
            else:
                yield from _zip(removed, added)
                removed, added = ([line], []) if line.kind == "minus" else ([], [])
                if line.kind != "minus":
                    yield line, line
        yield from _zip(removed, added)


def _zip(removed: Sequence[DiffLine], added: Sequence[DiffLine]) -> Iterator[Pair]:
    for at in range(max(len(removed), len(added))):
        yield removed[at] if at < len(removed) else None, added[at] if at < len(added) else None


def read_diff(text: str) -> list[FileDiff]:
    """The files of a diff, in order. If the diff is too large, one file without a name has all of its text."""
    if len(text) >= COLOURED_DIFF or text.count("\n") > COLOURED_LINES:
        return [FileDiff("", (), [DiffLine("", text.removesuffix("\n"))], True)]
    return fold_diff(list_lines(text))


def fold_diff(lines: Iterable[PatchLine]) -> list[FileDiff]:
    """The files of a diff, in order."""
    files: list[tuple[str, list[str], list[PatchLine]]] = []
    count = 0
    for line in lines:
        count += 1
        begins = line.kind == "header" and line.text.startswith("diff --git ")
        if not files or begins:
            files.append((line.file, [], []))
        _, header, body = files[-1]
        if line.kind == "header" and not body:
            header.append(line.text)
        else:
            body.append(line)
    return [FileDiff(name, head, [*_number(body)], count <= UNFOLDED_LINES) for name, head, body in files]


def _number(lines: Iterable[PatchLine]) -> Iterator[DiffLine]:
    old = new = None
    for kind, _, text in lines:
        if kind == "hunk":
            found = _HUNK.match(text)
            old, new = (int(found[1]), int(found[2])) if found else (None, None)
        on_old, on_new = kind in ("removed", "context"), kind in ("added", "context")
        yield DiffLine(_KINDS.get(kind, ""), text, old if on_old else None, new if on_new else None)
        old = old + 1 if old is not None and on_old else old
        new = new + 1 if new is not None and on_new else new
