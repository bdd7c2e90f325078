"""Removes or marks the parts of a stranger's text that a reader of the rendered page does not see. Pure.

Text that a maintainer could not see must not steer an agent. Only inside a fence that GitHub certainly shows as code is
a text left as it is. Everywhere else, all rules apply, and a line gets a mark if it is uncertain what the page shows of
it. Takes linear time. This module does not know who wrote a text, or where it goes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from enum import IntEnum
from html import unescape
from typing import NamedTuple

from handlers.text.distance import PREFIX, Distance
from handlers.text.hidden_parts import (
    ADDRESS,
    BEYOND,
    DRAWN,
    DRAWN_LANGUAGE,
    FAR,
    FOLDED,
    FOOTNOTE,
    LANGUAGE,
    RAW_TEXT,
    STEPS,
    TAG,
    UNSEEN,
    Editor,
    Trust,
)
from runner.characters import MAX_LINE, find_far, normalise_newlines, show_invisible

__all__ = ["BEYOND", "DRAWN", "FAR", "FOLDED", "FOOTNOTE", "STEPS", "UNSEEN", "count_certain_lines", "reveal"]

_CONTAINERS = re.compile(PREFIX)
_LABEL = r"\[(?!\^[^\] \t\n\0]++\]:)(?:[^\[\]\\]|\\.)*+"
_DEFINITION = re.compile(rf"^{PREFIX}{_LABEL}\]:", re.MULTILINE | re.DOTALL)
_MAYBE_DEFINITION = re.compile(rf"{_LABEL}\\?(?:\]:|$)")
_NO_DEFINITION = re.compile(
    r"\[[^\[\]\\]+\]:[ \t]*[^\s<]\S*[ \t]+(?:[^\s\"'(]|\"[^\"\\]*\"[ \t]*\S|'[^'\\]*'[ \t]*\S|\([^()\\]*\)[ \t]*\S)"
)
"""A line that looks like a definition of a link, but has more than an address and a title after the colon.

For example `[rank0]: Traceback (most recent call last):`.
"""

_FOOTNOTE = re.compile(r"\[\^[^\] \t\n\0]++(\]:)?")
"""Also matches texts that are not footnotes. If the search began again after each `[^` in such a text, it would take
quadratic time."""

_FENCE = re.compile(r"(`{3,}(?=[^`]*$)|~{3,})[ \t]*(\S{0,20})")
MAX_MARKS = 250
"""The most marks of a fence whose end is certain. GitHub's parser counts at most 255 marks of a fence."""

_BLANKS = r"[ \t\v\f]*+"
_DELIMITERS = re.compile(rf"[ \t\v\f>]*+\|?+{_BLANKS}:?-++:?{_BLANKS}(?:\|{_BLANKS}:?-++:?{_BLANKS})*+\|?{_BLANKS}")
_ENTITY = re.compile(r"&[^&;\s]{1,32};")
_HEADING = re.compile(r"#{1,6}(?:[ \t]|$)")
_RULER = re.compile(r"([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_MARKER = re.compile(r"([-+*]|\d{1,9}[.)])( *)(\t|[^ ]|$)")
_PLAIN = re.compile(r"[^\W\d_]|[\[\"'(]")
"""The beginning of a line that certainly continues a paragraph."""

_FORMULA_BEGINS = re.compile(r"\$(?=\S)")
_FORMULA_ENDS = re.compile(r"(?<=\S)\$(?!\w)")
"""GitHub shows the text between these two patterns in a paragraph as a formula. `$HOME and $PATH` is not a formula."""

_FORMULA = re.compile(r"\$[^$\n]*\$(?![\w({])")
"""A formula on one line, with or without spaces next to its dollars."""

_HTML = re.compile(r"<[A-Za-z/!?]")
_HTML_BLOCK = re.compile(
    r"</?(?:address|article|aside|base|basefont|blockquote|body|caption|center|col|colgroup|dd|details|dialog|dir|div|dl"
    r"|dt|fieldset|figcaption|figure|footer|form|h[1-6]|head|header|hr|html|li|link|main|menu|nav|ol|p|section|summary"
    r"|table|tbody|td|tfoot|th|thead|tr|ul)(?:[ \t>]|/>|$)",
    re.IGNORECASE,
)
_PRE = re.compile(r"<pre(?:[ \t>]|$)", re.IGNORECASE)
_PRE_ENDS = re.compile(r"</(?:pre|script|style|textarea)>", re.IGNORECASE)

_OTHER_BLANKS = re.compile(r"[^\S \t\n]")

UNSURE = -1
"""The indentation of a list if it is uncertain where the list ends."""


class Html(IntEnum):
    """Whether a line is raw HTML, and how far this goes on."""

    NO = 0
    MAYBE = 1
    """Perhaps, up to the next blank line."""
    YES = 2
    """Up to the next blank line."""
    PRE = 3
    """Up to the end tag of `<pre>`, also over blank lines."""
    LOST = 4
    """Raw HTML, a comment or a fence is open, and it is uncertain where it ends. So it counts as open up to the end of
    the text."""


def reveal(text: str, steps: Collection[str] = STEPS, whole: str = "") -> str:
    """The text as a reader of the page sees it, with every invisible character written out.

    Comments, the alt text of images, titles of links, attributes and info strings are removed. Folded parts, footnotes,
    drawings and unknown tags are marked. Lines with definitions, and lines that the page may not show, are marked at
    their beginning. Text in code is visible, so it stays.

    If `text` is the beginning of a longer text, `whole` is the longer text. A definition or a footnote at its end
    changes what the page shows of its beginning.
    """
    shown = "\n".join(_Page(text, steps, whole or text).show())
    return show_invisible(shown) if "invisible characters" in steps else shown


def count_certain_lines(text: str) -> int:
    """The number of lines before the page may hide all of the following text, for example because of `<template>`."""
    page = _Page(text, STEPS, text)
    return next((line.number for line in page.show_lines() if page.is_lost), len(page.lines))


class _Line(NamedTuple):
    """A line as the page shows it."""

    number: int
    """The number of the original line, from 0."""
    shown: str
    original: str = ""
    """The original line. Empty in fences and comments."""
    is_code: bool = False
    """Whether it certainly is code."""


class _Page:
    """Goes through the lines of a text.

    A line that begins at column 0 is not in a list, quote or footnote, unless it continues a paragraph in one. So marks
    of a fence at column 0 certainly open a fence, except in raw HTML.
    """

    def __init__(self, text: str, steps: Collection[str], whole: str) -> None:
        # GitHub's parser drops one byte order mark at the beginning, so the text after it begins at column 0.
        text, whole = (normalise_newlines(one.removeprefix("\ufeff")) for one in (text, whole))
        self.lines = text.split("\n")
        self._steps = steps
        self._defines = "definitions" in steps and _DEFINITION.search(whole) is not None
        self._has_footnotes = "footnotes" in steps and any(found[1] for found in _FOOTNOTE.finditer(whole))
        self._editor = Editor(steps, defines=self._defines, has_footnotes=self._has_footnotes)
        self._formulas = _find_formulas(self.lines) if "formulas" in steps else frozenset()
        self._html = Html.NO
        self._begin()

    @property
    def is_lost(self) -> bool:
        """Whether the page may hide the line that was shown last, and all following lines."""
        return self._html is Html.LOST

    def _begin(self) -> None:
        """Begin at the top level, in no list and no footnote."""
        self._list: int | None = None
        self._in_footnote = False
        self._end_paragraph()

    def _end_paragraph(self) -> None:
        """Begin a paragraph, after a blank line or a block."""
        if self._html < Html.PRE:
            self._html = Html.NO
        self._trust = Trust.CERTAIN
        self._columns: int | None = None
        """How many columns the table has, if the paragraph is one."""
        self._after_blank = True
        self._fresh = True
        """Whether a paragraph begins on the next line: after a blank line, a block or a heading."""
        self._in_paragraph = False
        """Whether the last line certainly is in a paragraph."""
        self._editor.begin_block()

    def show(self) -> Iterator[str]:
        """The remaining lines, with marks."""
        distance = Distance()
        for line in self.show_lines():
            is_far = distance.is_far(line.shown, line.original, is_code=line.is_code)
            yield FAR + line.shown if is_far and "far text" in self._steps else line.shown

    def show_lines(self) -> Iterator[_Line]:
        """The remaining lines, without marks for lines that are far away."""
        at = 0
        while at < len(self.lines):
            line = self.lines[at]
            if not line.strip(" \t"):
                self._end_paragraph()
                yield _Line(at, line, line)
                at += 1
                continue
            end = self._find_block_end(at)
            if end > at:
                yield from self._show_block(at, end)
                self._begin()
                at = end
                continue
            yield _Line(at, self._show_line(at), line)
            self._after_blank = False
            at += 1

    def _find_block_end(self, at: int) -> int:
        """The end of the fence or comment that begins on this line: the number of the line after it.

        Returns `at` if none begins here, or if it is uncertain where it ends.
        """
        if self._html >= Html.YES:
            return at
        line = self.lines[at]
        indent = _measure(line)
        rest = line[indent:]
        fence, comment = _FENCE.match(rest), rest.startswith("<!--")
        in_list = self._list is not None and 0 < self._list <= indent
        if indent > 3 or in_list or not (fence or comment):
            return at
        is_too_long = fence is not None and len(fence[1]) > MAX_MARKS
        if is_too_long or self._html is Html.MAYBE or (indent and self._list == UNSURE):
            self._html = Html.LOST
            return at
        if fence:
            return self._find_fence_end(at, fence[1])
        return self._find_comment_end(at, indent)

    def _find_fence_end(self, at: int, opener: str) -> int:
        closer = re.compile(rf" {{0,3}}{re.escape(opener)}{re.escape(opener[0])}*[ \t]*")
        for number in range(at + 1, len(self.lines)):
            if closer.fullmatch(self.lines[number]):
                return number + 1
        return len(self.lines)

    def _find_comment_end(self, at: int, indent: int) -> int:
        if "comments" not in self._steps:
            return at
        if self.lines[at].startswith(("<!-->", "<!--->"), indent):
            # Browsers end the comment here, but older parsers do not.
            self._html = Html.LOST
            return at
        for number in range(at, len(self.lines)):
            line = self.lines[number]
            end = line.find("-->", indent + 2 if number == at else 0)
            early = line.find("--!>", 0, end if end >= 0 else len(line))
            if early >= 0:
                self._html = Html.LOST
                return at
            if end >= 0:
                return number + 1
        return len(self.lines)

    def _show_block(self, at: int, end: int) -> Iterator[_Line]:
        first = self.lines[at]
        if fence := _FENCE.match(first, _measure(first)):
            yield _Line(at, self._show_info(first, fence), is_code=True)
            for number in range(at + 1, end):
                yield _Line(number, self._mark_far(self.lines[number], is_code=True), is_code=True)
            return
        last = self.lines[end - 1]
        closed = last.find("-->", len(first) - len(first.lstrip(" ")) + 2 if end - 1 == at else 0)
        if closed < 0:
            return
        # On the last line of a comment, the text after the comment is raw HTML.
        shown, trust = self._editor.edit(last[closed + 3 :], certain=False, html=True)
        if trust is Trust.LOST:
            self._html = Html.LOST
        shown = DRAWN * (end - 1 in self._formulas) + shown
        yield _Line(end - 1, UNSEEN + shown if trust >= Trust.MARKED else shown)

    def _show_info(self, line: str, fence: re.Match[str]) -> str:
        """A line that opens a fence, with only the language of its info string."""
        if "info strings" not in self._steps:
            return line + self._name_drawing(fence)
        language = LANGUAGE.match(fence[2])
        shown = line[: fence.start(2)] + language[0] if language else line[: fence.end(1)]
        return shown + self._name_drawing(fence)

    def _name_drawing(self, fence: re.Match[str]) -> str:
        language = _ENTITY.sub(lambda entity: unescape(entity[0]), fence[2])
        return f" {DRAWN}" if "drawings" in self._steps and DRAWN_LANGUAGE.match(language) else ""

    def _show_line(self, at: int) -> str:
        line = self.lines[at]
        prefix = (_CONTAINERS.match(line) or [""])[0]
        if prefix.strip(" \t"):
            self._editor.begin_block()
        self._look_for_html(line, prefix)
        self._look_for_definition(line, prefix)
        self._follow_list(line)
        footnote = self._in_footnote = self._in_footnote and not (self._after_blank and line[0] not in " \t")
        if self._has_footnotes and "[^" in prefix:
            self._in_footnote = True
        self._count_columns(at)
        shown = DRAWN * (at in self._formulas) + self._edit(at, prefix)
        # A line without indentation and marks is not in a block of code, so the page merges its blanks.
        if prefix or self._html is not Html.NO:
            shown = self._mark_far(shown, is_code=not prefix.strip(" \t>"))
        self._fresh = self._html is Html.NO and bool(_HEADING.match(line))
        if self._trust >= Trust.MARKED or self._html is Html.LOST:
            return UNSEEN + shown
        return FOOTNOTE + shown if footnote else shown

    def _mark_far(self, line: str, *, is_code: bool) -> str:
        """A line with a mark before text that is far to the right. Only lines of code can be too long: others wrap."""
        if "far text" not in self._steps:
            return line
        at = find_far(_OTHER_BLANKS.sub(" ", line))
        if at is None and is_code and len(line) > MAX_LINE:
            at = MAX_LINE
        return line if at is None else f"{line[:at]}{FAR}{line[at:]}"

    def _edit(self, at: int, prefix: str) -> str:
        line = self.lines[at]
        drawn = ""
        if fence := _FENCE.match(line, len(prefix)):
            # It may also be a line of a paragraph, and then its backticks open a code span.
            self._trust = max(self._trust, Trust.NO_CODE)
            if not {"<", "["} & set(line[fence.start() :]):
                shown = self._show_info(line, fence)
                return shown.replace("[^", f"{FOOTNOTE}[^", 1) if self._has_footnotes and "[^" in prefix else shown
            self._trust = max(self._trust, Trust.MARKED)
            drawn = self._name_drawing(fence)
        html = self._html is not Html.NO
        if self._html is Html.PRE and _PRE_ENDS.search(line):
            self._html = Html.NO
        cut = self._find_cells_beyond(line)
        in_table = "|" in line and (self._columns is not None or self._is_head(at))
        if in_table:
            self._trust = max(self._trust, Trust.NO_CODE)
        certain = self._trust is Trust.CERTAIN and not html
        shown, trust = self._editor.edit(line[:cut], certain=certain, html=html)
        if cut is not None:
            more, worse = self._editor.edit(line[cut:], certain=False, html=html)
            shown, trust = f"{shown}{BEYOND}{more}", max(trust, worse)
        self._trust = max(self._trust, trust)
        if self._trust is Trust.LOST:
            self._html = Html.LOST
        return shown + drawn

    def _look_for_html(self, line: str, prefix: str) -> None:
        rest = line[len(prefix) :]
        if self._html >= Html.YES or not _HTML.match(rest) or ADDRESS.match(rest):
            return
        at_top = not prefix or (not prefix.strip(" ") and len(prefix) < 4 and self._list is None)
        if _PRE.match(rest) and not _PRE_ENDS.search(rest):
            self._html = Html.PRE if at_top and self._html is Html.NO else Html.LOST
        elif at_top and (_HTML_BLOCK.match(rest) or (self._fresh and _is_lone_tag(rest))):
            self._html = Html.YES
        else:
            self._html = Html.MAYBE

    def _look_for_definition(self, line: str, prefix: str) -> None:
        """Mark definitions of links. The page does not show them, and they may have several lines."""
        if self._html is Html.PRE:  # Not even its last line, after a blank one, begins a paragraph.
            self._in_paragraph = False
        elif self._fresh and not prefix and _PLAIN.match(line):
            self._in_paragraph = True
            if _NO_DEFINITION.match(line):
                return
            self._in_paragraph = line[0] != "["
        elif self._in_paragraph and _PLAIN.match(line, len(line) - len(line.lstrip(" \t"))):
            return
        else:
            self._in_paragraph = False
        if self._defines and _MAYBE_DEFINITION.match(line, len(prefix)):
            self._trust = max(self._trust, Trust.MARKED)

    def _follow_list(self, line: str) -> None:
        """Update the indentation that a line needs to be in the current list at the top level."""
        indent = _measure(line)
        rest = line[indent:]
        if self._html is not Html.NO:
            self._list = UNSURE if self._html is Html.MAYBE else None
            return
        known = self._list
        if (indent > 3 and known is None) or (known == UNSURE and indent) or (known and indent >= known > 0):
            return
        marker = _MARKER.match(rest)
        if _HEADING.match(rest) or _RULER.match(rest):
            self._list = None
        elif marker and (marker[2] or not marker[3].strip(" ")):
            self._list = self._measure_item(indent, marker)
        elif known is not None:
            self._list = None if self._after_blank and not indent else UNSURE

    def _measure_item(self, indent: int, marker: re.Match[str]) -> int:
        name, blanks, content = marker.groups()
        interrupts = name in "-+*" or int(name[:-1]) == 1 or self._after_blank or (self._list or 0) > 0
        if not interrupts or content in ("", "\t"):
            return UNSURE
        return indent + len(name) + (len(blanks) if len(blanks) < 5 else 1)

    def _is_head(self, at: int) -> bool:
        return at + 1 < len(self.lines) and _DELIMITERS.fullmatch(self.lines[at + 1]) is not None

    def _count_columns(self, at: int) -> None:
        line = self.lines[at]
        if not self._after_blank and at and _DELIMITERS.fullmatch(line):
            columns = line.strip(" \t\v\f|>").count("|") + 1
            self._columns = min(columns, self._columns or columns)

    def _find_cells_beyond(self, line: str) -> int | None:
        """Where the cells begin for which the table has no columns. None if there are no such cells."""
        if self._columns is None or "cells" not in self._steps:
            return None
        row = re.compile(rf"[ \t>]*+\|?+(?:(?:\\.|[^|\\])*+\|){{{self._columns}}}(?=.*[^\s|])")
        found = row.match(line)
        return found.end() if found else None


def _find_formulas(lines: Sequence[str]) -> frozenset[int]:
    """The numbers of the lines that a page may show as formulas, in whole or in part."""
    drawn = {at for at, line in enumerate(lines) if _FORMULA.search(line)}
    begun: int | None = None
    pending: list[int] = []
    for at, line in enumerate(lines):
        if not line.strip(" \t"):
            begun = None
            continue
        ends = [found.start() for found in _FORMULA_ENDS.finditer(line)]
        if begun is not None:
            pending.append(at)
            if ends:
                drawn.update(pending)
                pending = []
        elif found := _FORMULA_BEGINS.search(line):
            begun, pending = at, [at]
            if ends and ends[-1] > found.start():
                drawn.add(at)
    return frozenset(drawn)


def _is_lone_tag(rest: str) -> bool:
    """Whether a line is only a tag, and raw HTML begins with it."""
    tag = TAG.fullmatch(rest.rstrip(" \t"))
    if tag is None or RAW_TEXT.fullmatch(tag[2]) or tag[2].lower() == "pre":
        return False
    return not (tag[1] and tag[3])


def _measure(line: str) -> int:
    """How many spaces a line begins with. A tab after fewer than four spaces makes them four."""
    indent = len(line) - len(line.lstrip(" "))
    return 4 if line[indent : indent + 1] == "\t" and indent < 4 else indent
