"""People who look at pages do not use up what the service may ask GitHub."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from bot.github.limits import Left, parse_left
from bot.web.auth.page_budget import CALLS_OF_PERSON, CALLS_PER_REPOSITORY, find_refresh_s
from bot.web.auth.sessions import Visitor
from bot.web.auth.visibility import LASTS_S, NONE_LASTS_S, NOT_ASKED, Visibility
from handlers.context import Context
from handlers.ports import GitHub
from handlers.rules import RepositoryRules, Role
from runner.model.job import JobKind
from tests.support.clock import Clock
from tests.support.dashboard import HIDDEN, open_dashboard
from tests.support.jobs import NOON
from tests.support.model_github import ModelGitHub
from tests.support.site import make_report

NAMES = ("octo/widgets", "octo/hidden", "acme/tools")


class AskedGitHub(ModelGitHub):
    """Counts the questions, and takes a moment to answer."""

    def __init__(self, now: Clock) -> None:
        super().__init__(now)
        self.asked = Counter[str]()

    async def fetch_role(self, repository: str, login: str) -> Role:
        self.asked[repository] += 1
        await asyncio.sleep(0.01)
        return await super().fetch_role(repository, login)


class PageReader:
    """What decides who sees what, and what it asks."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.github = AskedGitHub(self.clock)
        self.left = list[tuple[str, Left]]()
        rules = {name: RepositoryRules(name, "mine") for name in NAMES}
        context = Context(
            cast(GitHub, self.github), cast(Any, None), rules, {}, "https://ptq", (), self.clock, lambda: None
        )
        self.visibility = Visibility(context, public=True, by_address=False, list_left=lambda: self.left, **options)

    async def look(self, login: str = "bob") -> set[str]:
        """The repositories that somebody's list shows."""
        return {*(await self.visibility.find_scope(Visitor(login))).read}

    def warns(self, login: str | None = "bob", *, is_operator: bool = False) -> bool:
        return self.visibility.explain_not_asked(Visitor(login, is_operator=is_operator)) == NOT_ASKED


async def test_equal_questions_that_are_open_at_the_same_time_are_asked_once() -> None:
    reader = PageReader(lasts_s=0.0, none_lasts_s=0.0)
    reader.github.writers.add("bob")
    first = asyncio.create_task(reader.look())
    others = [asyncio.create_task(reader.look()) for _ in range(9)]
    await asyncio.sleep(0.001)
    first.cancel()
    assert [await other for other in others] == [{*NAMES}] * 9
    assert reader.github.asked == dict.fromkeys(NAMES, 1)
    await reader.look()
    assert reader.github.asked == dict.fromkeys(NAMES, 2), "nothing is kept here"


async def test_a_question_that_fails_is_asked_again() -> None:
    reader = PageReader()
    reader.github.writers.add("bob")
    reader.github.mishaps = ["refused"]
    assert [await reader.visibility.find_role("bob", NAMES[0]) for _ in range(2)] == [Role.NONE, Role.WRITE]


async def test_no_role_is_kept_for_minutes_and_a_role_for_moments() -> None:
    assert LASTS_S == 30 < NONE_LASTS_S == 300
    reader = PageReader(lasts_s=0.0)
    reader.github.writers.add("alice")
    for _ in range(3):
        await reader.look("alice")
        await reader.look("bob")
    assert reader.github.asked == dict.fromkeys(NAMES, 4), "three times for alice, and once for bob"


async def test_pages_leave_half_of_an_installations_hour_to_the_service() -> None:
    reader = PageReader(lasts_s=0.0)
    reader.github.writers.add("bob")
    ends = NOON + timedelta(minutes=20)
    reader.left = [("Octo", Left("core", 2_499, 5_000, ends)), ("acme", Left("core", 2_500, 5_000, ends))]
    assert (await reader.look(), reader.github.asked) == ({"acme/tools"}, {"acme/tools": 1})
    assert (reader.warns(), reader.warns(None), reader.warns(is_operator=True)) == (True, False, False)
    assert not reader.visibility.may_send_form("bob", "octo/widgets"), "bob may be a stranger"
    reader.visibility.note_allowed("bob", "octo/widgets")
    assert reader.visibility.may_send_form("Bob", "Octo/widgets"), (
        "what people with a right do is the service's own work"
    )
    assert not reader.visibility.may_send_form("bob", "octo/other")
    reader.clock.forward(20 * 60)
    assert await reader.look() == {*NAMES}
    assert not reader.warns()


@pytest.mark.parametrize("left", [Left("search", 0, 30, NOON + timedelta(hours=1)), Left("core", 0, 5_000)])
async def test_other_limits_stop_no_page(left: Left) -> None:
    reader = PageReader()
    reader.github.writers.add("bob")
    reader.left = [("octo", left)]
    assert await reader.look() == {*NAMES}


async def test_one_person_uses_up_only_their_own_part() -> None:
    reader = PageReader(lasts_s=0.0, calls_of_person=7)
    reader.github.writers |= {"bob", "alice"}
    for _ in range(5):
        await reader.look()
    assert (reader.github.asked.total(), await reader.look(), reader.warns()) == (7, set(), True)
    assert not reader.visibility.may_send_form("Bob", NAMES[0])
    assert (await reader.look("alice"), reader.warns("alice")) == ({*NAMES}, False)
    reader.clock.forward(3_600)
    assert (await reader.look(), reader.warns()) == ({*NAMES}, False)


async def test_what_github_says_is_left_has_its_end() -> None:
    headers = {"x-ratelimit-remaining": "12", "x-ratelimit-limit": "60", "x-ratelimit-reset": f"{NOON.timestamp():.0f}"}
    assert parse_left(headers) == Left("core", 12, 60, NOON + timedelta(seconds=1))
    assert parse_left({**headers, "x-ratelimit-reset": "soon"}) == Left("core", 12, 60)


@pytest.mark.slow
async def test_pages_say_that_roles_cannot_be_asked_and_show_what_is_public(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, calls_of_person=0) as dashboard:
        await dashboard.add(make_report(job_id="hidden0001"), id="hidden0001", private=True, repository=HIDDEN)
        await dashboard.add(id="hidden0002", private=True, repository=HIDDEN, kind=JobKind.TASK, series=1, name="task1")
        await dashboard.add(id="public0001")
        async with dashboard.browser("alice") as browser:
            page = await browser.visit("/jobs")
            assert ("public0001" in page.html, "hidden000" in page.html, NOT_ASKED in page.text) == (True, False, True)
            page = await browser.visit("/jobs/public0001")
            assert (page.status, page.text.count(NOT_ASKED)) == (200, 2), "also in place of the log"
            missing = await browser.visit("/jobs/nobody")
            page = await browser.visit("/jobs/hidden0001")
            assert (page.status, NOT_ASKED in page.text) == (404, True)
            assert page.html.replace("hidden0001", "") == missing.html.replace("nobody", ""), "nothing of the job"
            page = await browser.send("/launch", {"csrf": browser.fields("/sign-out")["csrf"], "repository": HIDDEN})
            assert (page.status, "try again in an hour" in page.text) == (503, True)
            unknown = {"csrf": browser.fields("/sign-out")["csrf"], "repository": "octo/unknown"}
            other = await browser.send("/launch", unknown)
            asked, unasked = page.text.replace(HIDDEN, ""), other.text.replace("octo/unknown", "")
            assert (other.status, unasked) == (page.status, asked), "it does not say which are configured"
        async with dashboard.browser("root") as browser:
            page = await browser.visit("/jobs")
            assert ("hidden0001" in page.html, NOT_ASKED in page.text) == (True, False)
        async with dashboard.browser() as browser:
            assert NOT_ASKED not in (await browser.visit("/jobs")).text


async def test_a_question_that_nobody_waits_for_any_more_is_answered_for_the_next() -> None:
    reader = PageReader()
    reader.github.writers.add("bob")
    only = asyncio.create_task(reader.visibility.find_role("bob", NAMES[0]))
    await asyncio.sleep(0.001)
    only.cancel()
    with pytest.raises(asyncio.CancelledError):
        await only
    await asyncio.sleep(0.02)
    assert (await reader.visibility.find_role("bob", NAMES[0]), reader.github.asked.total()) == (Role.WRITE, 1)


async def test_nobody_has_a_role_where_github_gives_no_answer() -> None:
    reader = PageReader()
    reader.github.mishaps = ["refused"] * 3
    assert await reader.look() == set()


@pytest.mark.parametrize(("repositories", "seconds"), [(0, 10), (1, 24), (2, 45), (10, 180), (100, 554)])
def test_a_list_that_is_left_open_uses_at_most_half_of_a_persons_questions(repositories: int, seconds: int) -> None:
    calls = CALLS_OF_PERSON + CALLS_PER_REPOSITORY * repositories
    assert find_refresh_s(repositories, calls) == seconds
    assert repositories * 3600 / seconds <= calls / 2
