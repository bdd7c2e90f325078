"""A long log in pieces, so that whoever makes it clean lets others have their turn. Pure.

No search through a text can be interrupted, and a page's log has some megabytes. A piece is whole lines where that is
possible, and what is clean piece by piece is as clean as the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from handlers.sanitize import find_open

PIECE = 32_768
"""Characters of a piece, where it can end there."""

LONGEST = 3 * PIECE
"""Characters of the longest one. No key is that long."""

MARGIN = 10_000
"""Characters on either side of a border within a line that are looked at: a secret is found only when it is whole."""


def cut_pieces(log: str, secrets: Collection[str], clean: Callable[[str], str]) -> Iterator[str]:
    """The log in pieces, in their order. `clean` is what becomes of each: it makes the borders harmless or not."""
    start = 0
    while start < len(log):
        end = _find_end(log, start, secrets, clean)
        yield log[start:end]
        start = end


def _find_end(log: str, start: int, secrets: Collection[str], clean: Callable[[str], str]) -> int:
    for end in range(start + PIECE, min(start + LONGEST, len(log)) + 1, PIECE):
        if end == len(log):
            return end
        line = log.rfind("\n", start, end) + 1
        border = line if line > start else end
        place = start + find_open(log[start:border], secrets)
        if place < border:
            border = log.rfind("\n", start, place) + 1
        if border > start and (log[border - 1] == "\n" or _is_harmless(log, border, clean)):
            return border
    if len(log) - start <= LONGEST:
        return len(log)
    return (log.rfind("\n", start, start + LONGEST) + 1) or start + LONGEST


def _is_harmless(log: str, border: int, clean: Callable[[str], str]) -> bool:
    """Whether a border within a line goes through nothing that `clean` would have found."""
    before, after = log[max(border - MARGIN, 0) : border], log[border : border + MARGIN]
    return clean(before + after) == clean(before) + clean(after)
