"""The blocks of a brief that hold what an earlier attempt wrote. Pure."""

from __future__ import annotations

import re

OF_EARLIER = "of the earlier attempt"
"""Ends the source of each of these blocks."""

_BLOCK = re.compile(rf'<(untrusted-\w+) source="[\w.]+ {OF_EARLIER}">\n.*?\n</\1>', re.DOTALL)


def drop_earlier(brief: str) -> str:
    """A brief without these blocks. No text in it can pretend to be one, because `handlers.jobs.brief` fences it."""
    return _BLOCK.sub("", brief)
