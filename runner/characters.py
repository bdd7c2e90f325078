"""Characters that people cannot see: which they are, and how texts are shown, compared and stored. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping

MAX_GAP = 80
"""After this many columns of blanks in a line, readers do not look for more text. Blanks at the beginning count."""

_TAB = 8
"""The distance between tab stops on a page that shows a diff, in columns."""

_GAPS = re.compile(rf"[ \t]{{{_TAB},}}|[ \t]*\t[ \t]*")
"""Runs of blanks that may be as wide as a tab. Narrower runs do not count: texts and tables need them."""

MAX_LINE = 1_000
"""The most characters of a line that people read."""

_VISIBLE_CONTROLS = frozenset("\t\n\r")
_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""The categories of invisible characters: control, format (zero-width and bidirectional characters, tags, the soft
hyphen), private use, surrogates, and the line and paragraph separators, which only some programs treat as line ends."""

_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_LEFTWARD = frozenset({"R", "AL"})
_RIGHTWARD = frozenset({"L", "EN"})
"""The bidirectional classes (Unicode Standard Annex 9) of right-to-left letters, such as Hebrew and Arabic, and of
left-to-right letters and digits. A line with both may show signs and numbers in another place."""

_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2065\u2800\u3164\uffa0\U00013441\U00013442\U00016fe4\U0001d159")
"""Characters that are drawn as nothing, although their category is one of visible characters."""

_RANGES = (
    ("\u180b", "\u180f"),  # variation selectors of Mongolian
    ("\ufe00", "\ufe0d"),  # variation selectors that people have hidden text in; for U+FE0E and U+FE0F: _STRAY_SELECTOR
    ("\ufff0", "\ufff8"),  # reserved for more invisible characters (Default_Ignorable_Code_Point)
    ("\U000e0000", "\U000e0fff"),  # tags, and more variation selectors
)

_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2194-\u21aa\u231a-\u23fa\u24c2\u25aa-\u25fe\u2600-\u27bf\u2934\u2935"
    "\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
"""Symbols that a variation selector shows as an emoji or as text. A selector after one of them counts as visible. The
list contains no letters, so a selector in a name never counts as visible: Python treats names with and without a
selector as different."""

_STRAY_SELECTOR = re.compile(f"[\ufe0e\ufe0f](?<![{_EMOJI}].)(?!(?<=[0-9#*]\ufe0f)\u20e3)")
"""A selector that neither follows a symbol in `_EMOJI` nor is in a keycap emoji (such as 1, U+FE0F, U+20E3)."""


def is_invisible(char: str) -> bool:
    """Whether a reader does not see this character, or sees other characters in a wrong order because of it.

    U+FE0E and U+FE0F count as visible here. The functions for a whole text treat them as invisible if they do not
    follow an emoji.
    """
    if char in _VISIBLE_CONTROLS:
        return False
    ignorable = char in _BLANK or any(first <= char <= last for first, last in _RANGES)
    return ignorable or unicodedata.category(char) in _CATEGORIES


def drop_invisible(text: str) -> str:
    """The text without its invisible characters. Callers use it to compare texts by how they look."""
    return _replace_invisible(text, lambda char: "")


def normalise_newlines(text: str) -> str:
    """The text with a line feed at the end of each line. An old Mac's line ends count, too, as in CommonMark."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""The sequences by which programs colour and move what they write to a terminal (ECMA-48, 5.4)."""


def drop_colours(text: str) -> str:
    """The text without terminal control sequences."""
    return _COLOURS.sub("", text)


_NORMALISED = re.compile(r"[^ \t\n]{1,255}")
"""The pieces of a text that are normalised one by one. A file name has at most 255 bytes, so it fits into one piece."""


def unify(text: str) -> str:
    """Give characters that look the same one spelling (NFKC).

    The text is normalised piece by piece, because NFKC of a long run of combining characters takes quadratic time, and
    nothing can interrupt it.
    """
    if text.isascii():
        return text
    return _NORMALISED.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)


def has_long_runs(text: str) -> bool:
    """Whether a text has so many combining characters in a row that normalising it takes long.

    Python's own parser normalises names.
    """
    if text.isascii():
        return False
    combining = [char for char in set(text) if unicodedata.combining(unicodedata.normalize("NFKD", char)[0])]
    return bool(combining) and re.search(f"[{''.join(combining)}]{{256}}", text) is not None


def is_lookalike(char: str) -> bool:
    """Whether this character looks like a plain space, or is unassigned, so that readers see only a box.

    Some languages use other spaces than the plain one, so only `escape_invisible`, for diffs, writes them out.
    """
    return char != " " and unicodedata.category(char) in ("Zs", "Cn")


def show_invisible(text: str) -> str:
    """The text with every invisible character written out, as `⟨U+202E⟩`."""
    return _replace_invisible(text, lambda char: f"⟨{_name(char)}⟩")


MAX_SHOWN = 300
"""The most characters of a path, or of other people's text, in one of ptq-bot's sentences."""

_NO_CODE = {ord("`"): "\u02bc", **{ord(char): f"\u27e8U+{ord(char):04X}\u27e9" for char in "\t\n\r"}}
"""Replacements for the characters that would end a code span or its line."""


def show_path(path: str) -> str:
    """A path, or other people's text, as a code span on one line, for one of ptq-bot's sentences."""
    shown = show_invisible(path[: MAX_SHOWN + 1]).translate(_NO_CODE)  # Cut first: a machine may send megabytes.
    return f"`{shown}`" if len(shown) <= MAX_SHOWN else f"`{shown[:MAX_SHOWN]}…`"


# Writing characters out so that they can be read back

_BYTES = 0x10FF00
"""`_BYTES + n` is the stand-in for the byte n, if it is NUL or not part of valid UTF-8. The stand-ins are in the last
private-use plane, and databases accept them. If a file itself contains such a character, each of the character's bytes
becomes a stand-in."""

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
    """Decode bytes to a text that a database can hold. Different bytes always give different texts.

    Valid UTF-8 is decoded as usual. Every other byte, and NUL, becomes a stand-in. `escape_invisible` writes it as
    `⟨0xE9⟩`.
    """
    text = content.decode(errors="surrogateescape")
    return _translate(text, _STAND_INS) if _UNSTOREABLE.search(text) else text


def encode_exactly(text: str) -> bytes:
    """The bytes that `decode_exactly` decoded to this text."""
    return _translate(text, _RAW_BYTES).encode(errors="surrogateescape")


def drop_cut_character(text: str) -> str:
    """The text without an incomplete character at its end: git cuts text after a number of bytes."""
    return _CUT_CHARACTER.sub("", text)


def escape_invisible(text: str) -> str:
    """Write out everything in a text that a reader would not see. `unescape_invisible` restores the text.

    Four kinds of characters become codes such as `⟨U+202E⟩`: invisible characters, spaces other than the plain one,
    characters that Unicode has not assigned, and carriage returns without a line feed, because some programs end a line
    there. The stand-in of a byte (`decode_exactly`) becomes `⟨0xE9⟩`. If the text itself contains `⟨U+` or `⟨0x`, the
    bracket is written out. The number of lines that end with `\\n` does not change.
    """
    text = _translate(_MARK_BEGUN.sub("\u27e8U+27E8\u27e9", text), _WRITTEN_BYTES)
    text = show_invisible(text)
    text = _translate(text, {ord(char): f"\u27e8{_name(char)}\u27e9" for char in set(text) if is_lookalike(char)})
    return _BARE_RETURN.sub(_WRITTEN_RETURN, text)


def unescape_invisible(text: str) -> str:
    """The text that `escape_invisible` changed to this one."""
    return _MARK.sub(lambda found: chr(int(found[1], 16) if found[1] else _BYTES + int(found[2], 16)), text)


def make_storable(text: str) -> str:
    """Replace the characters that a database refuses: those that UTF-8 cannot encode, and for PostgreSQL also NUL."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def name_oddities(text: str) -> list[str]:
    """List what a reader of `text` would miss, as phrases for people.

    That is: characters that are invisible or change the order of others, lines with text in both directions, carriage
    returns that end a line only for some programs, text far to the right, and lines too long to read.
    """
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
    """The place in a line where text begins that readers do not look for, because it is too far to the right.

    The gaps before it are at least `MAX_GAP` columns wide in total. None if there is no such text.
    """
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
    """The right-to-left letters in lines that also have left-to-right letters or digits."""
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
    # Only different characters are checked, because a text can have megabytes.
    return {char for char in set(text) if is_invisible(char)}


def _replace_invisible(text: str, write: Callable[[str], str]) -> str:
    if "\ufe0e" in text or "\ufe0f" in text:  # The search is slow, and few texts need it.
        text = _STRAY_SELECTOR.sub(lambda found: write(found[0]), text)
    return _translate(text, {ord(char): write(char) for char in _find_invisible(text)})


_PIECE = 50_000
"""The characters that are translated at once. Other threads wait some milliseconds for each piece."""


def _translate(text: str, written: Mapping[int, str]) -> str:
    """`str.translate`, piece by piece. Some megabytes at once would make all other threads wait for half a second."""
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
    """Write out every character that is invisible, moves a terminal's cursor, or changes the terminal's colours."""
    return show_invisible(text).replace("\r\n", "\n").replace("\r", "⟨U+000D⟩")
