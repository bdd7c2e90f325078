"""How often strangers are answered, and that people with rights always are."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from gidgethub import sansio
from sqlalchemy import func, select
from structlog.testing import capture_logs

from handlers.commands.table import parse_commands
from handlers.context import Context
from handlers.effects.strangers import MAX_PER_ACCOUNT, MAX_PER_STRANGER, is_answered
from handlers.ports import Comment, GitHub
from handlers.rules import RepositoryRules
from handlers.triggers.router import ROUTER
from handlers.words.replies import render_quoted_mail
from runner.db.schema import replies
from tests.handlers.asked import NAME, render_commented, render_payload
from tests.support.clock import Clock
from tests.support.jobs import open_database
from tests.support.model_github import ModelGitHub

RULES = RepositoryRules(NAME, "mine", labels={"ptq": "fix"})


class Installation:
    """A repository in which a test comments and labels."""

    def __init__(self, context: Context, github: ModelGitHub, clock: Clock) -> None:
        self.context, self.github, self.clock = context, github, clock
        self._ids = (f"id-{number}" for number in count())

    async def comment(self, issue: int, body: str, by: str) -> None:
        now = self.clock()
        comment = Comment(self.github.next_id(), by, body, now, now, f"https://github/{self.github.next_id()}")
        await self._deliver("issue_comment", render_commented(issue, comment))

    async def label(self, issue: int, by: str, **changes: object) -> None:
        payload = render_payload(issue, by, self.clock(), action="labeled", label={"name": "ptq"})
        await self._deliver("issues", payload | changes)

    async def count(self) -> int:
        async with self.context.db.read() as connection:
            return int((await connection.execute(select(func.count()).select_from(replies))).scalar_one())

    async def list_replies(self) -> list[str]:
        async with self.context.db.read() as connection:
            return [*(await connection.execute(select(replies.c.body))).scalars()]

    async def _deliver(self, event: str, payload: dict[str, object]) -> None:
        await ROUTER.dispatch(sansio.Event(payload, event=event, delivery_id=next(self._ids)), self.context)


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    async with open_database(tmp_path) as database:
        clock = Clock()
        github = ModelGitHub(clock)
        github.writers.add("boss")
        context = Context(cast(GitHub, github), database, {NAME: RULES}, {}, "https://ptq", (), clock, lambda: None)
        yield Installation(context, github, clock)


async def test_a_stranger_with_commands_on_many_issues_gets_a_few_replies_an_hour(installation: Installation) -> None:
    for issue in range(1, 11):
        for command in ("status", "help", "fix"):
            await installation.comment(issue, f"/ptq {command}", "stranger")
        await installation.label(issue, "Stranger")
    assert await installation.count() == MAX_PER_STRANGER
    installation.clock.forward(3600)
    await installation.comment(1, "/ptq status", "stranger")
    assert await installation.count() == MAX_PER_STRANGER, "it was answered before"
    await installation.comment(10, "/ptq status", "stranger")
    assert await installation.count() == MAX_PER_STRANGER + 1


@pytest.mark.slow
async def test_github_is_asked_about_a_stranger_a_few_times_an_hour_however_much_they_write(
    installation: Installation,
) -> None:
    for minute in range(60):
        for _ in range(5):
            await installation.comment(1, f"/ptq help {minute}", "Stranger")
        installation.clock.forward(60)
    assert len(installation.github.roles_asked) <= 12


async def test_somebody_who_was_refused_is_obeyed_as_soon_as_they_get_the_right(installation: Installation) -> None:
    await installation.comment(1, "/ptq fix", "newcomer")
    installation.github.writers.add("newcomer")
    await installation.comment(1, "/ptq cancel", "newcomer")
    assert [reply for reply in await installation.list_replies() if "No job is running" in reply]


async def test_a_command_that_gets_no_reply_is_in_the_log(installation: Installation) -> None:
    with capture_logs() as lines:
        for issue in range(1, MAX_PER_STRANGER + 3):
            await installation.comment(issue, "/ptq help", "stranger")
    unanswered = [line for line in lines if line["event"] == "request.not_answered"]
    assert [(line["by"], line["issue"]) for line in unanswered] == [("stranger", 6), ("stranger", 7)]


async def test_many_strangers_get_a_limited_number_of_replies_together(installation: Installation) -> None:
    for number in range(MAX_PER_ACCOUNT + 5):
        await installation.comment(1, "/ptq help", f"stranger-{number}")
    assert await installation.count() == MAX_PER_ACCOUNT


@pytest.mark.slow
async def test_people_with_rights_are_answered_however_many_strangers_were(installation: Installation) -> None:
    for number in range(MAX_PER_ACCOUNT + 5):
        await installation.comment(1, "/ptq help", f"stranger-{number}")
    for issue in range(1, 21):
        await installation.comment(issue, "/ptq status", "boss")
    assert await installation.count() == MAX_PER_ACCOUNT + 20


async def test_people_with_rights_are_told_why_a_command_above_a_mail_was_ignored_and_nobody_else(
    installation: Installation,
) -> None:
    mail = "От: drive-by <notifications@github.com>\n\n/ptq cancel"
    for login in ("stranger", "boss"):
        await installation.comment(1, mail, login)
        await installation.comment(1, f"Thanks!\n\n{mail}", login)
    await installation.comment(1, f"/ptq status\n\n{mail}", "stranger")
    assert await installation.list_replies() == []
    await installation.comment(1, f"/ptq status\n\n{mail}", "boss")
    (reply,) = await installation.list_replies()
    assert render_quoted_mail() in reply


async def test_requests_in_a_repository_without_configuration_share_the_limit(installation: Installation) -> None:
    for number in range(MAX_PER_STRANGER + 2):
        other = {"full_name": f"octo/other-{number}", "private": False, "default_branch": "main", "clone_url": ""}
        await installation.label(1, "stranger", repository=other)
    assert await installation.count() == MAX_PER_STRANGER


@pytest.mark.slow
async def test_a_strangers_edit_costs_one_reading_of_the_comment(installation: Installation) -> None:
    slow, ratios = "<*[*\n" * 795 + "\n/ptq help", list[float]()
    for number in range(1, 4):  # Another program on this core can make any one of them slow.
        began = time.thread_time()
        assert parse_commands(slow)
        once = time.thread_time() - began
        comment = Comment(number, "stranger", slow, installation.clock(), installation.clock(), "https://github/1")
        payload = render_commented(1, comment) | {"action": "edited", "changes": {"body": {"from": slow + " now"}}}
        began = time.thread_time()
        await installation._deliver("issue_comment", payload)
        ratios.append((time.thread_time() - began) / once)
    assert min(ratios) < 1.7, ratios


def test_the_limits_are_for_one_login_and_for_one_account() -> None:
    assert is_answered("eve", "octo", [])
    assert not is_answered("eve", "octo", [("octo", "eve")] * MAX_PER_STRANGER)
    assert not is_answered("eve", "octo", [("elsewhere", "eve")] * MAX_PER_STRANGER)
    assert is_answered("ann", "octo", [("octo", "eve")] * MAX_PER_STRANGER)
    crowd = [("octo", f"bot-{number}") for number in range(MAX_PER_ACCOUNT)]
    assert not is_answered("eve", "octo", crowd)
    assert is_answered("eve", "elsewhere", crowd)
