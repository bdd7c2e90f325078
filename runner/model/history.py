"""The interface to a repository's history on its host. `handlers` implements it.

The service asks the host, because a machine must not choose the commit of its jobs. A host stores the commits of forks
in the same place, so a commit that the host knows may be a stranger's.
"""

from __future__ import annotations

import re
from typing import Protocol

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""The form of a commit's full SHA."""


class HistoryError(Exception):
    """The host of a repository did not answer. The message is a clause for people.

    If the error is `permanent`, the job fails. Otherwise the job waits.
    """

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class History(Protocol):
    """Queries to the host. Both methods raise `HistoryError`."""

    async def fetch_newest(self, repository: str, branch: str) -> str | None:
        """The full SHA of the newest commit of a branch. None if there is no such branch."""

    async def leads_to(self, repository: str, commit: str, newest: str) -> bool:
        """Whether `newest` is this commit or a descendant of it. False if there is no such commit."""
