"""Characters that people cannot see. Pure; the one place that says which they are."""

from __future__ import annotations

import unicodedata

MAX_LINE = 1_000
"""Characters of a line beyond which nobody reads it."""

_VISIBLE_CONTROLS = frozenset("\t\n\r")
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0\u180e\u034f")
"""Letters and marks that are drawn as nothing, although their category says otherwise."""


def is_invisible(char: str) -> bool:
    """Whether a reader would not see this character, or would see others in another order because of it.

    Control characters, Unicode's category Cf (zero-width and bidirectional ones, tags, the soft hyphen), private use,
    and the variation selectors in which text has been smuggled.
    """
    if char in _VISIBLE_CONTROLS:
        return False
    smuggles = "\U000e0100" <= char <= "\U000e01ef"
    return smuggles or char in _BLANK or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co")


def show_invisible(text: str) -> str:
    """The text with every invisible character written out, as `⟨U+202E⟩`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"⟨U+{ord(char):04X}⟩" if is_invisible(char) else char for char in text)


def name_oddities(text: str) -> list[str]:
    """What a reader of `text` would miss: invisible or reordering characters, lines too long to read."""
    invisible = {char for char in text if is_invisible(char)}
    oddities = []
    if reordering := sorted(invisible & _BIDIRECTIONAL):
        oddities.append(f"characters that change the order of what is read: {_name(reordering)}")
    if hidden := sorted(invisible - _BIDIRECTIONAL):
        oddities.append(f"invisible characters: {_name(hidden)}")
    if longest := max((len(line) for line in text.splitlines() if len(line) > MAX_LINE), default=0):
        oddities.append(f"a line of {longest} characters")
    return oddities


def _name(chars: list[str]) -> str:
    more = f" and {len(chars) - 5} more" if len(chars) > 5 else ""
    return ", ".join(f"U+{ord(char):04X}" for char in chars[:5]) + more
