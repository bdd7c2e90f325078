"""Characters that people cannot see. Pure; the one place that says which they are."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping

MAX_GAP = 80
"""Columns of blanks in a line, also at its beginning, beyond which readers do not look for more of it."""

_TAB = 8
"""Columns to which a page that shows a diff moves at a tab."""

_GAPS = re.compile(rf"[ \t]{{{_TAB},}}|[ \t]*\t[ \t]*")
"""Runs of blanks that may be as wide as a tab. Narrower ones are not counted: they are between words and in tables."""

MAX_LINE = 1_000
"""Characters of a line beyond which nobody reads it."""

_VISIBLE_CONTROLS = frozenset("\t\n\r")
_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""Control, format (zero-width and bidirectional ones, tags, the soft hyphen), private use, half a character, and the
line breaks that only some programs honour."""

_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_LEFTWARD = frozenset({"R", "AL"})
_RIGHTWARD = frozenset({"L", "EN"})
"""The classes (Unicode Standard Annex 9) of letters that are written from right to left, as Hebrew and Arabic are, and
of letters and digits from left to right. In a line with both, signs and numbers may be shown in another place."""

_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2065\u2800\u3164\uffa0\U00013441\U00013442\U00016fe4\U0001d159")
"""Letters and marks that are drawn as nothing, although their category says otherwise."""

_RANGES = (
    ("\u180b", "\u180f"),  # variation selectors of Mongolian
    ("\ufe00", "\ufe0d"),  # others, in which text has been smuggled; not the two behind them, see _STRAY_SELECTOR
    ("\ufff0", "\ufff8"),  # kept free for more like them (Default_Ignorable_Code_Point)
    ("\U000e0000", "\U000e0fff"),  # tags, and still more variation selectors
)

_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2194-\u21aa\u231a-\u23fa\u24c2\u25aa-\u25fe\u2600-\u27bf\u2934\u2935"
    "\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
"""Symbols that a selector shows as an emoji or as text. No letter is among them, so that no name in a program has a
selector that is visible: to Python, names with and without one differ."""

_STRAY_SELECTOR = re.compile(f"[\ufe0e\ufe0f](?<![{_EMOJI}].)(?!(?<=[0-9#*]\ufe0f)\u20e3)")
"""A selector behind anything but such a symbol, or the first half of a keycap."""


def is_invisible(char: str) -> bool:
    """Whether a reader would not see this character, or would see others in another order because of it.

    U+FE0E and U+FE0F are visible here. In a text, those that follow no emoji are invisible to the functions below.
    """
    if char in _VISIBLE_CONTROLS:
        return False
    ignorable = char in _BLANK or any(first <= char <= last for first, last in _RANGES)
    return ignorable or unicodedata.category(char) in _CATEGORIES


def drop_invisible(text: str) -> str:
    """The text without its invisible characters, to compare it as it looks."""
    return _replace_invisible(text, lambda char: "")


_NORMALISED = re.compile(r"[^ \t\n]{1,255}")
"""What is normalised at once. No name of a file is longer than 255 bytes, so each is normalised whole."""


def unify(text: str) -> str:
    """One spelling for characters that look the same (NFKC).

    The text is read piece by piece: NFKC of a long run of combining characters takes quadratic time, and nothing can
    interrupt it.
    """
    if text.isascii():
        return text
    return _NORMALISED.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)


def has_long_runs(text: str) -> bool:
    """Whether a text has so many combining characters in a row that normalising it takes long, as Python's own parser
    does with names."""
    if text.isascii():
        return False
    combining = [char for char in set(text) if unicodedata.combining(unicodedata.normalize("NFKD", char)[0])]
    return bool(combining) and re.search(f"[{''.join(combining)}]{{256}}", text) is not None


def is_lookalike(char: str) -> bool:
    """Whether a reader would take this character for a plain space, or is shown a box because no font has it.

    People write the spaces in their languages, so only a diff has them written out.
    """
    return char != " " and unicodedata.category(char) in ("Zs", "Cn")


def show_invisible(text: str) -> str:
    """The text with every invisible character written out, as `⟨U+202E⟩`."""
    return _replace_invisible(text, lambda char: f"⟨{_name(char)}⟩")


MAX_SHOWN = 300
"""Characters of a path or of others' words that a sentence of ours has room for."""

_NO_CODE = {ord("`"): "\u02bc", **{ord(char): f"\u27e8U+{ord(char):04X}\u27e9" for char in "\t\n\r"}}
"""What would end a code span, or its line."""


def show_path(path: str) -> str:
    """A path, or others' words, in a sentence of ours: as code on one line."""
    shown = show_invisible(path[: MAX_SHOWN + 1]).translate(_NO_CODE)  # Cut first: a machine may send megabytes.
    return f"`{shown}`" if len(shown) <= MAX_SHOWN else f"`{shown[:MAX_SHOWN]}…`"


# Writing characters out so that they can be read back

_BYTES = 0x10FF00
"""`_BYTES + n` stands for the byte n where a text holds bytes that are no characters. It is the end of the last private
plane: a database takes it, and a file that holds such a character itself is read byte by byte there."""

_MARK_BEGUN = re.compile(r"\u27e8(?=U\+|0x)")
_MARK = re.compile(r"\u27e8(?:U\+([0-9A-F]{4,6})|0x([0-9A-F]{2}))\u27e9")
_BARE_RETURN = re.compile(r"\r(?!\n)")
_WRITTEN_RETURN = "\u27e8U+000D\u27e9"

_STAND_INS = {
    0: chr(_BYTES),
    **{0xDC00 + byte: chr(_BYTES + byte) for byte in range(0x80, 0x100)},
    **{char: "".join(chr(_BYTES + byte) for byte in chr(char).encode()) for char in range(_BYTES, _BYTES + 0x100)},
}
_WRITTEN_BYTES = {_BYTES + byte: f"\u27e80x{byte:02X}\u27e9" for byte in range(0x100)}
_RAW_BYTES = {_BYTES + byte: chr(0xDC00 + byte) if byte >= 0x80 else chr(byte) for byte in range(0x100)}
_UNSTOREABLE = re.compile(r"[\0\udc80-\udcff\U0010ff00-\U0010ffff]")
_CUT_CHARACTER = re.compile(r"[\U0010ffc2-\U0010fff4][\U0010ff80-\U0010ffbf]{0,2}\Z")


def decode_exactly(content: bytes) -> str:
    """The bytes as text that a database can hold, and no two contents as the same text.

    UTF-8 is read as it is. Each other byte, and NUL, becomes a stand-in that `escape_invisible` writes as `⟨0xE9⟩`.
    """
    text = content.decode(errors="surrogateescape")
    return _translate(text, _STAND_INS) if _UNSTOREABLE.search(text) else text


def encode_exactly(text: str) -> bytes:
    """The bytes that `decode_exactly` was given."""
    return _translate(text, _RAW_BYTES).encode(errors="surrogateescape")


def drop_cut_character(text: str) -> str:
    """The text without the bytes at its end that are the beginning of a character: git cuts at a number of bytes."""
    return _CUT_CHARACTER.sub("", text)


def escape_invisible(text: str) -> str:
    """The text with everything written out that a reader would not see, so that `unescape_invisible` gives it back.

    An invisible character becomes `⟨U+202E⟩`. So does any space but the plain one, a character that Unicode has not
    assigned, and a carriage return that no line feed follows, where some programs end a line. A byte that is no
    character becomes `⟨0xE9⟩`. Where the text itself says `⟨U+` or `⟨0x`, the bracket is written out. The lines, as
    `\\n` ends them, stay as many.
    """
    text = _translate(_MARK_BEGUN.sub("\u27e8U+27E8\u27e9", text), _WRITTEN_BYTES)
    text = show_invisible(text)
    text = _translate(text, {ord(char): f"\u27e8{_name(char)}\u27e9" for char in set(text) if is_lookalike(char)})
    return _BARE_RETURN.sub(_WRITTEN_RETURN, text)


def unescape_invisible(text: str) -> str:
    """What `escape_invisible` was given."""
    return _MARK.sub(lambda found: chr(int(found[1], 16) if found[1] else _BYTES + int(found[2], 16)), text)


def make_storable(text: str) -> str:
    """The text without what a database refuses: what UTF-8 cannot say, and NUL, which PostgreSQL does not take."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def name_oddities(text: str) -> list[str]:
    """What a reader of `text` would miss: invisible or reordering characters, lines in two directions, line ends that
    are none for others, lines too long to read."""
    invisible = _find_invisible(text) | set(_STRAY_SELECTOR.findall(text))
    oddities = []
    if reordering := invisible & _BIDIRECTIONAL:
        oddities.append(f"characters that change the order of what is read: {_list(reordering)}")
    if hidden := invisible - _BIDIRECTIONAL:
        oddities.append(f"invisible characters: {_list(hidden)}")
    if mixed := _find_mixed(text) - invisible:
        oddities.append(
            f"lines with right-to-left letters, which can show signs and numbers in another place: {_list(mixed)}"
        )
    if _BARE_RETURN.search(text):
        oddities.append("a carriage return within a line, where some programs end the line")
    if any(find_far(line) is not None for line in text.split("\n")):
        oddities.append(f"something behind {MAX_GAP} columns of blanks or more in one line")
    if (longest := max(map(len, text.split("\n")))) > MAX_LINE:
        oddities.append(f"a line of {longest} characters")
    return oddities


def find_far(line: str) -> int | None:
    """Where in a line something begins that readers do not look for, because it is far to the right: behind gaps of
    `MAX_GAP` columns together. None where nothing does."""
    moved = gaps = 0
    for found in _GAPS.finditer(line, 0, len(line.rstrip(" \t\r"))):
        began = column = found.start() + moved
        for char in found[0]:
            column += _TAB - column % _TAB if char == "\t" else 1
        moved = column - found.end()
        gaps += column - began if column - began >= _TAB else 0
        if gaps >= MAX_GAP:
            return found.end()
    return None


def _find_mixed(text: str) -> set[str]:
    """The letters from right to left in lines that also have something from left to right."""
    leftward = {char for char in set(text) if unicodedata.bidirectional(char) in _LEFTWARD}
    if not leftward:
        return set()
    rightward = {char for char in set(text) if unicodedata.bidirectional(char) in _RIGHTWARD}
    mixed = set[str]()
    for line in text.split("\n"):
        if not rightward.isdisjoint(line):
            mixed |= leftward.intersection(line)
    return mixed


def _find_invisible(text: str) -> set[str]:
    # Each character is judged once, however long the text: megabytes of it pass through here.
    return {char for char in set(text) if is_invisible(char)}


def _replace_invisible(text: str, write: Callable[[str], str]) -> str:
    if "\ufe0e" in text or "\ufe0f" in text:  # Without one, nobody waits for the slow search.
        text = _STRAY_SELECTOR.sub(lambda found: write(found[0]), text)
    return _translate(text, {ord(char): write(char) for char in _find_invisible(text)})


_PIECE = 50_000
"""Characters that are translated at once: others wait some milliseconds for that."""


def _translate(text: str, written: Mapping[int, str]) -> str:
    """`str.translate`, piece by piece: some megabytes would keep every other thread waiting for half a second."""
    if not written:
        return text
    return "".join(text[at : at + _PIECE].translate(written) for at in range(0, len(text), _PIECE))


def _list(chars: Iterable[str]) -> str:
    names = [_name(char) for char in sorted(chars)]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _name(char: str) -> str:
    return f"U+{ord(char):04X}"


def show_for_terminal(text: str) -> str:
    """The text with every character written out that would move a terminal's cursor, colour it, or stay unseen."""
    return show_invisible(text).replace("\r\n", "\n").replace("\r", "⟨U+000D⟩")
