"""Removes from a brief the blocks with texts of an earlier attempt. Pure."""

from __future__ import annotations

import re

OF_EARLIER = "of the earlier attempt"
"""The end of the attribute `source` of each of these blocks."""

_BLOCK = re.compile(rf'<(untrusted-\w+) source="[\w.]+ {OF_EARLIER}">\n.*?\n</\1>', re.DOTALL)


def drop_earlier(brief: str) -> str:
    """The brief without these blocks.

    No text in a brief can imitate such a block, because `handlers.jobs.brief` fences every untrusted text.
    """
    return _BLOCK.sub("", brief)
