"""A patch as people are shown it, wherever that is: line for line, so that nothing hides behind a secret. Pure.

Who approves a diff approves what they saw. Every line of the patch can be read back from what is shown
(`runner.characters.unescape_invisible`), except the lines that hold a secret: those are masked one by one, keep their
diff mark, and are named. A masked line that the change adds, or that names a file, may not be approved by anybody.
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
"""Patches that are kept as they are shown: a report asks several times for the same one."""

LONG = 1_000_000
"""Characters of a patch of which only the last one is kept. What is shown can be eight times as long."""

_KINDS = {"context": "unchanged", "hunk": "unchanged"}
"""What lines are called, where not by their kind: a hunk's head quotes a line that stays."""


@dataclass(frozen=True, slots=True)
class MaskedLine:
    """A line that is not shown, for it holds what looks like a secret."""

    number: int
    """Which line of the patch it is, from 0."""
    kind: str
    """What it is, as `runner.changes.patch.PatchLine` says it."""
    file: str

    @property
    def is_proposed(self) -> bool:
        """Whether the change puts it into the repository. A hunk's head quotes what is there already."""
        return self.kind in ("added", "header")


@dataclass(frozen=True, slots=True)
class ShownPatch:
    """What people are shown of a patch."""

    text: str
    """With as many lines as the patch."""
    masked: Sequence[MaskedLine]
    returning: Sequence[str]
    """The files whose lines all end with a carriage return, which is not written out there."""
    is_exact: bool
    """Whether it is the patch itself, so that git can apply it."""

    def remarks(self) -> list[str]:
        """What its reader has to know, a sentence each."""
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
    """The patch as people may see it. The only way in which one leaves the service."""
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
"""In the file itself no line feed follows this one."""


def _find_returns(lines: Sequence[PatchLine]) -> tuple[list[str], list[int]]:
    """The files whose every line ends with a carriage return, and the numbers of the lines that do so in others.

    Pages and comments drop a carriage return at the end of a line, and to a shell it is a part of the line.
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
    """The numbers of the lines that hold a secret, on either side of the change or across its marks."""
    masked = set(_find_lines(patch, range(len(lines)), find_spans(patch, secrets, ())))
    plain = [shape.pattern for shape in shapes if shape.pattern not in _KEY_BLOCKS]
    for numbers, texts in _read_sides(lines):
        text = "\n".join(texts)
        masked.update(_find_lines(text, numbers, find_spans(text, secrets, plain)))
        # Without shapes: a regular expression for credentials looks like a credential without its backslashes.
        masked.update(_find_lines(text, numbers, find_escaped(text, secrets, ())))
        if shapes and "PRIVATE KEY" in text:
            masked.update(numbers[at] for at in _find_keys(texts))
    return masked - {_BETWEEN}


_BETWEEN = -1
"""In place of a line's number, between two hunks: nothing goes on across it."""


def _read_sides(lines: Sequence[PatchLine]) -> Sequence[tuple[list[int], list[str]]]:
    """Which lines make up the old side and the new one, and their contents without diff marks and carriage returns.

    Each header is in both, by itself.
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


# Private keys: several lines, of which the first and the last say nothing

_KEY_BLOCKS = [shape.pattern for shape in KEY_SHAPES if "private keys" in shape.name]
_EDGE = re.compile(r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_AROUND = " \t\r\"'`,|>#*/+\\"
"""What stands around the lines of a key in source code. No parentheses: a call is no key."""

_ROLES = (
    ("k", re.compile(r"[A-Za-z0-9+/=]{16,}")),
    ("s", re.compile(r"[A-Za-z0-9+/=]{1,15}")),
    ("h", re.compile(r"(?:(?:Proc-Type|DEK-Info|Comment|Version|Charset|Hash|MessageID): .{0,200})?")),
)
_LONG_RUN = re.compile(r"[A-Za-z0-9+/=]{40}")

_KEY = re.compile(r"B(?:h*+k)++(?:h*+s?+h*+E)?|(?<![kh])[kh]*+(?:(?<=[kh])s)?+h*+E")
"""A key that is whole, or cut by the end of a hunk on either side, as the roles of its lines."""

_AROUND_CODE = re.compile(r"B[^BE|]*+E")


def _find_keys(texts: Sequence[str]) -> Iterator[int]:
    """Which of these lines belong to a private key.

    Around nothing but code the first and the last line are no key: else their writer could hide that code.
    """
    roles = "".join(map(_find_role, texts))
    yield from (at for at, role in enumerate(roles) if role in "BEO" and any(find_spans(texts[at], (), _KEY_BLOCKS)))
    for found in _KEY.finditer(roles):
        yield from range(*found.span()) if "k" in found[0] else ()
    for found in _AROUND_CODE.finditer(roles):  # A key whose lines stand in code.
        inside = [at for at in range(*found.span()) if _LONG_RUN.search(texts[at])]
        yield from (found.start(), *inside, found.end() - 1) if inside else ()


def _find_role(text: str) -> str:
    """What a line is in a key: `B`eginning, `E`nd or both in `O`ne; `k`ey, a `s`hort line of it, a `h`eader or nothing.
    `x` is none of it, and `|` stands between hunks.
    """
    if text == "\0":
        return "|"
    if edges := {edge[1] for edge in _EDGE.finditer(text)}:
        return "O" if len(edges) > 1 else min(edges)[0]
    bare = text.replace("\\n", "").replace("\\r", "").strip(_AROUND)
    return next((role for role, pattern in _ROLES if pattern.fullmatch(bare)), "x")
