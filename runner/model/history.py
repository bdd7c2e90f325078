"""The history of a repository as its host tells it: which commit a job begins from is not for its machine to say.

A host stores what strangers push to forks in the same place, so that a commit which exists there may still be nobody's
but a stranger's. What asks the host is a floor above.
"""

from __future__ import annotations

from typing import Protocol


class HistoryError(Exception):
    """The host of a repository did not answer. The message is a clause for people.

    `permanent` says that it never will: the job that needs the answer fails. Otherwise the job waits.
    """

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class History(Protocol):
    """What the host of repositories says just now. Both methods raise `HistoryError`."""

    async def fetch_newest(self, repository: str, branch: str) -> str | None:
        """The full name of the newest commit of a branch; None when there is no such branch."""

    async def leads_to(self, repository: str, commit: str, newest: str) -> bool:
        """Whether `newest` is this commit or comes after it; False where there is no such commit."""
