"""A host of repositories that knows a few commits of each base branch."""

from __future__ import annotations

from runner.model.history import HistoryError


class ModelHistory:
    """Every branch has these commits, the newest first; with `fault` set, it answers nothing but that.

    `others` are branches with commits of their own.
    """

    def __init__(self, *commits: str) -> None:
        self.commits = [*commits]
        self.others: dict[str, list[str]] = {}
        self.fault: HistoryError | None = None

    async def fetch_newest(self, repository: str, branch: str) -> str | None:
        self._answer()
        commits = self.others.get(branch, self.commits)
        return commits[0] if commits else None

    async def leads_to(self, repository: str, commit: str, newest: str) -> bool:
        self._answer()
        return any(commit in commits and newest in commits for commits in (self.commits, *self.others.values()))

    def _answer(self) -> None:
        if self.fault:
            raise self.fault
