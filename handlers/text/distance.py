"""Finds words that a page shows so far below, to the right or inside of lists that no reader looks there. Pure.

The distance is the blank space that the page shows before a word, not the number of lines, marks and addresses in the
source text.
"""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from unicodedata import category

from handlers.text.hidden_parts import DRAWN, FAR, FOLDED, FOOTNOTE, TINY, UNSEEN
from runner.characters import MAX_GAP, is_invisible

MAX_BLANK_LINES = 50
"""The most lines without words after which readers still look for more text. A screen has somewhat fewer lines."""

MAX_BLANK_CELLS = 15
"""The most cells without words after which readers still look for more in a row. On GitHub, wide tables scroll."""

MAX_DEPTH = 15
"""The most lists and quotes inside of each other. Each moves its text to the right by up to 32 pixels."""

_LINE_HEIGHT, _CELL_WIDTH = 21, 65
"""Pixels. A line of text on GitHub's pages has this height. `MAX_BLANK_CELLS` cells of this width are about as wide as
a comment."""

PREFIX = r"(?:[ \t]|>|[-+*](?=[ \t])|\d{1,9}[.)](?=[ \t])|\[\^[^\] \t\n\0]++\]:|\[[ xX]\](?=[ \t]))*+"
"""The marks of lists, quotes, footnotes and tasks at the beginning of a line."""

_SAYS = re.compile(r"[^\W_]")
_UNSHOWN = re.compile(
    rf"(?<!!\[)\]\((?:[^\s()]++|\([^\s()]*+\))*+\)|{'|'.join(map(re.escape, (DRAWN, FAR, FOLDED, FOOTNOTE, TINY)))}"
)
"""Letters that the page does not show: the address of a link, and our own marks. The address of an image stays,
because the image is visible.
"""

_MOVES = re.compile(
    r"(⟨)?<(/?)([A-Za-z][A-Za-z0-9-]*+)(?(1)|(?=[\s/>]))((?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*+)>|(?<!\\)\|"
)
"""A tag, also an unknown one, or the beginning of a cell. An address (`<http://a>`) is not a tag."""

_SIZE = re.compile(
    r"(?<![\w-])(?:(height|border|cellpadding|cellspacing|size|vspace)|width|hspace)\s*=\D?(\d{1,6})(?![\d%])"
)
"""An attribute that takes space, in pixels. GitHub's sanitiser keeps these attributes."""

_CELLS = frozenset({"td", "th"})
_ROWS = frozenset({"table", "tr"})
_NESTED = frozenset({"blockquote", "dd", "dl", "figure", "ol", "ul"})
_LINES = _ROWS | _NESTED | {"article", "br", "center", "details", "div", "dt", "hr", "li"}
_LINES |= {"p", "pre", "section", "summary", *(f"h{level}" for level in range(1, 7))}
"""Tags that begin a new line on the page."""

_RULER = re.compile(r"[ \t>]*([-*_])[ \t]*(?:\1[ \t]*){2,}")
_CONTAINER = re.compile(r"([ \t]*+)(>|([-+*]|(\d{1,9})[.)])(?=[ \t]|$))")
_TAB = 4
"""The width of a tab in Markdown, in columns (CommonMark, 2.2)."""
_CODE = 4
"""A mark that is indented by this many columns, or more, does not begin an item."""


class Distance:
    """Follows the lines of a text from its beginning."""

    def __init__(self) -> None:
        self._blanks = self._cells = self._pipes = self._gap = 0
        """How many blank lines, cells, cells of a Markdown table and columns the page shows after the last word."""
        self._tall = 0
        """The least height of the open table, in lines."""
        self._open = Counter[str]()
        self._folded: list[int] = []
        """For each open part that can be folded, the blank lines before it. A folded part takes no space."""
        self._lists = Lists()

    def is_far(self, shown: str, line: str, *, is_code: bool) -> bool:
        """Whether words of the next line are far away. Call this once for each line, in order.

        `line` is the original line, and `shown` is what remains of it, with our marks. In code, tags are words.
        """
        depth = self._lists.follow(line, is_code=is_code)
        if is_code:
            self._gap = 0
            return self._pass(0, says=_SAYS.search(shown) is not None)
        # A line that begins with one of our marks may not be visible, so its words do not reset the counts.
        is_seen = not shown.startswith((UNSEEN, FOOTNOTE, DRAWN))
        # In code, `</ul>` is text. So an end tag counts only on a line that cannot be code.
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
            self._gap = 0  # A line of blanks counts as one line. Cells of a row are beside each other.
        return far

    def _read(self, text: str, depth: int, *, is_seen: bool, ends: bool = False) -> bool:
        """Pass the text between two tags, or after the last tag. Returns whether it has words that are far away."""
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
        """Pass a part of a line. Returns whether it has words that are far away.

        `says` says whether the part has visible words, and `ends` whether a visible line ends with it.
        """
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
            # The words of a tall cell may be at its top, so its whole height may be blank.
            self._blanks = max(self._blanks, self._tall)
            self._tall *= not (tag == "table" and closes)
            return
        self._cells += tag in _CELLS
        self._blanks += tag in _LINES
        lines = self._make_room(attributes)
        self._blanks += lines
        self._tall += lines * (tag != "hr")

    def _make_room(self, attributes: str) -> int:
        """Count the width in a tag's attributes as cells, and return the height in lines."""
        sizes = [(size[1], int(size[2])) for size in _SIZE.finditer(attributes)]
        self._cells += sum(pixels // _CELL_WIDTH for is_high, pixels in sizes if not is_high)
        return sum(pixels // _LINE_HEIGHT for is_high, pixels in sizes if is_high)

    def _fold(self, tag: str, *, is_end: bool, closes: bool) -> None:
        """After a foldable part, restore at least the count at its summary, because folded words are not visible."""
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
"""Blank characters that are about as wide as two letters."""


def _is_blank(char: str) -> bool:
    """Whether a page shows this character as a blank, or not at all. Unlike spaces, several of them are not merged."""
    return is_invisible(char) or (char != " " and category(char) == "Zs")


def _measure(char: str) -> int:
    return 2 if char in _WIDE else 1


def _has_prefix(line: str) -> bool:
    prefix = _CONTAINERS.match(line)
    return prefix is not None and bool(prefix[0].strip(" \t"))


_CONTAINERS = re.compile(PREFIX)


class Lists:
    """Follows how many lists and quotes a line is in. If this is uncertain, the higher number counts."""

    def __init__(self) -> None:
        self._columns: list[int] = []
        """For each open item, the least indentation of a line in it."""
        self._depth = 0
        self._after_blank = True

    def follow(self, line: str, *, is_code: bool) -> int:
        """The depth of the next line. A line that certainly is code is not in a list."""
        if is_code:
            self._columns.clear()
            self._depth, self._after_blank = 0, True
            return 0
        if not line.strip(" \t>"):
            self._after_blank = True
            return self._depth
        ruled = _RULER.fullmatch(line) is not None
        at = column = base = quotes = 0
        # A line without a mark, or with a mark that cannot begin a list there, continues the paragraph above it.
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
    """The column after some blanks that begin at `column`."""
    for blank in blanks:
        column += _TAB - column % _TAB if blank == "\t" else 1
    return column
