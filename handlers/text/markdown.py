"""The parts of Markdown that several modules here need: blocks, headings, wrapped lines, and code. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from markdown_it import MarkdownIt
from markdown_it.token import Token

from runner.characters import normalise_newlines

LANGUAGES = (
    r"asm|bash|bat|c|c#|c\+\+|cc|cfg|cmake|cmd|conf|console|cpp|cs|css|csv|cu|cuda|cxx|cython|diff|docker"
    r"|dockerfile|doctest|fish|fortran|gdb|glsl|go|gradle|h|haskell|hip|hpp|html|http|ini|ipython|ipython3"
    r"|java|javascript|jinja|js|json|json5|jsonc|jsonl|jsx|julia|kotlin|latex|llvm|log|lua|make|makefile"
    r"|markdown|md|metal|mlir|nasm|ninja|nix|none|objc|ocaml|output|patch|perl|php|plain|plaintext"
    r"|powershell|proto|protobuf|ps1|ptx|py|py3|pycon|pyi|pytb|python|python3|pyx|r|rb|rs|rst|ruby|rust"
    r"|scala|sh|shell|sql|starlark|swift|tex|text|toml|traceback|triton|ts|tsx|txt|typescript|vim|wgsl|xml"
    r"|yaml|yml|zig|zsh"
)
"""A pattern for the names of languages that people write after the marks of a fence."""


def parse_blocks(text: str) -> list[Token]:
    """The blocks of a CommonMark text, in order. The text inside of blocks is not parsed.

    Takes linear time at most, also for strangers' texts.
    """
    return _parser().parse(text.removeprefix("\ufeff"))  # GitHub's parser removes it, too.


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark")
    parser.core.ruler.disable("inline")
    return parser


_HEADING_OR_FENCE = re.compile(r"^ {0,3}(?:#{1,6}[ \t]+(.*)|(`{3,}+|~{3,}+)(.*))$", re.MULTILINE)


def find_headings(text: str) -> list[str]:
    """The text of all headings that begin with `#`, in order. Comments in fenced code are not headings."""
    found: list[str] = []
    fence = ""
    for line in _HEADING_OR_FENCE.finditer(text):
        heading, marks, rest = line.groups(default="")
        if fence:
            fence = "" if marks.startswith(fence) and not rest.strip() else fence
        elif marks:
            fence = marks if marks[0] == "~" or "`" not in rest else ""
        elif words := heading.strip(" \t\r#"):
            found.append(words)
    return found


MIN_WRAPPED = 40
"""The fewest characters of a line that may have been wrapped. Authors end shorter lines on purpose."""

_ENDS = re.compile(r"(?:\\|  )$")
"""The end of a line with an explicit line break."""

_OWN_LINE = re.compile(r"\s*(?:\||\[\^)")
"""The start of a table row or a footnote. For this parser, tables and footnotes are paragraphs."""


def join_wrapped(text: str) -> str:
    """The text with each wrapped paragraph on one line.

    In Markdown, a line break within a paragraph is a space, but GitHub's comments show it.
    """
    lines = normalise_newlines(text).split("\n")
    for token in reversed(parse_blocks("\n".join(lines))):
        if token.type == "inline" and token.map and "\n" in token.content:
            start, end = token.map
            inner = token.content.split("\n")
            if len(inner) == end - start:  # Not so for a heading of several lines.
                lines[start:end] = _join(lines[start:end], inner)
    return "\n".join(lines)


def _join(lines: Sequence[str], inner: Sequence[str]) -> list[str]:
    """The lines of a paragraph, joined where they were wrapped.

    `inner` has the same lines without the marks of the lists and quotes around them.
    """
    joined = [lines[0]]
    for line, before, words in zip(lines[1:], inner, inner[1:], strict=False):
        if len(before) < MIN_WRAPPED or _ENDS.search(before) or _OWN_LINE.match(before) or _OWN_LINE.match(words):
            joined.append(line)
        else:
            joined[-1] = f"{joined[-1].rstrip()} {words.strip()}"
    return joined


LINE_START = r"^([ \t]*+(?:(?:[>*+-]|[0-9]{1,9}[.)])[ \t]*+)*+"
"""The start of a line, with the marks of quotes, lists and emphasis. The pattern does not close its group."""


# Code. Parsers disagree about where code is in a text, so these functions do not say where it is. They say what to
# rewrite as code, and the caller removes all other marks of code from the text.

_OPENER = re.compile(rf"{LINE_START})(`{{3,}}+(?=[^`]*$)|~{{3,}}+)(.*)")
_CLOSER = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+")
_MAX_QUOTES = 20
"""The most quote marks that are removed from a line of code."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: the first word after its opening marks, and its lines without quote marks and indentation."""

    info: str
    lines: Sequence[str]


def split_fences(text: str) -> Iterator[Fence | Sequence[str]]:
    """Split a text into fenced code and the lines between, as its author probably meant them.

    Whatever looks like the start of a fence is one, at any depth in lists and quotes. The fence ends at the first line
    that may close it, or at the end of the text. Lines after a fence are moved left, because they are no longer in a
    list. Blank lines next to a fence, and at both ends of the text, are left out.
    """
    lines = text.split("\n")
    prose: list[str] = []
    at, moves = 0, False
    while at < len(lines):
        opener = _OPENER.match(lines[at])
        at += 1
        if opener is None:
            prose.append(lines[at - 1])
            continue
        if any(map(str.isdigit, opener[1])):
            # Keep the number of a list item that begins with the fence.
            prose.append(opener[1].rstrip())
        yield from _trim(prose, moves=moves)
        prose, moves = [], True
        code, at = _read_fence(lines, at, opener)
        yield Fence("".join(opener[3].split()[:1]).lower(), code)
    yield from _trim(prose, moves=moves)


def _read_fence(lines: Sequence[str], start: int, opener: re.Match[str]) -> tuple[Sequence[str], int]:
    """The code of a fence, and the number of the line after the fence. `start` is the number of its first line."""
    quotes = re.compile(rf"(?:[ \t]*+>){{0,{min(opener[1].count('>'), _MAX_QUOTES)}}}+")
    width = _measure(opener[1].rpartition(">")[2])
    code: list[str] = []
    for at in range(start, len(lines)):
        line = quotes.sub("", lines[at], count=1)
        closer = _CLOSER.fullmatch(line)
        if closer and closer[2].startswith(opener[2]) and _measure(closer[1]) <= width + 3:
            return code, at + 1
        code.append(_dedent(line, width))
    return code, len(lines)


def _trim(lines: list[str], *, moves: bool) -> Iterator[Sequence[str]]:
    """Yield the lines without blank lines at both ends, unless all lines are blank.

    With `moves`, the lines are moved left so that the first one begins at the margin. This ends at a line with less
    indentation than the first one.
    """
    written = [place for place, line in enumerate(lines) if line.strip(" \t")]
    if not written:
        return
    lines = lines[written[0] : written[-1] + 1]
    if moves and (width := _measure_indent(lines[0])):
        count = next((at for at, line in enumerate(lines) if line.strip(" \t") and _measure_indent(line) < width), None)
        lines[:count] = [_dedent(line, width) for line in lines[:count]]
    yield lines


def _dedent(line: str, width: int) -> str:
    """The line without up to `width` columns of blanks at its start."""
    at = column = 0
    while column < width and line.startswith((" ", "\t"), at):
        column += 4 - column % 4 if line[at] == "\t" else 1
        at += 1
    return " " * (column - width) + line[at:]


def _measure_indent(line: str) -> int:
    return _measure(line[: len(line) - len(line.lstrip(" \t"))])


def _measure(text: str) -> int:
    return len(text.expandtabs(4))


_TICKS = re.compile(r"`+")
_ADDRESS = re.compile(r"(?:://|www\.|mailto:|xmpp:)[^ \t]*", re.IGNORECASE)
"""A bare address. Backticks up to the next space or tab may be part of it. Non-ASCII spaces do not end it."""

_OF_RULED_LINE = frozenset(" \t|:>*+-.)0123456789")
_DEFINITION = re.compile(r"[ \t>*+.)0-9-]*\[")

Span = tuple[int, int, str]
"""The start and the end of a code span in its line, and its code."""


def find_spans(lines: Sequence[str]) -> Iterator[tuple[str, Sequence[Span]]]:
    """Each line, with the spans in it that every parser sees as code if the line has no other backticks.

    Left out are spans over several lines, spans in an address, and spans that a table may cut or that the definition of
    a link may contain. The caller breaks up definitions, and links with more than an address.
    """
    for is_blank, paragraph in groupby(lines, key=lambda line: not line.strip(" \t")):
        block = list(paragraph)
        has_table = not is_blank and any("-" in line and _OF_RULED_LINE.issuperset(line) for line in block)
        has_definition = not is_blank and any(map(_DEFINITION.match, block))
        for line in block:
            pairs = _pair_ticks(line) if "`" in line else ()
            addresses = [found.span() for found in _ADDRESS.finditer(line)] if pairs else ()
            yield (
                line,
                [
                    (start, end, code)
                    for start, end, code in pairs
                    if code.strip(" \t")
                    and "``" not in code
                    and not (has_table and "|" in code)
                    and not (has_definition and "]:" in code)
                    and not line.endswith("\\", 0, start)
                    and not _is_within(addresses, start)
                ],
            )


def _is_within(ranges: Sequence[tuple[int, int]], place: int) -> bool:
    """Whether a place is in one of the ranges. The ranges are in order, and do not overlap."""
    at = bisect_right(ranges, place, key=lambda found: found[0])
    return at > 0 and place < ranges[at - 1][1]


def _pair_ticks(line: str) -> Sequence[Span]:
    """The code spans of a line. In CommonMark, the next run of the same number of backticks ends a span."""
    return [
        (opener.start(), closer.end(), line[opener.end() : closer.start()])
        for opener, closer in _pair_runs(line)
        if closer
    ]


def find_half_span(line: str) -> int:
    """The place of the first run of backticks without a closing run. The length of the line if there is none."""
    return next((opener.start() for opener, closer in _pair_runs(line) if closer is None), len(line))


def _pair_runs(line: str) -> Iterator[tuple[re.Match[str], re.Match[str] | None]]:
    """Each run of backticks that could open code, with the run that closes it, or None if no run closes it."""
    runs = list(_TICKS.finditer(line))
    closers: list[int | None] = [None] * len(runs)
    later: dict[int, int] = {}
    for place in reversed(range(len(runs))):
        length = len(runs[place][0])
        closers[place] = later.get(length)
        later[length] = place
    place = 0
    while place < len(runs):
        closer = closers[place]
        yield runs[place], None if closer is None else runs[closer]
        place = 1 + (place if closer is None else closer)
