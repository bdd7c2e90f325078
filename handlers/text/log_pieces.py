"""A long log in pieces, so that other requests get their turn while it is cleaned. Pure.

A search through a text cannot be interrupted, and a page's log has some megabytes. A piece ends at the end of a line
where that is possible. The cleaned pieces show no secret that the cleaned log would not show.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from handlers.text.sanitize import find_open

PIECE = 32_768
"""Characters of a piece, if a border is possible there."""

STEP = PIECE // 4
"""Characters between two borders that are tried."""

TRIES = 200
"""Line ends that are tried, from the end of the longest piece backwards, before the last one is taken. A key has some
60 lines."""

LONGEST = 3 * PIECE
"""Characters of the longest piece. No key is that long."""

MARGIN = 10_000
"""Characters on each side of a border within a line that are compared: a secret is found only when it is whole."""

LINE_MARGIN = 1_000
"""The same for a border between two lines."""


def cut_pieces(log: str, secrets: Collection[str], clean: Callable[[str], str]) -> Iterator[str]:
    """The log in pieces, in their order. `clean` is what becomes of each: it makes the borders harmless or not."""
    start = 0
    while start < len(log):
        end = _find_end(log, start, secrets, clean)
        yield log[start:end]
        start = end


def _find_end(log: str, start: int, secrets: Collection[str], clean: Callable[[str], str]) -> int:
    for end in range(start + PIECE, min(start + LONGEST, len(log)) + 1, STEP):
        if end == len(log):
            return end
        line = log.rfind("\n", start, end) + 1
        border = line if line > start else end
        place = start + find_open(log[start:border], secrets)
        if place < border:
            border = log.rfind("\n", start, place) + 1
        # Between two lines only a header and its value belong together; what is longer has an opening.
        margin = LINE_MARGIN if log[border - 1 : border] == "\n" else MARGIN
        if border > start and _is_harmless(log, border, margin, clean):
            return border
    if len(log) - start <= LONGEST:
        return len(log)
    last = border = log.rfind("\n", start, start + LONGEST) + 1
    for _ in range(TRIES):
        if border and _is_harmless(log, border, LINE_MARGIN, clean):
            return border
        border = log.rfind("\n", start, max(border - 1, start)) + 1
    return last or start + LONGEST


def _is_harmless(log: str, border: int, margin: int, clean: Callable[[str], str]) -> bool:
    """Whether a border goes through nothing that `clean` would have found."""
    before, after = log[max(border - margin, 0) : border], log[border : border + margin]
    return clean(before + after) == clean(before) + clean(after)
