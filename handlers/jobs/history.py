"""What GitHub says of a repository's history: whether a commit is really on a branch.

GitHub serves the commits of every fork out of the repository that they were forked from, so that a commit which can be
fetched there may belong to anybody. It is on a branch only where the branch's newest commit comes after it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from handlers.ports import GitHub, GitHubError, GitHubUnavailable, NotFound
from runner.model.history import HistoryError

REST = timedelta(seconds=10)
"""How long GitHub is left alone after it did not answer: jobs that wait would ask at each of their steps."""


async def leads_to(github: GitHub, repository: str, commit: str, newest: str) -> bool:
    """Whether `newest` is this commit or comes after it. `commit` may be any name, also of nothing that exists."""
    if commit == newest:
        return True
    try:
        return await github.contains(repository, newest, commit)
    except NotFound:
        return False


async def is_on_branch(github: GitHub, repository: str, branch: str, commit: str) -> bool:
    """Whether a branch has a commit just now. False for an empty name, and where there is no such branch."""
    newest = await github.fetch_branch_sha(repository, branch) if commit else None
    return newest is not None and await leads_to(github, repository, commit, newest)


class GitHubHistory:
    """`runner.model.history.History`, by GitHub's word."""

    def __init__(self, github: GitHub, now: Callable[[], datetime]) -> None:
        self._github = github
        self._now = now
        self._rests_until: datetime | None = None
        self._reason = ""

    async def fetch_newest(self, repository: str, branch: str) -> str | None:
        """See `History`."""
        self._require_awake()
        try:
            return await self._github.fetch_branch_sha(repository, branch)
        except (GitHubError, GitHubUnavailable) as error:
            raise self._note(error) from None

    async def leads_to(self, repository: str, commit: str, newest: str) -> bool:
        """See `History`."""
        self._require_awake()
        try:
            return await leads_to(self._github, repository, commit, newest)
        except (GitHubError, GitHubUnavailable) as error:
            raise self._note(error) from None

    def _require_awake(self) -> None:
        if self._rests_until and self._now() < self._rests_until:
            raise HistoryError(self._reason)

    def _note(self, error: GitHubError | GitHubUnavailable) -> HistoryError:
        if isinstance(error, GitHubError):
            return HistoryError(f"GitHub does not say which commit to begin from: {error}", permanent=True)
        self._reason = f"GitHub cannot be asked just now which commit to begin from: {error}"
        self._rests_until = self._now() + max(REST, timedelta(seconds=error.retry_after_s))
        return HistoryError(self._reason)
