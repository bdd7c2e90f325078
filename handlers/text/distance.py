"""Where a page shows a line: so far below, to the right, or inside of lists that nobody looks for it there. Pure.

What counts is what the page shows: not how many lines, marks and addresses the text has, but how much blank room is
before its next word.
"""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from unicodedata import category

from handlers.text.hidden_parts import DRAWN, FAR, FOLDED, FOOTNOTE, TINY, UNSEEN
from runner.characters import MAX_GAP, is_invisible

MAX_BLANK_LINES = 50
"""Lines that say nothing after which readers do not look for more: some more than a screen has."""

MAX_BLANK_CELLS = 15
"""Cells of a row that say nothing after which readers do not look for more. GitHub lets wide tables scroll."""

MAX_DEPTH = 15
"""Lists and quotes within each other. Each moves its words to the right by up to 32 pixels."""

_LINE_HEIGHT, _CELL_WIDTH = 21, 65
"""Pixels of a line of text on GitHub's pages, and so many that 15 cells are about as wide as a comment."""

PREFIX = r"(?:[ \t]|>|[-+*](?=[ \t])|\d{1,9}[.)](?=[ \t])|\[\^[^\] \t\n\0]++\]:|\[[ xX]\](?=[ \t]))*+"
"""What lists, quotes, footnotes and tasks put before a line."""

_SAYS = re.compile(r"[^\W_]")
_UNSHOWN = re.compile(
    rf"(?<!!\[)\]\((?:[^\s()]++|\([^\s()]*+\))*+\)|{'|'.join(map(re.escape, (DRAWN, FAR, FOLDED, FOOTNOTE, TINY)))}"
)
"""What a line has in letters and the page does not show: where a link leads, and our own marks. A picture is seen."""

_MOVES = re.compile(
    r"(⟨)?<(/?)([A-Za-z][A-Za-z0-9-]*+)(?(1)|(?=[\s/>]))((?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*+)>|(?<!\\)\|"
)
"""A tag, also one that the page does not know, or the beginning of a cell. An address (`<http://a>`) is none."""

_SIZE = re.compile(
    r"(?<![\w-])(?:(height|border|cellpadding|cellspacing|size|vspace)|width|hspace)\s*=\D?(\d{1,6})(?![\d%])"
)
"""An attribute that makes room, in pixels. GitHub keeps these (the allow-list of its sanitiser)."""

_CELLS = frozenset({"td", "th"})
_ROWS = frozenset({"table", "tr"})
_NESTED = frozenset({"blockquote", "dd", "dl", "figure", "ol", "ul"})
_LINES = _ROWS | _NESTED | {"article", "br", "center", "details", "div", "dt", "hr", "li"}
_LINES |= {"p", "pre", "section", "summary", *(f"h{level}" for level in range(1, 7))}
"""Tags that begin another line of the page."""

_RULER = re.compile(r"[ \t>]*([-*_])[ \t]*(?:\1[ \t]*){2,}")
_CONTAINER = re.compile(r"([ \t]*+)(>|([-+*]|(\d{1,9})[.)])(?=[ \t]|$))")
_TAB = 4
"""Columns to which a tab moves in Markdown (CommonMark, 2.2)."""
_CODE = 4
"""Columns from which on a mark begins no item."""


class Distance:
    """Follows the lines of a text from its beginning."""

    def __init__(self) -> None:
        self._blanks = self._cells = self._pipes = self._gap = 0
        """How many lines, cells, cells of a Markdown table and columns the page shows as blank since its last word."""
        self._tall = 0
        """The least height of the open table, in lines."""
        self._open = Counter[str]()
        self._folded: list[int] = []
        """For each open part that can be folded, the blank lines before it. A folded part takes no room."""
        self._lists = Lists()

    def is_far(self, shown: str, line: str, *, is_code: bool) -> bool:
        """Whether some words of the next line are far away. Called for each line once.

        `line` is as it was written, and `shown` what is left of it, with our marks. In a line of code, tags are words.
        """
        depth = self._lists.follow(line, is_code=is_code)
        if is_code:
            self._gap = 0
            return self._pass(0, says=_SAYS.search(shown) is not None)
        # A line that has a mark already may not be visible, so its words do not reset the counts.
        is_seen = not shown.startswith((UNSEEN, FOOTNOTE, DRAWN))
        # A page shows `</ul>` in code as it is written, so only a line that cannot be code closes something.
        closes = "`" not in line and not line.startswith(("\t", "    ")) and not _has_prefix(line)
        shown, far, at = _UNSHOWN.sub("", shown), False, 0
        self._pipes = 0
        for move in _MOVES.finditer(shown):
            far |= self._read(shown[at : move.start()], depth, is_seen=is_seen)
            if move[0] == "|":
                self._pipes += 1
            elif move[3].lower() == "img" and "src" in move[4]:
                far |= self._pass(depth, says=is_seen, ends=False)
                self._blanks += self._make_room(move[4])
            else:
                self._move(move[3].lower(), move[4], is_end=bool(move[2]), closes=closes)
            at = move.end()
        far |= self._read(shown[at:], depth, is_seen=is_seen, ends=is_seen)
        if self._gap < MAX_GAP and not self._cells:
            self._gap = 0  # A line of blanks counts as one. The cells of a row stand side by side.
        return far

    def _read(self, text: str, depth: int, *, is_seen: bool, ends: bool = False) -> bool:
        """Pass what stands between two tags, or behind the last, and tell whether it has words that are far away."""
        plain = unescape(text)
        if not plain.isascii():
            plain = plain.translate({ord(char): _BLANK * _measure(char) for char in set(plain) if _is_blank(char)})
        says, far = is_seen and _SAYS.search(plain) is not None, False
        for found in _WORD_OR_BLANK.finditer(plain) if says or _BLANK in plain else ():
            if found[0] == _BLANK:
                self._gap += 1
            elif is_seen:
                far |= self._gap >= MAX_GAP
                self._gap = 0
                if _BLANK not in plain:
                    break
        return self._pass(depth, says=says, ends=ends) or far

    def _pass(self, depth: int, *, says: bool, ends: bool = True) -> bool:
        """Pass a part of a line, or its last part, and tell whether it has words that are far away."""
        depth += sum(self._open.values())
        cells = max(self._cells, self._pipes)
        far = says and (self._blanks > MAX_BLANK_LINES or cells > MAX_BLANK_CELLS or depth > MAX_DEPTH)
        if says:
            self._blanks = self._cells = self._pipes = 0
        else:
            self._blanks += ends
        return far

    def _move(self, tag: str, attributes: str, *, is_end: bool, closes: bool) -> None:
        if tag in _NESTED and (closes or not is_end):
            self._open[tag] = max(self._open[tag] + (-1 if is_end else 1), 0)
        self._fold(tag, is_end=is_end, closes=closes)
        if tag in _ROWS and (closes or not is_end):
            self._cells = 0
        if is_end:
            # The words of a tall cell may stand at its top.
            self._blanks = max(self._blanks, self._tall)
            self._tall *= not (tag == "table" and closes)
            return
        self._cells += tag in _CELLS
        self._blanks += tag in _LINES
        lines = self._make_room(attributes)
        self._blanks += lines
        self._tall += lines * (tag != "hr")

    def _make_room(self, attributes: str) -> int:
        """Count the width that attributes give a tag, and tell the height in lines."""
        sizes = [(size[1], int(size[2])) for size in _SIZE.finditer(attributes)]
        self._cells += sum(pixels // _CELL_WIDTH for is_high, pixels in sizes if not is_high)
        return sum(pixels // _LINE_HEIGHT for is_high, pixels in sizes if is_high)

    def _fold(self, tag: str, *, is_end: bool, closes: bool) -> None:
        """Behind a part that can be folded, go on with the count of its summary: folded words are not visible."""
        if tag == "details" and not is_end:
            self._folded.append(self._blanks)
        elif self._folded and is_end and tag == "summary":
            self._folded[-1] = self._blanks
        elif self._folded and is_end and tag == "details":
            self._blanks = max(self._blanks, self._folded[-1])
            if closes:
                self._folded.pop()


_BLANK = "\u00a0"
_WORD_OR_BLANK = re.compile(rf"[^\W_]+|{_BLANK}")
_WIDE = frozenset("\u2001\u2003\u2800\u3000\u3164")
"""Blanks that are about as wide as two letters."""


def _is_blank(char: str) -> bool:
    """Whether a page shows a blank, or nothing, where this character is. It does not merge them as it does spaces."""
    return is_invisible(char) or (char != " " and category(char) == "Zs")


def _measure(char: str) -> int:
    return 2 if char in _WIDE else 1


def _has_prefix(line: str) -> bool:
    prefix = _CONTAINERS.match(line)
    return prefix is not None and bool(prefix[0].strip(" \t"))


_CONTAINERS = re.compile(PREFIX)


class Lists:
    """Follows how many lists and quotes a line stands in. In doubt it is more of them."""

    def __init__(self) -> None:
        self._columns: list[int] = []
        """Of each open item, how far a line is indented at least that stands in it."""
        self._depth = 0
        self._after_blank = True

    def follow(self, line: str, *, is_code: bool) -> int:
        """The depth of the next line. A certain block of code is in no list."""
        if is_code:
            self._columns.clear()
            self._depth, self._after_blank = 0, True
            return 0
        if not line.strip(" \t>"):
            self._after_blank = True
            return self._depth
        ruled = _RULER.fullmatch(line) is not None
        at = column = base = quotes = 0
        # A line without a mark, or with one that begins no list there, goes on with the paragraph above it.
        continues = not self._after_blank and not ruled
        in_item = False
        while not ruled and (found := _CONTAINER.match(line, at)):
            column, at = _indent(found[1], column), found.end()
            if found[2] == ">":
                quotes += 1
                base = column + 2
            else:
                self._close(column)
                base = max([base, *self._columns[-1:]])
                interrupts = found[4] in (None, "1") and at < len(line) and column < base + _CODE
                continues &= in_item or not interrupts
                in_item = True
                self._columns.append(column + len(found[2]) + 1)
            column += len(found[2])
        if not in_item and not continues:
            self._close(_indent(line[at : len(line) - len(line[at:].lstrip(" \t"))], column))
        self._depth = max(len(self._columns) + quotes, self._depth if continues else 0)
        self._after_blank = False
        return self._depth

    def _close(self, column: int) -> None:
        while self._columns and self._columns[-1] > column:
            self._columns.pop()


def _indent(blanks: str, column: int) -> int:
    """The column behind some blanks that begin at a column."""
    for blank in blanks:
        column += _TAB - column % _TAB if blank == "\t" else 1
    return column
