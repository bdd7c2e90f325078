"""What GitHub says of a branch, and what is made of its silence."""

from __future__ import annotations

from typing import Any, cast

import pytest

from handlers.jobs.history import GitHubHistory, is_on_branch
from handlers.ports import GitHub, GitHubError, GitHubUnavailable, NotFound
from runner.model.history import HistoryError
from tests.support.clock import Clock

NEWEST, OLDER, STRANGERS = "aa" * 20, "bb" * 20, "cc" * 20


class Branches:
    """One branch of two commits, in a repository that also has a stranger's."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.asked = 0

    async def fetch_branch_sha(self, repository: str, branch: str) -> str | None:
        self.asked += 1
        if self.fault:
            raise self.fault
        return NEWEST if branch == "main" else None

    async def contains(self, repository: str, commit: str, ancestor: str) -> bool:
        if ancestor not in (NEWEST, OLDER, STRANGERS):
            raise NotFound(404, "Not Found")
        return (commit, ancestor) == (NEWEST, OLDER)


@pytest.mark.parametrize(
    ("branch", "commit", "is_on"),
    [
        *(("main", NEWEST, True), ("main", OLDER, True)),
        *(("main", STRANGERS, False), ("main", "dd" * 20, False), ("main", "", False), ("gone", OLDER, False)),
    ],
)
async def test_a_commit_is_on_a_branch_only_where_its_newest_comes_after_it(
    branch: str, commit: str, is_on: bool
) -> None:
    assert await is_on_branch(cast(GitHub, Branches()), "octo/widgets", branch, commit) is is_on


@pytest.mark.parametrize(
    ("fault", "permanent"),
    [(GitHubUnavailable("GitHub answered 502", 60.0), False), (GitHubError(403, "suspended"), True)],
)
async def test_what_github_does_not_answer_is_told_apart_from_what_it_refuses(fault: Any, permanent: bool) -> None:
    branches = Branches()
    branches.fault = fault
    with pytest.raises(HistoryError) as caught:
        await GitHubHistory(cast(GitHub, branches), Clock()).fetch_newest("octo/widgets", "main")
    assert caught.value.permanent is permanent
    assert str(fault) in str(caught.value)


async def test_a_silent_github_is_left_alone_for_as_long_as_it_asks() -> None:
    branches, clock = Branches(), Clock()
    history = GitHubHistory(cast(GitHub, branches), clock)
    branches.fault = GitHubUnavailable("its rate limit", 60.0)
    for _ in range(5):
        with pytest.raises(HistoryError, match="its rate limit"):
            await history.fetch_newest("octo/widgets", "main")
    assert branches.asked == 1
    branches.fault = None
    clock.forward(61)
    assert await history.fetch_newest("octo/widgets", "main") == NEWEST
