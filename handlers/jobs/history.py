"""Asks GitHub whether a commit is really on a branch, and which branch a pull request goes to.

GitHub also serves the commits of forks from the parent repository, so a commit that can be fetched there may be
anybody's. It is on a branch only if it is an ancestor of the branch's newest commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from handlers.ports import GitHub, GitHubError, GitHubUnavailable, NotFound
from handlers.rules import RepositoryRules
from runner.model.environment import NEWEST
from runner.model.history import HistoryError
from runner.model.job import Job

HEADS = "refs/heads/"

REST = timedelta(seconds=10)
"""How long GitHub is not asked again after it did not answer. Otherwise waiting jobs would ask at each step."""


async def leads_to(github: GitHub, repository: str, commit: str, newest: str) -> bool:
    """Whether `newest` is `commit` or a descendant of `commit`, which may be any text."""
    if commit == newest:
        return True
    try:
        return await github.contains(repository, newest, commit)
    except NotFound:
        return False


async def is_on_branch(github: GitHub, repository: str, branch: str, commit: str) -> bool:
    """Whether a commit is on a branch now. False if `commit` is empty, or if the branch does not exist."""
    newest = await github.fetch_branch_sha(repository, branch) if commit else None
    return newest is not None and await leads_to(github, repository, commit, newest)


async def settle_base_branch(github: GitHub, rules: RepositoryRules, job: Job) -> Job:
    """The job with the branch that its pull request goes to.

    A task can begin on the `environment_branch`, and a worktree on `NEWEST`, the default branch. Their pull requests go
    to the repository's base branch. Both can also begin on a ref in full, such as `refs/heads/main`. Raises what
    `GitHub` raises.
    """
    if job.thread is not None:
        return job
    if job.base_branch not in (NEWEST, rules.environment_branch):
        return replace(job, base_branch=job.base_branch.removeprefix(HEADS))
    branch = rules.base_branch or (await github.fetch_repository(job.repository)).default_branch
    return replace(job, base_branch=branch)


class GitHubHistory:
    """`runner.model.history.History` on GitHub."""

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
            return HistoryError(f"GitHub did not return the base commit: {error}", permanent=True)
        self._reason = f"GitHub cannot be asked for the base commit at the moment: {error}"
        self._rests_until = self._now() + max(REST, timedelta(seconds=error.retry_after_s))
        return HistoryError(self._reason)
