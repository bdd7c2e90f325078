"""What the client asks to find out what was missed: on the stand-in, under the eyes of GitHub's description."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from bot.github import AppGitHub
from handlers.ports import GitHub, GitHubUnavailable, NotFound
from tests.support.scripted_github import FAST, Says, app_key_pem, scripted_github
from tests.support.visitor import APP_ID, NAME, Visitor, open_visitor

DELIVERIES = "/app/hook/deliveries"
NOWHERE = "http://127.0.0.1:1/webhook"


@dataclass
class Place:
    visitor: Visitor
    client: GitHub

    def calls(self, path: str) -> int:
        return sum(exchange.path == path for exchange in self.visitor.github.exchanges)


@asynccontextmanager
async def open_place(folder: Path) -> AsyncIterator[Place]:
    async with open_visitor(folder) as visitor:
        client = AppGitHub(
            visitor.session,
            api_url=visitor.github.api_url,
            app_id=APP_ID,
            private_key=app_key_pem(),
            timings=FAST,
            now=visitor.clock,
        )
        yield Place(visitor, client)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path) as place:
        place.visitor.github.webhook_url = NOWHERE
        yield place


async def test_deliveries_are_listed_newest_first_with_what_became_of_them(place: Place) -> None:
    github = place.visitor.github
    await github.open_issue(NAME, "Broken", "", by="bob")
    place.visitor.clock.forward(60)
    await github.comment(NAME, 1, "/ptq fix", by="alice")
    newest, oldest = await place.client.list_deliveries(place.visitor.clock() - timedelta(hours=1))
    assert (newest.event, newest.action, newest.succeeded) == ("issue_comment", "created", False)
    assert (oldest.event, oldest.action, oldest.guid) == ("issues", "opened", github.deliveries[0].guid)
    assert newest.delivered_at - oldest.delivered_at == timedelta(seconds=60)


async def test_a_redelivery_has_the_same_guid(place: Place) -> None:
    await place.visitor.github.open_issue(NAME, "Broken", "", by="bob")
    await place.visitor.github.redeliver(place.visitor.github.deliveries[0].guid)
    again, first = await place.client.list_deliveries(place.visitor.clock())
    assert (again.guid, again.id != first.id) == (first.guid, True)


async def test_as_many_pages_of_deliveries_are_read_as_reach_back_far_enough(place: Place) -> None:
    github, clock = place.visitor.github, place.visitor.clock
    await github.open_issue(NAME, "Broken", "", by="bob")
    began = clock()
    for number in range(250):
        clock.forward(1)
        await github.comment(NAME, 1, f"comment {number}", by="bob")
    attempts = await place.client.list_deliveries(began)
    assert len(attempts) == len({attempt.id for attempt in attempts}) == 251
    assert place.calls(DELIVERIES) == 3
    assert len(await place.client.list_deliveries(began + timedelta(seconds=200))) == 51
    assert place.calls(DELIVERIES) == 4


async def test_a_delivery_still_has_its_payload_until_github_forgets_it(place: Place) -> None:
    await place.visitor.github.open_issue(NAME, "Broken", "It is.", by="bob")
    (attempt,) = await place.client.list_deliveries(place.visitor.clock())
    payload = await place.client.fetch_payload(attempt.id)
    assert (payload["action"], payload["issue"]["body"]) == ("opened", "It is.")
    place.visitor.github.deliveries.clear()
    with pytest.raises(NotFound):
        await place.client.fetch_payload(attempt.id)


async def test_a_payload_that_is_null_is_gone() -> None:
    async with scripted_github() as github:
        github.script(f"GET {DELIVERIES}/7", Says({"id": 7, "request": {"headers": None, "payload": None}}))
        with pytest.raises(NotFound):
            await github.client().fetch_payload(7)


@pytest.mark.parametrize("body", [{}, {"request": {"payload": ["a list"]}}, [], None])
async def test_a_delivery_that_cannot_be_read_is_no_answer(body: object) -> None:
    async with scripted_github() as github:
        github.script(f"GET {DELIVERIES}/7", Says(body))
        with pytest.raises(GitHubUnavailable):
            await github.client().fetch_payload(7)


async def test_the_list_of_deliveries_waits_for_as_long_as_github_asks() -> None:
    async with scripted_github() as github:
        limited = Says({"message": "slow down"}, status=429, headers={"Retry-After": "300"})
        github.script(f"GET {DELIVERIES}?per_page=100", limited)
        with pytest.raises(GitHubUnavailable) as caught:
            await github.client().list_deliveries(github.clock())
        assert caught.value.retry_after_s > 290


async def test_open_issues_are_found_by_label_and_by_their_last_change(place: Place) -> None:
    github, clock = place.visitor.github, place.visitor.clock
    for title in ("old", "closed", "bare", "new"):
        clock.forward(60)
        await github.open_issue(NAME, title, "", by="bob", labels=["PTQ:fix"] * (title != "bare"))
    await github.close_issue(NAME, 2, by="bob")
    found = [one async for one in place.client.list_labelled_issues(NAME, "ptq:fix", clock() - timedelta(seconds=60))]
    assert [(issue.number, issue.title) for issue in found] == [(4, "new")]
    found = [one async for one in place.client.list_labelled_issues(NAME, "ptq:fix", clock() - timedelta(hours=1))]
    assert sorted(issue.number for issue in found) == [1, 4]
    assert [label.name for label in found[0].labels] == ["PTQ:fix"]


async def test_a_repository_is_shown_as_in_a_webhook(place: Place) -> None:
    repository = await place.client.fetch_repository(NAME)
    assert (repository.full_name, repository.default_branch, repository.private) == (NAME, "main", False)
