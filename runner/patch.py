"""Whether a patch says all of a change: what people read must be what is proposed, byte for byte. Pure.

The patch and the changes come from the same machine, and an agent may have written either. So the patch is applied:
on what the base commit really holds it must give the changed files, and it must name no others. A patch is text as
`decode_exactly` gives it, and lines end at line feeds alone: texts are equal only where their bytes are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from runner.characters import decode_exactly
from runner.job import FileChange

LINK, SUBMODULE = "120000", "160000"
ADDED, DELETED, MODIFIED, RENAMED = "added", "deleted", "modified", "renamed"

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file"
_HARMLESS = re.compile(r"index [0-9a-f]+\.\.[0-9a-f]+( [0-7]{6})?|(dis)?similarity index \d+%")
_BINARY = "GIT binary patch"
_BINARY_LINE = re.compile(r"(?:(?:literal|delta) \d+|[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]+)?")
"""As git writes a binary content (its `diff.c`, `emit_binary_diff_body`): nothing that reads as words."""


class Untrue(Exception):  # noqa: N818 - what it is
    """The patch and the changes do not say the same; the message is a clause that names the path."""


@dataclass(frozen=True, slots=True)
class Section:
    """What a patch says of one file."""

    header: Sequence[str]
    hunks: Sequence[str]

    @property
    def kind(self) -> str:
        """Added, deleted, renamed or modified."""
        words = {"new file mode": ADDED, "deleted file mode": DELETED, "rename from": RENAMED}
        return next((kind for line in self.header for word, kind in words.items() if line.startswith(word)), MODIFIED)

    @property
    def renamed_from(self) -> str | None:
        """The old path, where it is another one."""
        return next((_unquote(line[12:]) for line in self.header if line.startswith("rename from ")), None)

    @property
    def binary(self) -> bool:
        """Whether the content is not shown."""
        return any(line == _BINARY or line.startswith("Binary files ") for line in self.header)


class Line(NamedTuple):
    """A line of a patch, what it is, and the file that it belongs to (empty before the first one)."""

    kind: Literal["header", "hunk", "added", "removed", "context", "remark"]
    """`remark` is git's own word on a missing line end. What means nothing is taken for a header."""
    file: str
    text: str


def list_lines(patch: str) -> Iterator[Line]:
    """Every line of any text, read as a patch."""
    file, in_hunk = "", False
    for text in patch.removesuffix("\n").split("\n") if patch else ():
        if in_hunk and (kind := _KINDS.get(text[:1])):
            yield Line(kind, file, text)
        elif text.startswith("@@ "):
            in_hunk = True
            yield Line("hunk", file, text)
        elif in_hunk and text == _NO_NEWLINE:
            yield Line("remark", file, text)
        else:
            if text.startswith("diff --git "):
                file, in_hunk = _name_file(text), False
            yield Line("header", file, text)


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
    return ["\n".join(line[1:] for line in section.hunks if line[:1] == "+") for section in _split(patch)]


def list_bare_returns(patch: str) -> list[str]:
    """The files to which a patch adds a carriage return that no line feed follows.

    Python and JavaScript end a line there, and readers of the diff would see the rest without its `+`. May raise
    `Untrue` for what is no patch.
    """
    if "\r" not in patch:  # Most often: the lines need not be read one by one.
        return []
    lines = [
        (section, mark, text)
        for section in _split(patch)
        for _, _, lines in _read_hunks(section)
        for mark, text in lines
    ]
    names = [
        _name_file(section.header[0]) for section, mark, text in lines if mark == "+" and _BARE_RETURN.search(text)
    ]
    return list(dict.fromkeys(names))


_BARE_RETURN = re.compile(r"\r(?!\n)")


def list_added_lines(patch: str, changes: Sequence[FileChange]) -> dict[str, set[int]]:
    """The numbers, from 1, of the lines that each changed file has new. Raises `Untrue` for what is no such patch."""
    by_path, added = {change.path: change for change in changes}, dict[str, set[int]]()
    for section in _split(patch):
        numbers = added.setdefault(_identify(section, by_path)[0].path, set())
        for start, grown, lines in _read_hunks(section):
            kept = [mark for mark, _ in lines if mark != "-"]
            numbers.update(start + grown + at for at, mark in enumerate(kept, 1) if mark == "+")
    return added


def list_bases(patch: str, changes: Sequence[FileChange]) -> list[str]:
    """The paths of the base commit on whose content the meaning of the patch depends. Raises `Untrue`."""
    renamed = {section.renamed_from for section in _split(patch)}
    kept = {change.path for change in changes if change.old_mode not in (None, LINK, SUBMODULE)}
    return sorted(kept | {path for path in renamed if path})


def check_patch(patch: str, changes: Sequence[FileChange], base: Mapping[str, bytes] | None = None) -> None:
    """Raise `Untrue` unless the patch shows exactly these changes.

    `base` holds the files of `list_bases`, from where no agent can write. Without it the patch is only compared with
    what it leads to, and a line that it does not show could be anything.
    """
    by_path = {change.path: change for change in changes}
    waiting = {key for change in changes for key in _expect(change)}
    for section in _split(patch):
        change, old_path = _identify(section, by_path)
        covered = {(ADDED, change.path), (DELETED, old_path)} if section.kind == RENAMED else {(section.kind, old_path)}
        if not covered <= waiting:
            raise Untrue(f"`{change.path}` is shown as {section.kind}, and is not")
        waiting -= covered
        _check_header(section, change, old_path, by_path)
        _check_content(section, change, old_path, base)
    if waiting:
        kind, path = min(waiting)
        raise Untrue(f"`{path}` is {kind}, and the diff does not show it")


def _expect(change: FileChange) -> Iterator[tuple[str, str]]:
    """What a patch must say of a change. A file that becomes a link, or the reverse, goes and comes."""
    if change.mode and change.old_mode and (change.mode == LINK) == (change.old_mode == LINK):
        yield MODIFIED, change.path
        return
    if change.old_mode:
        yield DELETED, change.path
    if change.mode:
        yield ADDED, change.path


def _split(patch: str) -> Iterator[Section]:
    """The patch, file by file: no line of a hunk begins as a header does."""
    lines = patch.removesuffix("\n").split("\n") if patch else []
    starts = [number for number, line in enumerate(lines) if line.startswith("diff --git ")]
    if lines and starts[:1] != [0]:
        raise Untrue("the diff does not begin with a file")
    for start, end in pairwise([*starts, len(lines)]):
        part = lines[start:end]
        body = next((at for at, line in enumerate(part) if line.startswith("@@ ") or line == _BINARY), len(part))
        if part[body : body + 1] == [_BINARY]:
            if not all(map(_BINARY_LINE.fullmatch, part[body + 1 :])):
                raise Untrue("the diff has a line that means nothing")
            yield Section(part[: body + 1], [])
        else:
            yield Section(part[:body], part[body:])


def _identify(section: Section, by_path: Mapping[str, FileChange]) -> tuple[FileChange, str]:
    """The change that a section speaks of, and the path before it."""
    for change in by_path.values():
        old_path = section.renamed_from or change.path
        if section.header[0] == f"diff --git {_quote(f'a/{old_path}')} {_quote(f'b/{change.path}')}":
            return change, old_path
    raise Untrue(f"the diff shows {section.header[0][11:200]}, which is not changed")


def _check_header(section: Section, change: FileChange, old_path: str, by_path: Mapping[str, FileChange]) -> None:
    """Nothing in a header may say what is not so, and a new mode must be in it."""
    old_mode = by_path[old_path].old_mode
    names = [("---", f"a/{old_path}"), ("+++", f"b/{change.path}")]
    true = {f"{mark} {_quote(name)}{tab}" for mark, name in names for tab in ("", "\t")}
    true |= {"--- /dev/null", "+++ /dev/null"}
    true |= {f"rename from {_quote(old_path)}", f"rename to {_quote(change.path)}", _BINARY}
    true |= {f"new file mode {change.mode}", f"deleted file mode {old_mode}"}
    true |= {f"old mode {old_mode}", f"new mode {change.mode}"}
    sides = [[_quote(name), "/dev/null"] for _, name in names]
    true |= {f"Binary files {old} and {new} differ" for old in sides[0] for new in sides[1]}
    for line in section.header[1:]:
        if line not in true and not _HARMLESS.fullmatch(line):
            raise Untrue(f"the diff of `{change.path}` says something that is not so: {line[:200]}")
    told = f"new mode {change.mode}" in section.header
    if section.kind in (MODIFIED, RENAMED) and change.mode != old_mode and not told:
        raise Untrue(f"`{change.path}` gets another mode, and the diff does not say so")


def _check_content(section: Section, change: FileChange, old_path: str, base: Mapping[str, bytes] | None) -> None:
    name, new, before = f"`{change.path}`", decode_exactly(change.content or b""), None
    is_link = LINK in ((change.old_mode,) if section.kind == DELETED else (change.mode, change.old_mode))
    if base is not None and section.kind != ADDED and not is_link:
        if old_path not in base:
            raise Untrue(f"{name} is not in the base commit")
        before = decode_exactly(base[old_path])
    if section.binary:
        _check_binary(name, section, change, before)
    elif not _shows(section, name, before, new, is_whole=section.kind == ADDED or is_link):
        raise Untrue(f"{name} {'held' if section.kind == DELETED else 'holds'} something else than the diff shows")


def _shows(section: Section, name: str, before: str | None, new: str, *, is_whole: bool) -> bool:
    """Whether the hunks are what has become of a file; `is_whole` says that they show all that it holds."""
    hunks = [*_read_hunks(section)]
    marks = {mark for _, _, lines in hunks for mark, _ in lines}
    sides = ["".join(text for _, _, lines in hunks for mark, text in lines if mark != other) for other in "+-"]
    if section.kind == DELETED:
        return marks <= {"-"} and before in (None, sides[0])
    if is_whole:
        return (marks <= {"+"} or section.kind != ADDED) and sides[1] == new
    return _fits_shown(hunks, new) if before is None else _apply(name, hunks, before) == new


def _check_binary(name: str, section: Section, change: FileChange, before: str | None) -> None:
    """Only what is no text may be shown as none."""
    if section.kind != DELETED and not change.binary:
        raise Untrue(f"{name} is text, and the diff does not show it")
    if section.kind == DELETED and before is not None and decode_exactly(b"\0") not in before:
        raise Untrue(f"{name} was text, and the diff does not show it")


# Hunks


Hunk = tuple[int, int, list[tuple[str, str]]]
"""Where it starts on the old side, counted from 0; by how much the file has grown before it; and its lines as mark and
text, newline included."""


_MARKS = frozenset(" +-")


def _read_hunks(section: Section) -> Iterator[Hunk]:
    hunks: list[tuple[re.Match[str], list[tuple[str, str]]]] = []
    for line in section.hunks:
        if line[:1] in _MARKS and hunks:
            hunks[-1][1].append((line[0], f"{line[1:]}\n"))
        elif found := _HUNK.match(line):
            hunks.append((found, []))
        elif not hunks:
            raise Untrue("the diff has a line that means nothing")
        elif line == _NO_NEWLINE and hunks[-1][1]:
            mark, text = hunks[-1][1][-1]
            hunks[-1][1][-1] = (mark, text.removesuffix("\n"))
        else:
            raise Untrue("the diff has a line that means nothing")
    grown = 0
    for found, lines in hunks:
        marks = [mark for mark, _ in lines]
        sizes = [len(marks) - marks.count(other) for other in "+-"]
        start, begins = (int(found[at]) - (size > 0) for at, size in zip((1, 3), sizes, strict=True))
        if sizes != [int(found[at] or 1) for at in (2, 4)] or begins != start + grown:
            raise Untrue(f"the diff has a hunk that its head does not describe: {found[0]}")
        yield start, grown, lines
        grown += sizes[1] - sizes[0]


def _apply(name: str, hunks: Sequence[Hunk], before: str) -> str:
    """What the patch makes of a file."""
    old, at, new = _lines(before), 0, list[str]()
    for start, _, lines in hunks:
        shown = [text for mark, text in lines if mark != "+"]
        if start < at or old[start : start + len(shown)] != shown:
            raise Untrue(f"the diff of {name} does not fit the base commit")
        new += old[at:start]
        new += [text for mark, text in lines if mark != "-"]
        at = start + len(shown)
    return "".join([*new, *old[at:]])


def _fits_shown(hunks: Sequence[Hunk], new: str) -> bool:
    """Without the base: whether what each hunk shows stands where it says."""
    lines = _lines(new)
    sides = [(start + grown, [text for mark, text in shown if mark != "-"]) for start, grown, shown in hunks]
    return all(lines[at : at + len(side)] == side for at, side in sides)


def _lines(text: str) -> list[str]:
    """As git splits: at line feeds alone."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


# Names, as git quotes them with `core.quotePath` off (git-config(1))

_ESCAPES = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
_UNESCAPES = {short: char for char, short in _ESCAPES.items()}


def _quote(path: str) -> str:
    if not re.search(r'[\x00-\x1f\x7f"\\]', path):
        return path
    return f'"{"".join(map(_escape, path))}"'


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return f"\\{_ESCAPES[char]}"
    return f"\\{ord(char):03o}" if char < " " or char == "\x7f" else char


def _unquote(name: str) -> str:
    def unescape(found: re.Match[str]) -> str:
        return _UNESCAPES.get(found[1]) or chr(int(found[1], 8) if len(found[1]) == 3 else ord(found[1]))

    return re.sub(r"\\([0-7]{3}|.)", unescape, name[1:-1], flags=re.DOTALL) if name.startswith('"') else name
