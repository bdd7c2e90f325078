"""Characters that people cannot see. Pure; the one place that says which they are."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MAX_LINE = 1_000
"""Characters of a line beyond which nobody reads it."""

_VISIBLE_CONTROLS = frozenset("\t\n\r")
_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""Control, format (zero-width and bidirectional ones, tags, the soft hyphen), private use, half a character, and the
line breaks that only some programs honour."""

_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2065\u2800\u3164\uffa0")
"""Letters and marks that are drawn as nothing, although their category says otherwise."""

_RANGES = (
    ("\u180b", "\u180f"),  # variation selectors of Mongolian
    ("\ufe00", "\ufe0d"),  # others, in which text has been smuggled; not the two behind them, which emoji need
    ("\ufff0", "\ufff8"),  # kept free for more like them (Default_Ignorable_Code_Point)
    ("\U000e0000", "\U000e0fff"),  # tags, and still more variation selectors
)


def is_invisible(char: str) -> bool:
    """Whether a reader would not see this character, or would see others in another order because of it."""
    if char in _VISIBLE_CONTROLS:
        return False
    ignorable = char in _BLANK or any(first <= char <= last for first, last in _RANGES)
    return ignorable or unicodedata.category(char) in _CATEGORIES


def drop_invisible(text: str) -> str:
    """The text without its invisible characters, to compare it as it looks."""
    return text.translate(dict.fromkeys(map(ord, _find_invisible(text))))


def show_invisible(text: str) -> str:
    """The text with every invisible character written out, as `⟨U+202E⟩`."""
    return text.translate({ord(char): f"⟨{_name(char)}⟩" for char in _find_invisible(text)})


def make_storable(text: str) -> str:
    """The text without what a database refuses: what UTF-8 cannot say, and NUL, which PostgreSQL does not take."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def name_oddities(text: str) -> list[str]:
    """What a reader of `text` would miss: invisible or reordering characters, lines too long to read."""
    invisible = _find_invisible(text)
    oddities = []
    if reordering := invisible & _BIDIRECTIONAL:
        oddities.append(f"characters that change the order of what is read: {_list(reordering)}")
    if hidden := invisible - _BIDIRECTIONAL:
        oddities.append(f"invisible characters: {_list(hidden)}")
    if (longest := max(map(len, text.split("\n")))) > MAX_LINE:
        oddities.append(f"a line of {longest} characters")
    return oddities


def _find_invisible(text: str) -> set[str]:
    # Each character is judged once, however long the text: megabytes of it pass through here.
    return {char for char in set(text) if is_invisible(char)}


def _list(chars: Iterable[str]) -> str:
    names = [_name(char) for char in sorted(chars)]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _name(char: str) -> str:
    return f"U+{ord(char):04X}"
