"""Reads JSON of strangers without taking much more memory than it has bytes. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_TOKENS = 200_000
"""Texts, lists, objects and commas. A list of a million empty lists would take 100 MB once it is parsed."""

SURELY_SMALL = 10_000
"""Bytes that need no counting."""

_TOKEN = re.compile(rb'[^"\[{,]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{,]|\Z)', re.DOTALL)
"""One of them, with what stands before it. It matches at every place and gives nothing back, so it is linear."""


def parse_bounded(text: bytes) -> Any:
    """What some JSON says. Raises `ValueError` for what is no JSON, is nested too deep or has too many parts."""
    if len(text) > SURELY_SMALL and not _is_small(text):
        raise ValueError("too many parts")
    try:
        return json.loads(text.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _is_small(text: bytes) -> bool:
    """Whether there are few tokens. It stops counting early."""
    return all(number <= MAX_TOKENS for number, _ in enumerate(_TOKEN.finditer(text)))


def _refuse_constant(name: str) -> Any:
    """NaN and the infinities, which are no JSON (RFC 8259, section 6)."""
    raise ValueError(name)
