"""Where a page shows a line: so far below, to the right, or inside of lists that nobody looks for it there. Pure."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape

from runner.characters import drop_invisible

MAX_BLANK_LINES = 50
"""Lines that say nothing after which readers do not look for more: some more than a screen has."""

MAX_BLANK_CELLS = 15
"""Cells of a row that say nothing after which readers do not look for more. GitHub lets wide tables scroll."""

MAX_DEPTH = 15
"""Lists and quotes within each other. Each moves its words to the right by up to 32 pixels."""

_SAYS = re.compile(r"[^\W_]")
_BLANK_TAG = re.compile(
    r"</?(?:a|article|b|bd[io]|big|blockquote|br|center|code|d[dlt]|del|details|div|em|font|h[1-6]|hr|i|ins|kbd|li|ol|p|q"
    r"|r[pt]|ruby|s|samp|section|small|span|strong|su[bp]|summary|t[dhr]|table|tbody|tfoot|thead|tt|u|ul|var|wbr)\b"
    r"[^<>]*>",
    re.IGNORECASE,
)
"""Tags that a page shows as blanks if there are no words between them."""

_MOVES = re.compile(
    r"<(/?)(article|blockquote|br|center|d[dlt]|details|div|h[1-6]|hr|li|ol|p|pre|section|summary|t[dhr]|table|ul)\b[^<>]*>"
    r"|(?<!\\)\|",
    re.IGNORECASE,
)
"""What begins another line of the page or another cell, or moves to the right what follows."""

_CELLS = frozenset({"td", "th"})
_ROWS = frozenset({"table", "tr"})
_NESTED = frozenset({"blockquote", "dd", "dl", "ol", "ul"})
_MARKERS = re.compile(r">|(?:[-+*]|\d{1,9}[.)])(?=[ \t])")


class Distance:
    """Follows the lines of a text from its beginning."""

    def __init__(self) -> None:
        self._blanks = self._cells = self._pipes = 0
        self._open = Counter[str]()

    def is_far(self, line: str, prefix: str, *, is_code: bool) -> bool:
        """Whether some words of the next line are far away. Called for each line once.

        `prefix` is what lists and quotes put before it. In a line of code, tags are words.
        """
        if is_code:
            return self._pass(0, says=_SAYS.search(line) is not None)
        depth, far, at = len(_MARKERS.findall(prefix)), False, 0
        # A page shows `</ul>` in code as it is written, so only a line that cannot be code closes something.
        closes = "`" not in line and not line.startswith(("\t", "    ")) and not prefix.strip(" \t")
        self._pipes = 0
        for move in _MOVES.finditer(line):
            far |= self._pass(depth, says=_says_something(line[at : move.start()]), ends=False)
            self._move((move[2] or "|").lower(), is_end=bool(move[1]), closes=closes)
            at = move.end()
        return self._pass(depth, says=_says_something(line[at:])) or far

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

    def _move(self, tag: str, *, is_end: bool, closes: bool) -> None:
        if tag in _NESTED and (closes or not is_end):
            self._open[tag] = max(self._open[tag] + (-1 if is_end else 1), 0)
        if tag == "|":
            self._pipes += 1
        elif tag in _CELLS:
            self._cells += not is_end
        elif not is_end:
            self._cells = 0 if tag in _ROWS else self._cells
            self._blanks += 1


def _says_something(text: str) -> bool:
    """Whether a page shows a letter or digit of a text, in whatever way its blanks are spelled."""
    return _SAYS.search(drop_invisible(unescape(_BLANK_TAG.sub("", text)))) is not None
