"""Counts the calls of GitHub's API that came to nothing in this process, by kind: for whoever watches us."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, get_args

import gidgethub

Kind = Literal["no_answer", "5xx", "rate_limited", "401", "4xx", "3xx"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Every one there is: a series for each is there from the start."""

_NOT_THERE = (404, 410)
"""What is not there was asked for to find that out."""


def find_kind(error: Exception) -> Kind | None:
    """What kind of error a request ended with; None for an answer like any other. Pure."""
    if not isinstance(error, gidgethub.HTTPException):
        return "no_answer"
    status = int(error.status_code)
    if status in _NOT_THERE:
        return None
    if status == 401:
        return "401"
    return "5xx" if status >= 500 else "4xx" if status >= 400 else "3xx"


class ErrorCounter:
    """Of the event loop's thread."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter(dict.fromkeys(KINDS, 0))

    def count(self, kind: Kind | None) -> None:
        """A call ended so, also where it is tried again."""
        if kind is not None:
            self._counted[kind] += 1

    def read(self) -> Mapping[str, int]:
        """How often each kind came."""
        return dict(self._counted)


GITHUB_ERRORS = ErrorCounter()
"""Of this process."""
