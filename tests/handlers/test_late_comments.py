"""GitHub may store a comment after its sender has died, or given up: it is not posted twice for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from handlers.context import Context
from handlers.effects.drain import drain
from handlers.effects.outbox import SETTLES, Comments, reply_once
from handlers.ports import Comment, GitHub, GitHubError, GitHubUnavailable, WritePriority
from tests.support.clock import Clock
from tests.support.jobs import open_database
from tests.support.model_github import ModelGitHub

NAME, ISSUE = "octo/widgets", 7


class LateGitHub(ModelGitHub):
    """It stores comments some time after they were sent, and nobody hears of it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.sent = list[tuple[datetime, str]]()
        self.takes_s: float | None = None
        """None: it answers, at once."""
        self.error: BaseException = GitHubUnavailable("the connection was lost")

    async def create_comment(
        self, repository: str, issue_number: int, body: str, priority: WritePriority = WritePriority.REPLY
    ) -> Comment:
        if self.takes_s is None:
            return await super().create_comment(repository, issue_number, body, priority)
        self.sent.append((self.clock() + timedelta(seconds=self.takes_s), body))
        raise self.error

    async def list_comments(
        self, repository: str, issue_number: int, since: datetime | None = None
    ) -> AsyncIterator[Comment]:
        self.store()
        async for comment in super().list_comments(repository, issue_number, since):
            yield comment

    def store(self) -> None:
        for at, body in [*self.sent]:
            if at <= self.clock():
                self.sent.remove((at, body))
                self._post(ISSUE, body)


class Desk:
    def __init__(self, context: Context, github: LateGitHub, clock: Clock) -> None:
        self.context, self.github, self.clock = context, github, clock

    async def look(self, *, after_s: float = 0) -> int:
        """A pass of the outbox; how many comments were ever posted."""
        self.clock.forward(after_s)
        with suppress(asyncio.CancelledError):
            await drain(Comments(self.context))
        self.github.store()
        return len(self.github.posted)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_database(tmp_path) as database:
        clock = Clock()
        github = LateGitHub(clock)
        context = Context(cast(GitHub, github), database, {}, {}, "https://ptq", (), clock, lambda: None)
        await reply_once(context, NAME, ISSUE, "a question", "An answer.")
        yield Desk(context, github, clock)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GitHubUnavailable("the connection was lost")])
async def test_a_comment_that_github_stores_late_is_found_and_not_posted_again(
    desk: Desk, error: BaseException
) -> None:
    desk.github.takes_s, desk.github.error = 5, error
    assert await desk.look() == 0
    desk.github.takes_s = None
    assert await desk.look(after_s=3) == 0, "it may be on its way"
    assert await desk.look(after_s=SETTLES.total_seconds()) == 1
    assert await desk.look(after_s=3600) == 1
    (comment,) = desk.github.threads[ISSUE]
    assert "An answer." in comment.body


async def test_a_comment_that_never_got_through_is_posted_once_that_is_sure(desk: Desk) -> None:
    desk.github.takes_s = 10**9
    assert await desk.look() == 0
    assert await desk.look(after_s=3) == 0
    assert await desk.look(after_s=SETTLES.total_seconds()) == 0, "sent again, and lost again"
    desk.github.takes_s = None
    assert await desk.look(after_s=5) == 0, "the second attempt may be on its way as well"
    assert await desk.look(after_s=SETTLES.total_seconds()) == 1
    assert await desk.look(after_s=3600) == 1


async def test_what_github_has_refused_cannot_come_late(desk: Desk) -> None:
    desk.github.takes_s, desk.github.error = 10**9, GitHubError(403, "no")
    assert await desk.look() == 0
    desk.github.takes_s = None
    assert await desk.look(after_s=60) == 1
