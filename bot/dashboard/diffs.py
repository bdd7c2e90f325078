"""Diffs as pages show them: folded by file, each line with what it is, and colours for its code. Pure.

They are shown already (`handlers.shown_patch`), and what is drawn here has every line of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from markupsafe import Markup

from bot.dashboard.syntax import Language, find_language, paint
from runner.patch import Line, list_lines

COLOURED_DIFF, COLOURED_LINES = 200_000, 10_000
"""Characters and lines beyond which a diff is shown without colours: each line would cost an element."""

UNFOLDED_LINES = 400
"""Lines of a diff up to which all of its files are shown unfolded."""

_NO_CODE = Markup()
_KINDS = {"added": "plus", "removed": "minus", "hunk": "hunk"}

Lines = Sequence[tuple[str, str]]
"""Each with what it is: `plus`, `minus`, `hunk`, or nothing. What is HTML already says so (`Markup`)."""


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
    return [_colour_file(file) for file in fold_diff(list_lines(text))]


def fold_diff(lines: Iterable[Line]) -> list[FileDiff]:
    """The files of a diff, in its order."""
    files: list[tuple[str, list[tuple[str, str]]]] = []
    count = 0
    for kind, name, line in lines:
        if not files or (kind == "header" and line.startswith("diff --git ")):
            files.append((name, []))
        files[-1][1].append((_KINDS.get(kind, ""), f"{line}\n"))
        count += 1
    return [FileDiff(name, found, count <= UNFOLDED_LINES) for name, found in files]


def _colour_file(file: FileDiff) -> FileDiff:
    language = find_language(file.name)
    hunks = [place for place, (kind, _) in enumerate(file.lines) if kind == "hunk"]
    if language is None or not hunks:
        return file
    lines = [*file.lines[: hunks[0]]]
    for start, end in pairwise([*hunks, len(file.lines)]):
        lines += [file.lines[start], *_colour_hunk(file.lines[start + 1 : end], language)]
    return replace(file, lines=lines)


def _colour_hunk(lines: Lines, language: Language) -> Iterator[tuple[str, str]]:
    """The old and the new code are each read by themselves: what goes over several lines is whole on one side alone."""
    old, new = (iter(_paint_side(lines, other, language)) for other in ("plus", "minus"))
    for kind, line in lines:
        if _is_remark(line):
            yield kind, line
            continue
        before = next(old) if kind != "plus" else _NO_CODE
        after = next(new) if kind != "minus" else _NO_CODE
        yield kind, Markup("{}{}\n").format(_find_mark(line), before if kind == "minus" else after)


def _paint_side(lines: Lines, other: str, language: Language) -> list[Markup]:
    code = (line[len(_find_mark(line)) :] for kind, line in lines if kind != other and not _is_remark(line))
    return paint("".join(code), language)


def _find_mark(line: str) -> str:
    """What stands before the code. Some programs leave out the space of an empty line."""
    return line[:1].removesuffix("\n")


def _is_remark(line: str) -> bool:
    """Whether this is git's own word, such as on a missing line end."""
    return line.startswith("\\")
