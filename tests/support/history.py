"""A host of repositories that knows a few commits of each base branch."""

from __future__ import annotations

from runner.model.history import HistoryError


class ModelHistory:
    """Every branch has these commits, the newest first; with `fault` set, it answers nothing but that."""

    def __init__(self, *commits: str) -> None:
        self.commits = [*commits]
        self.fault: HistoryError | None = None

    async def fetch_newest(self, repository: str, branch: str) -> str | None:
        self._answer()
        return self.commits[0] if self.commits else None

    async def leads_to(self, repository: str, commit: str, newest: str) -> bool:
        self._answer()
        return commit in self.commits

    def _answer(self) -> None:
        if self.fault:
            raise self.fault
