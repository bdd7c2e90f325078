"""Issues, comments, reactions, labels and the timeline of the stand-in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.visitor import NAME, REPO, Visitor, open_visitor

ISSUE = f"{REPO}/issues/1"


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    async with open_visitor(tmp_path) as visitor:
        await visitor.github.open_issue(NAME, "Broken", "It is.", by="bob", labels=["ptq"])
        yield visitor


async def test_a_comment_of_the_app_is_its_bots(visitor: Visitor) -> None:
    reply = await visitor.ask("POST", f"{ISSUE}/comments", {"body": "Hello & <b>welcome</b> \U0001f642"})
    assert reply.status == 201
    assert (reply.body["user"]["login"], reply.body["user"]["type"]) == ("ptq-bot[bot]", "Bot")
    assert reply.body["performed_via_github_app"]["slug"] == "ptq-bot"
    (comment,) = visitor.github.issue(NAME, 1).comments
    assert (comment.body, comment.id) == ("Hello & <b>welcome</b> \U0001f642", reply.body["id"])


async def test_a_comment_is_read_changed_and_deleted(visitor: Visitor) -> None:
    number = await visitor.github.comment(NAME, 1, "first", by="bob")
    path = f"{REPO}/issues/comments/{number}"
    visitor.clock.forward(5)
    changed = await visitor.ask("PATCH", path, {"body": "second"})
    assert changed.body["updated_at"] > changed.body["created_at"]
    assert (await visitor.ask("GET", path)).body["body"] == "second"
    assert (await visitor.ask("DELETE", path)).status == 204
    assert (await visitor.ask("GET", path)).status == 404


async def test_comments_come_in_pages_that_link_to_each_other(visitor: Visitor) -> None:
    for number in range(5):
        await visitor.github.comment(NAME, 1, f"number {number}", by="bob")
    seen, url, pages = [], f"{ISSUE}/comments?per_page=2", 0
    while url:
        reply = await visitor.ask("GET", url)
        seen += [comment["body"] for comment in reply.body]
        link = re.search(r'<([^>]*)>; rel="next"', reply.headers.get("Link", ""))
        url, pages = link[1] if link else "", pages + 1
    assert (seen, pages) == ([f"number {number}" for number in range(5)], 3)


async def test_a_page_has_thirty_items_and_a_hundred_at_most(visitor: Visitor) -> None:
    for _ in range(101):
        await visitor.github.comment(NAME, 1, "again", by="bob")
    for query, count in (("", 30), ("?per_page=100", 100), ("?per_page=500", 100), ("?page=9", 0)):
        assert len((await visitor.ask("GET", f"{ISSUE}/comments{query}")).body) == count


async def test_since_goes_by_the_last_change(visitor: Visitor) -> None:
    old = await visitor.github.comment(NAME, 1, "old", by="bob")
    visitor.clock.forward(60)
    since = visitor.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
    await visitor.github.comment(NAME, 1, "new", by="bob")
    path = f"{ISSUE}/comments?since={since}"
    assert [comment["body"] for comment in (await visitor.ask("GET", path)).body] == ["new"]
    await visitor.github.edit_comment(NAME, old, "renewed", by="bob")
    assert [comment["body"] for comment in (await visitor.ask("GET", path)).body] == ["renewed", "new"]


@pytest.mark.parametrize(("length", "status"), [(65_536, 201), (65_537, 422)])
async def test_a_comment_has_a_longest_length(visitor: Visitor, length: int, status: int) -> None:
    reply = await visitor.ask("POST", f"{ISSUE}/comments", {"body": "x" * length})
    assert reply.status == status
    if status == 422:
        assert "maximum is 65536 characters" in reply.body["errors"][0]["message"]


async def test_a_blank_comment_is_refused(visitor: Visitor) -> None:
    assert (await visitor.ask("POST", f"{ISSUE}/comments", {"body": " \n"})).status == 422


async def test_a_reaction_is_given_once(visitor: Visitor) -> None:
    number = await visitor.github.comment(NAME, 1, "look", by="bob")
    for path in (f"{ISSUE}/reactions", f"{REPO}/issues/comments/{number}/reactions"):
        assert (await visitor.ask("POST", path, {"content": "eyes"})).status == 201
        assert (await visitor.ask("POST", path, {"content": "eyes"})).status == 200
        assert [found["content"] for found in (await visitor.ask("GET", path)).body] == ["eyes"]
    assert (await visitor.ask("GET", ISSUE)).body["reactions"]["eyes"] == 1
    assert [reaction.content for reaction in visitor.github.issue(NAME, 1).comments[0].reactions] == ["eyes"]


async def test_the_timeline_says_when_a_label_was_put_on(visitor: Visitor) -> None:
    visitor.clock.forward(60)
    await visitor.github.label_issue(NAME, 1, "ptq:fix", by="alice")
    await visitor.github.comment(NAME, 1, "go", by="alice")
    await visitor.github.unlabel_issue(NAME, 1, "ptq", by="alice")
    await visitor.github.edit_issue(NAME, 1, by="bob", title="Broken again")
    await visitor.github.close_issue(NAME, 1, by="bob")
    events = (await visitor.ask("GET", f"{ISSUE}/timeline")).body
    assert [event["event"] for event in events] == ["labeled", "labeled", "commented", "unlabeled", "renamed", "closed"]
    assert (events[1]["label"]["name"], events[1]["actor"]["login"]) == ("ptq:fix", "alice")
    assert events[1]["created_at"] == visitor.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
    assert len((await visitor.ask("GET", f"{ISSUE}/timeline?per_page=4&page=2")).body) == 2


async def test_labels_are_added_and_removed(visitor: Visitor) -> None:
    added = await visitor.ask("POST", f"{ISSUE}/labels", {"labels": ["PTQ", "ptq:fix", "a/b"]})
    assert [label["name"] for label in added.body] == ["ptq", "ptq:fix", "a/b"]
    left = await visitor.ask("DELETE", f"{ISSUE}/labels/a%2Fb")
    assert [label["name"] for label in left.body] == ["ptq", "ptq:fix"]
    assert (await visitor.ask("DELETE", f"{ISSUE}/labels/a%2Fb")).status == 404


async def test_a_label_of_the_repository_is_found_in_any_case(visitor: Visitor) -> None:
    await visitor.github.label_issue(NAME, 1, "Needs/Triage", by="alice")
    found = await visitor.ask("GET", f"{REPO}/labels/needs%2Ftriage")
    assert (found.status, found.body["name"]) == (200, "Needs/Triage")
    assert (await visitor.ask("GET", f"{REPO}/labels/other")).status == 404


async def test_issues_are_found_by_label_state_and_time(visitor: Visitor) -> None:
    visitor.clock.forward(60)
    await visitor.github.open_issue(NAME, "Second", "", by="bob", labels=["PTQ", "other"])
    await visitor.github.open_issue(NAME, "Third", "", by="bob")
    await visitor.github.close_issue(NAME, 3, by="bob")
    since = visitor.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
    for query, numbers in (
        ("", [2, 1]),
        ("labels=ptq&direction=asc", [1, 2]),
        ("labels=ptq,other", [2]),
        ("state=all", [3, 2, 1]),
        ("state=closed", [3]),
        (f"state=all&since={since}", [3, 2]),
    ):
        found = (await visitor.ask("GET", f"{REPO}/issues?{query}")).body
        assert [issue["number"] for issue in found] == numbers, query


async def test_an_issue_is_opened_changed_and_closed(visitor: Visitor) -> None:
    opened = await visitor.ask("POST", f"{REPO}/issues", {"title": "New", "labels": ["ptq"]})
    path = f"{REPO}/issues/{opened.body['number']}"
    assert (await visitor.ask("PATCH", path, {"body": "text", "state": "closed"})).body["state"] == "closed"
    issue = visitor.github.issue(NAME, opened.body["number"])
    assert (issue.title, issue.body, issue.state) == ("New", "text", "closed")


async def test_an_issue_that_is_not_there_is_not_found(visitor: Visitor) -> None:
    for path in ("issues/99", "issues/99/comments", "issues/99/timeline", "issues/comments/1"):
        assert (await visitor.ask("GET", f"{REPO}/{path}")).status == 404
