"""Parses strangers' Python. Nothing else in the product gives a stranger's text to Python's own parser. Pure.

The whole process waits while the parser works. So a text for which it needs more than linear time is refused first.
"""

from __future__ import annotations

import ast
import re
import warnings

from runner.characters import has_long_runs

MAX_SOURCE = 200_000
"""Characters of a file that is parsed: Python's parser takes a thousand times as much memory."""

MAX_PARTS = 100
"""Names in a dotted name: CPython copies the name of an import again for each of its parts
(`_PyPegen_join_names_with_dot`)."""

MAX_BRACES = 2_000
"""Opening braces in a file with f-strings: for each field, CPython 3.11 reads its string again from the beginning
(`fstring_find_expr_location`)."""

MAX_TOKENS = 80_000
"""Words and signs in a file. Real files have up to 77,000 in `MAX_SOURCE` characters. A file of signs has 200,000, and
takes a second to parse."""

_TOKEN = re.compile(r"\w++|[^\w\s]|\n")
_BLANK = r"(?:[ \t\f]|\\\r?\n?)*+"
_LETTER = r"[0-9A-Za-z_\x80-\U0010ffff]"
_NAME = rf"(?<!{_LETTER}){_LETTER}++"
_DOTTED = re.compile(rf"{_NAME}(?:{_BLANK}\.{_BLANK}{_NAME})++")
_F_STRING = re.compile(r"(?:[fF][rR]?|[rR][fF])[\"']")


def parse(source: str) -> ast.Module | None:
    """The syntax tree; None if it is not Python, or is designed to keep the parser busy."""
    if len(source) > MAX_SOURCE or _is_slow(source):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_slow(source: str) -> bool:
    if sum(1 for _ in _TOKEN.finditer(source)) > MAX_TOKENS:
        return True
    if source.count("{") > MAX_BRACES and _F_STRING.search(source):
        return True
    if any(found[0].count(".") >= MAX_PARTS for found in _DOTTED.finditer(source)):
        return True
    return has_long_runs(source)
