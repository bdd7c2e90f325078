"""Counts this process's failed calls to GitHub's API, by kind, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, get_args

import gidgethub

Kind = Literal["no_answer", "5xx", "rate_limited", "401", "4xx", "3xx"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds. Each has a metric series from the start."""

_NOT_THERE = (404, 410)
"""Statuses that do not count as errors, because some calls only ask whether something exists."""


def find_kind(error: Exception) -> Kind | None:
    """The kind of error with which a request ended. None if the end of the request does not count as an error. Pure."""
    if not isinstance(error, gidgethub.HTTPException):
        return "no_answer"
    status = int(error.status_code)
    if status in _NOT_THERE:
        return None
    if status == 401:
        return "401"
    return "5xx" if status >= 500 else "4xx" if status >= 400 else "3xx"


class ErrorCounter:
    """Counts errors by kind. It is not thread-safe: only the event loop's thread uses it."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter(dict.fromkeys(KINDS, 0))

    def count(self, kind: Kind | None) -> None:
        """Count the end of one attempt, even if the call is repeated."""
        if kind is not None:
            self._counted[kind] += 1

    def read(self) -> Mapping[str, int]:
        """The number of errors of each kind."""
        return dict(self._counted)


GITHUB_ERRORS = ErrorCounter()
"""The counter of this process."""
