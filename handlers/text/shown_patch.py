"""Converts a patch to the form in which people see it, in comments, on pages and in terminals. Pure.

People approve a diff as they saw it. So each line can be converted back to the original line
(`runner.characters.unescape_invisible`), unless it contains a secret. Lines with a secret are masked one by one, so
that no other line is hidden. They keep their diff marks, and `ShownPatch.remarks` mentions them. Nobody can approve a
diff if a masked line is added by the change or names a file.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from handlers.text.sanitize import KEY_SHAPES, REDACTED, Rule
from handlers.text.secret_forms import find_escaped, find_forms, find_spans
from runner.changes.patch import PatchLine, list_lines
from runner.characters import escape_invisible, show_path

MAX_KEPT = 4
"""How many shown patches are cached. A report needs its patch several times."""

LONG = 1_000_000
"""The most characters of a patch that is cached among `MAX_KEPT`. Only the last one of the longer patches is cached.

The shown form of a patch can be eight times as long as the patch.
"""

_KINDS = {"context": "unchanged", "hunk": "unchanged"}
"""What kinds of lines are called in a remark, if not by their kind. The header of a hunk quotes an unchanged line."""


@dataclass(frozen=True, slots=True)
class MaskedLine:
    """A line that is not shown, because it contains a possible secret."""

    number: int
    """The number of the line in the patch, from 0."""
    kind: str
    """One of the kinds of `runner.changes.patch.PatchLine`."""
    file: str

    @property
    def is_proposed(self) -> bool:
        """Whether the change adds the line, or the line names a file. The header of a hunk quotes an unchanged line."""
        return self.kind in ("added", "header")


@dataclass(frozen=True, slots=True)
class ShownPatch:
    """A patch in the form in which people see it."""

    text: str
    """The shown form. It has as many lines as the patch."""
    masked: Sequence[MaskedLine]
    returning: Sequence[str]
    """The files in which all lines end with a carriage return. In these files, it is not written out."""
    is_exact: bool
    """Whether the text is the unchanged patch, so that git can apply it."""

    def remarks(self) -> list[str]:
        """What readers have to know about the shown form, as clauses."""
        counts = Counter((line.file, _KINDS.get(line.kind, line.kind)) for line in self.masked)
        what = "with what looks like a secret, masked in the diff of"
        remarks = [
            f"{count} {kind} line{'s' * (count != 1)} {what} {show_path(file)}"
            for (file, kind), count in counts.items()
        ]
        remarks += [
            f"every line of {show_path(file)} ends with a carriage return (Windows line ends)"
            for file in self.returning
        ]
        if not self.is_exact:
            remarks.append("the diff cannot be applied as it is shown, for some of it is masked or written out")
        return remarks


def show_patch(patch: str, secrets: Collection[str], shapes: Sequence[Rule] = KEY_SHAPES) -> ShownPatch:
    """The patch as people may see it. The service shows patches to people only in this form."""
    return (_show if len(patch) <= LONG else _show_long)(patch, find_forms(frozenset(secrets)), tuple(shapes))


@lru_cache(1)
def _show_long(patch: str, secrets: Sequence[str], shapes: Sequence[Rule]) -> ShownPatch:
    return _show.__wrapped__(patch, secrets, shapes)


@lru_cache(MAX_KEPT)
def _show(patch: str, secrets: Sequence[str], shapes: Sequence[Rule]) -> ShownPatch:
    lines = [*list_lines(patch)]
    found = sorted(_find_masked(patch, lines, secrets, shapes))
    shown = _LAST_RETURN.sub(_RETURN, escape_invisible(patch)).split("\n")
    returning, numbers = _find_returns(lines)
    for number in numbers:
        shown[number] = re.sub(r"\r$", _RETURN, shown[number])
    for number in found:
        shown[number] = _mask(lines[number])
    text = "\n".join(shown)
    masked = [MaskedLine(number, lines[number].kind, lines[number].file) for number in found]
    return ShownPatch(text, masked, returning, text == patch)


_RETURN = "\u27e8U+000D\u27e9"
_LAST_RETURN = re.compile(r"\r(?=\n\\ No newline at end of file)")
"""A carriage return at the end of a file that has no final line feed.

Only in the patch does a line feed follow it.
"""


def _find_returns(lines: Sequence[PatchLine]) -> tuple[list[str], list[int]]:
    """The files in which all lines end with a carriage return, and the numbers of such lines in other files.

    Pages and comments drop a carriage return at the end of a line, but for a shell it is part of the line.
    """
    files: list[str] = []
    odd: list[int] = []
    ends: list[tuple[int, bool]] = []
    for number, line in enumerate([*lines, _AT_END]):
        if line.kind in ("added", "removed", "context"):
            ends.append((number, line.text.endswith("\r")))
            continue
        if line.text.endswith("\r"):
            odd.append(number)
        if line.text.startswith("diff --git ") and ends:
            returning = [at for at, returns in ends if returns]
            if len(returning) == len(ends):
                files.append(lines[ends[0][0]].file)
            else:
                odd += returning
            ends = []
    return files, odd


_AT_END = PatchLine("header", "", "diff --git ")

_HEAD = re.compile(r"(?:(?:diff --git|---|\+\+\+|rename from|rename to) |@@ [^@\n]* @@ ?)?")


def _mask(line: PatchLine) -> str:
    mark = _HEAD.match(line.text) if line.kind in ("header", "hunk") else None
    return f"{mark[0] if mark else line.text[:1]}{REDACTED}"


# Where the secrets are


def _find_masked(patch: str, lines: Sequence[PatchLine], secrets: Collection[str], shapes: Sequence[Rule]) -> set[int]:
    """The numbers of the lines with a secret. It may be on either side of the change, or include the diff marks."""
    masked = set(_find_lines(patch, range(len(lines)), find_spans(patch, secrets, ())))
    plain = [shape.pattern for shape in shapes if shape.pattern not in _KEY_BLOCKS]
    for numbers, texts in _read_sides(lines):
        text = "\n".join(texts)
        masked.update(_find_lines(text, numbers, find_spans(text, secrets, plain)))
        # Without `shapes`, because the source of a regular expression for credentials, without its backslashes, looks
        # like a credential.
        masked.update(_find_lines(text, numbers, find_escaped(text, secrets, ())))
        if shapes and "PRIVATE KEY" in text:
            masked.update(numbers[at] for at in _find_keys(texts))
    return masked - {_BETWEEN}


_BETWEEN = -1
"""Stands in for a line number before and after each header, so that no secret continues across a header."""


def _read_sides(lines: Sequence[PatchLine]) -> Sequence[tuple[list[int], list[str]]]:
    """The old and the new side of the change: the numbers of the lines, and their text.

    The text has no diff marks, and no carriage returns at the ends of lines. Headers of files and hunks are on both
    sides, separated from the lines around them.
    """
    old, new = (list[int](), list[str]()), (list[int](), list[str]())
    both = (old, new)
    sides = {"added": (new,), "removed": (old,), "context": both, "remark": ()}
    for number, (kind, _, text) in enumerate(lines):
        if kind in sides:
            content = text[1:].removesuffix("\r")
            for numbers, texts in sides[kind]:
                numbers.append(number)
                texts.append(content)
            continue
        for numbers, texts in both:
            numbers += [_BETWEEN, number, _BETWEEN]
            texts += ["\0", text, "\0"]
    return old, new


def _find_lines(text: str, numbers: Sequence[int], spans: Iterable[tuple[int, int]]) -> Iterator[int]:
    """The numbers of the lines that the spans touch."""
    starts: list[int] = []
    for start, end in spans:
        starts = starts or [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        first, last = bisect_right(starts, start), bisect_right(starts, end - 1)
        yield from numbers[first - 1 : last]


# Private keys. They have several lines, and the first and the last line contain no secret.

_KEY_BLOCKS = [shape.pattern for shape in KEY_SHAPES if "private keys" in shape.name]
_EDGE = re.compile(r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_AROUND = " \t\r\"'`,|>#*/+\\"
"""Characters that may be around the lines of a key in source code.

Parentheses are not among them, because a line with a call is not part of a key.
"""

_ROLES = (
    ("k", re.compile(r"[A-Za-z0-9+/=]{16,}")),
    ("s", re.compile(r"[A-Za-z0-9+/=]{1,15}")),
    ("h", re.compile(r"(?:(?:Proc-Type|DEK-Info|Comment|Version|Charset|Hash|MessageID): .{0,200})?")),
)
_LONG_RUN = re.compile(r"[A-Za-z0-9+/=]{40}")

_KEY = re.compile(r"B(?:h*+k)++(?:h*+s?+h*+E)?|(?<![kh])[kh]*+(?:(?<=[kh])s)?+h*+E")
"""The roles of a key's lines. A hunk may show the whole key, or only its beginning or its end."""

_AROUND_CODE = re.compile(r"B[^BE|]*+E")


def _find_keys(texts: Sequence[str]) -> Iterator[int]:
    """The places of the lines that belong to a private key.

    If there is only code between a first and a last line of a key, they do not count. Otherwise somebody could write
    these two lines around code to hide it.
    """
    roles = "".join(map(_find_role, texts))
    yield from (at for at, role in enumerate(roles) if role in "BEO" and any(find_spans(texts[at], (), _KEY_BLOCKS)))
    for found in _KEY.finditer(roles):
        yield from range(*found.span()) if "k" in found[0] else ()
    for found in _AROUND_CODE.finditer(roles):  # A key whose lines are inside code.
        inside = [at for at in range(*found.span()) if _LONG_RUN.search(texts[at])]
        yield from (found.start(), *inside, found.end() - 1) if inside else ()


def _find_role(text: str) -> str:
    """The role of a line in a private key, as a letter.

    `B`: the beginning. `E`: the end. `O`: beginning and end in one line. `k`: a line of the key. `s`: a short line of
    it. `h`: a header, or an empty line. `x`: not part of a key. `|`: the border of a header.
    """
    if text == "\0":
        return "|"
    if edges := {edge[1] for edge in _EDGE.finditer(text)}:
        return "O" if len(edges) > 1 else min(edges)[0]
    bare = text.replace("\\n", "").replace("\\r", "").strip(_AROUND)
    return next((role for role, pattern in _ROLES if pattern.fullmatch(bare)), "x")
