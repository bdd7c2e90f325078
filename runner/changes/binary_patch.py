"""Checks that the body of a binary patch decodes to the proposed content. Pure.

The form is that of git's `diff.c` (`emit_binary_diff_body`) and `apply.c`: one hunk for each direction. A hunk is
`literal` or `delta` with a length, then lines of Base85 with a zlib stream, and an empty line.
"""

from __future__ import annotations

import base64
import re
import string
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby

_HEAD = re.compile("(literal|delta) ([0-9]{1,10})")
_LENGTHS = {letter: length for length, letter in enumerate(string.ascii_uppercase + string.ascii_lowercase, 1)}
_MORE = 1_000
"""Bytes by which a delta may be longer than its result; git uses a delta only if it is shorter."""

_MAX_SHIFT = 63
"""Bits of a size in a delta."""


def check_body(lines: Sequence[str], before: bytes | None, after: bytes) -> bool:
    """Whether these lines turn `before` into `after`, and the reverse.

    Without `before`, only the parts that do not depend on it are checked.
    """
    hunks = [[*group] for is_text, group in groupby(lines, bool) if is_text]
    if len(hunks) != 2 or [line for hunk in hunks for line in (*hunk, "")] != [*lines]:
        return False
    sides = [(before, after), (after, before)]
    return all(_leads_to(hunk, *side) for hunk, side in zip(hunks, sides, strict=True))


def _leads_to(hunk: Sequence[str], source: bytes | None, target: bytes | None) -> bool:
    head = _HEAD.fullmatch(hunk[0])
    if head is None:
        return False
    is_delta, length = head[1] == "delta", int(head[2])
    if target is not None and length > len(target) + _MORE * is_delta:
        return False
    try:
        packed = b"".join(map(_decode_line, hunk[1:]))
        if target is None:  # Only the base commit tells its size.
            return True
        inflater = zlib.decompressobj()
        data = inflater.decompress(packed, length + 1)
        if len(data) != length or not inflater.eof or inflater.unused_data:
            return False
        if is_delta:
            return source is None or b"".join(_apply_delta(data, source, len(target))) == target
        return data == target
    except (ValueError, LookupError, zlib.error):
        return False


def _decode_line(line: str) -> bytes:
    length = _LENGTHS[line[0]]
    if len(line) - 1 != -(-length // 4) * 5:
        raise ValueError("a line has another length than it says")
    decoded = base64.b85decode(line[1:])
    if any(decoded[length:]):
        raise ValueError("a line holds more than it says")
    return decoded[:length]


def _apply_delta(delta: bytes, source: bytes, length: int) -> Iterator[bytes]:
    """Apply a delta of a pack file (gitformat-pack(5), "Deltified representation").

    Raises ValueError and LookupError.
    """
    at, sizes = 0, []
    for _ in range(2):
        size, shift = 0, 0
        while True:
            byte, at = delta[at], at + 1
            size, shift = size | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80 or shift > _MAX_SHIFT:
                break
        sizes.append(size)
    if sizes != [len(source), length]:
        raise ValueError("the delta is of another content")
    left = length
    while at < len(delta):
        byte, at = delta[at], at + 1
        if byte < 0x80:
            part, at = delta[at : at + byte], at + byte
            size = byte
        else:
            values = [0, 0]
            for bit in range(7):
                if byte & 1 << bit:
                    values[bit >= 4] |= delta[at] << 8 * (bit % 4 if bit < 4 else bit - 4)
                    at += 1
            size = values[1] or 0x10000
            part = source[values[0] : values[0] + size]
        left -= len(part)
        if not size or len(part) != size or left < 0:
            raise ValueError("the delta does not fit")
        yield part
    if left:
        raise ValueError("the delta ends early")
