"""Reads JSON of strangers without taking much more memory than it has bytes. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_TOKENS = 200_000
"""Texts, lists, objects and commas. A list of a million empty lists would take 100 MB once it is parsed."""

MAX_DIGITS = 40
"""Digits of an integer: converting one takes time that grows with their square, and no other thread runs meanwhile."""

_AS_ZEROS = bytes(ord("0") if chr(byte).isascii() and chr(byte).isdigit() else byte for byte in range(256))
"""Turns each digit into a zero. A long number is then found by a plain search, which is faster than an expression."""

_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)

SURELY_SMALL = 10_000
"""Bytes that need no counting."""

_OUTSIDE = re.compile(rb'[^"\[{,]{0,65536}+(["\[{,]?)')
"""One of them, or the beginning of a text, with what stands before it."""

_INSIDE = re.compile(rb'(?:[^"\\]{1,4096}+|\\(?:.|\Z)){0,256}+("?)', re.DOTALL)
"""A piece of a text, and its end where it ends there.

Both match at every place and give nothing back, so they are linear. No match is long: during one, no other thread runs.
"""


def parse_bounded(text: bytes) -> Any:
    """What some JSON says.

    Raises `ValueError` for what is no JSON, is nested too deep, or has too many parts or too long integers.
    """
    if len(text) > SURELY_SMALL and not _is_small(text):
        raise ValueError("too many parts")
    try:
        return json.loads(text.decode(), parse_int=_read_integer, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def has_long_number(text: bytes, most_quotes: int) -> bool:
    """Whether a number has more than `MAX_DIGITS` digits in a row. For parsers that ask nobody before they convert it.

    It may also be true of a text with more than `most_quotes` quotation marks, and of what is no JSON.
    """
    digits = text.translate(_AS_ZEROS)
    if _LONG_NUMBER not in digits:
        return False
    outside = leave_out_texts(digits, most_quotes)
    return outside is None or _LONG_NUMBER in outside


def leave_out_texts(text: bytes, most_quotes: int) -> bytes | None:
    """What is outside of the texts of some JSON; None if there are more than `most_quotes` quotation marks.

    It is right up to the first place that is no JSON. A list is made for the quotation marks, so it takes their limit.
    """
    # Without escapes, each quotation mark begins or ends a text.
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > most_quotes:
        return None
    return b'"'.join(plain.split(b'"')[::2])


def _is_small(text: bytes) -> bool:
    """Whether there are few tokens. It stops counting early."""
    position, tokens, is_inside = 0, 0, False
    while position < len(text) and tokens <= MAX_TOKENS:
        found = (_INSIDE if is_inside else _OUTSIDE).match(text, position)
        assert found, "each matches everywhere"
        position = found.end()
        tokens += not is_inside and bool(found[1])
        is_inside = is_inside != (found[1] == b'"')
    return tokens <= MAX_TOKENS


def _read_integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise ValueError("too many digits")
    return int(digits)


def _refuse_constant(name: str) -> Any:
    """NaN and the infinities, which are no JSON (RFC 8259, section 6)."""
    raise ValueError(name)
