"""What the stand-in sends to a webhook, and what can go wrong on the way there and in the API."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
from aiohttp import web

from github_standin.model.faults import ApiWord
from tests.support.visitor import NAME, REPO, SECRET, Visitor, open_visitor

IDENTITY = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")


@dataclass
class Receiver:
    """An App's webhook that answers what it is told to, and keeps what came."""

    status: int = 202
    delay_s: float = 0.0
    heard: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def receive(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.delay_s)
        self.heard.append((dict(request.headers), await request.read()))
        return web.Response(status=self.status, text="noted")

    def payloads(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.heard]

    def names(self) -> list[str]:
        return [f"{head['X-GitHub-Event']}.{json.loads(body).get('action')}" for head, body in self.heard]


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
async def visitor(tmp_path: Path, receiver: Receiver) -> AsyncIterator[Visitor]:
    app = web.Application()
    app.router.add_post("/webhook", receiver.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with open_visitor(tmp_path) as visitor:
        visitor.github.webhook_url = f"http://127.0.0.1:{runner.addresses[0][1]}/webhook"
        yield visitor
    await runner.cleanup()


async def test_a_delivery_is_signed_over_its_bytes(visitor: Visitor, receiver: Receiver) -> None:
    await visitor.github.open_issue(NAME, "Gr\u00fc\u00dfe", "", by="bob")
    ((headers, body),) = receiver.heard
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["X-Hub-Signature-256"] == f"sha256={digest}"
    assert headers["X-GitHub-Event"] == "issues"
    assert headers["X-GitHub-Delivery"] == visitor.github.deliveries[0].guid
    assert headers["X-GitHub-Hook-Installation-Target-Type"] == "integration"


async def test_people_cause_the_events_that_github_sends(visitor: Visitor, receiver: Receiver) -> None:
    github = visitor.github
    number = await github.open_issue(NAME, "Broken", "It is.", by="bob", labels=["ptq"])
    comment = await github.comment(NAME, number, "/ptq fix", by="alice")
    await github.edit_comment(NAME, comment, "/ptq help", by="alice")
    await github.delete_comment(NAME, comment, by="alice")
    await github.edit_issue(NAME, number, by="bob", title="Very broken")
    await github.close_issue(NAME, number, by="bob")
    await github.reopen_issue(NAME, number, by="bob")
    opened, labeled, created, edited, deleted, renamed, closed, reopened = receiver.payloads()
    assert [opened["action"], closed["action"], reopened["action"]] == ["opened", "closed", "reopened"]
    assert (labeled["action"], labeled["label"]["name"], labeled["sender"]["login"]) == ("labeled", "ptq", "bob")
    assert (created["comment"]["body"], created["comment"]["user"]["login"]) == ("/ptq fix", "alice")
    assert (edited["changes"], edited["comment"]["body"]) == ({"body": {"from": "/ptq fix"}}, "/ptq help")
    assert deleted["comment"]["id"] == comment
    assert renamed["changes"] == {"title": {"from": "Broken"}}
    for payload in receiver.payloads():
        assert payload["repository"]["full_name"] == NAME
        assert payload["installation"]["id"] > 2**31


async def test_a_label_that_is_on_already_is_no_event(visitor: Visitor, receiver: Receiver) -> None:
    number = await visitor.github.open_issue(NAME, "Broken", "", by="bob", labels=["ptq", "PTQ"])
    await visitor.github.label_issue(NAME, number, "ptq", by="alice")
    assert receiver.names() == ["issues.opened", "issues.labeled"]


async def test_the_bots_own_comment_comes_back_as_an_event(visitor: Visitor, receiver: Receiver) -> None:
    await visitor.github.open_issue(NAME, "Broken", "", by="bob")
    await visitor.ask("POST", f"{REPO}/issues/1/comments", {"body": "working on it"})
    await visitor.github.settle()
    sender = receiver.payloads()[-1]["sender"]
    assert (sender["login"], sender["type"]) == ("ptq-bot[bot]", "Bot")


async def test_only_what_the_app_asked_for_is_sent(visitor: Visitor, receiver: Receiver, tmp_path: Path) -> None:
    visitor.github.add_repository("octo/bare", tmp_path / "widgets.git", installed=False)
    await visitor.github.open_issue("octo/bare", "Not yours", "", by="bob")
    visitor.git("branch", "topic", "main")
    commit = visitor.git(*IDENTITY, "commit-tree", "main^{tree}", "-p", "main", "-m", "more")
    visitor.git("update-ref", "refs/heads/topic", commit)
    pull = {"title": "Fix", "head": "topic", "base": "main"}
    assert (await visitor.ask("POST", f"{REPO}/pulls", pull)).status == 201
    await visitor.github.ping()
    assert receiver.names() == ["ping.None"]


async def test_a_redelivery_is_the_same_to_the_byte(visitor: Visitor, receiver: Receiver) -> None:
    await visitor.github.open_issue(NAME, "Broken", "", by="bob")
    await visitor.github.redeliver(visitor.github.deliveries[0].guid)
    (first_headers, first_body), (second_headers, second_body) = receiver.heard
    assert first_body == second_body
    assert first_headers["X-GitHub-Delivery"] == second_headers["X-GitHub-Delivery"]
    with pytest.raises(KeyError):
        await visitor.github.redeliver("never sent")


async def test_a_failed_delivery_is_recorded_and_not_tried_again(visitor: Visitor, receiver: Receiver) -> None:
    receiver.status = 503
    await visitor.github.open_issue(NAME, "Broken", "", by="bob")
    visitor.github.webhook_url = "http://127.0.0.1:1/webhook"
    await visitor.github.label_issue(NAME, 1, "ptq", by="bob")
    assert len(receiver.heard) == 1
    statuses = [(delivery.status, delivery.status_code) for delivery in visitor.github.deliveries]
    assert statuses == [("Invalid HTTP Response: 503", 503), ("failed to connect to host", 502)]


async def test_a_webhook_that_takes_too_long_has_failed(visitor: Visitor, receiver: Receiver) -> None:
    assert visitor.github.webhook_timeout_s == 10
    visitor.github.webhook_timeout_s, receiver.delay_s = 0.05, 0.2
    await visitor.github.open_issue(NAME, "Broken", "", by="bob")
    assert [delivery.status for delivery in visitor.github.deliveries] == ["timed out"]


async def test_the_app_lists_its_deliveries_and_asks_for_one_again(visitor: Visitor, receiver: Receiver) -> None:
    app_token = visitor.app_token()
    receiver.status = 500
    await visitor.github.open_issue(NAME, "Broken", "", by="bob")
    receiver.status = 202
    await visitor.github.label_issue(NAME, 1, "ptq", by="bob")
    path = "/app/hook/deliveries"
    (failed,) = (await visitor.ask("GET", f"{path}?status=failure", token=app_token)).body
    detail = (await visitor.ask("GET", f"{path}/{failed['id']}", token=app_token)).body
    assert detail["request"]["payload"]["action"] == "opened"
    assert (detail["response"]["payload"], detail["status_code"]) == ("noted", 500)
    assert (await visitor.ask("POST", f"{path}/{failed['id']}/attempts", token=app_token)).status == 202
    await visitor.github.settle()
    newest = (await visitor.ask("GET", path, token=app_token)).body[0]
    assert (newest["guid"], newest["redelivery"], newest["status"]) == (failed["guid"], True, "OK")
    assert newest["id"] != failed["id"]


@pytest.mark.slow
async def test_the_list_of_deliveries_goes_on_at_a_cursor(visitor: Visitor) -> None:
    await visitor.github.open_issue(NAME, "Broken", "", by="bob", labels=["a", "b", "c"])
    seen: list[str] = []
    path = f"{visitor.github.api_url}/app/hook/deliveries?per_page=3"
    while path:
        reply = await visitor.ask("GET", path, token=visitor.app_token())
        seen += [delivery["action"] for delivery in reply.body]
        path = reply.headers.get("Link", "").partition(">")[0].removeprefix("<")
    assert seen == ["labeled"] * 3 + ["opened"]


@pytest.mark.parametrize(
    ("kind", "actions"),
    [
        ("drop", ["labeled", "closed"]),
        ("duplicate", ["opened", "opened", "labeled", "closed"]),
        ("reorder", ["labeled", "opened", "closed"]),
        ("delay", ["labeled", "closed", "opened"]),
    ],
)
async def test_deliveries_go_astray_on_order(
    visitor: Visitor,
    receiver: Receiver,
    kind: Literal["drop", "duplicate", "reorder", "delay"],
    actions: list[str],
) -> None:
    visitor.github.faults.add_webhook("issues.opened", kind, delay_s=0.1)
    await visitor.github.open_issue(NAME, "Broken", "", by="bob", labels=["ptq"])
    await visitor.github.close_issue(NAME, 1, by="bob")
    await visitor.github.settle()
    assert [payload["action"] for payload in receiver.payloads()] == actions
    assert len(visitor.github.deliveries) == 3 + (kind == "duplicate")
    assert len({delivery.guid for delivery in visitor.github.deliveries}) == 3


async def test_a_status_is_injected_as_often_as_ordered(visitor: Visitor) -> None:
    visitor.github.faults.add("GET", "/repos/*", 503, times=2, headers={"Retry-After": "7"})
    replies = [await visitor.ask("GET", REPO) for _ in range(3)]
    assert [reply.status for reply in replies] == [503, 503, 200]
    assert replies[0].headers["Retry-After"] == "7"
    assert [exchange.fault for exchange in visitor.github.exchanges[-3:]] == ["503", "503", None]


@pytest.mark.parametrize(("kind", "comments"), [("lose_answer", ["once"]), ("reset", [])])
async def test_a_cut_connection_may_come_before_or_after_the_deed(
    visitor: Visitor, kind: ApiWord, comments: list[str]
) -> None:
    await visitor.github.open_issue(NAME, "Broken", "", by="bob")
    visitor.github.faults.add("POST", "*/comments", kind)
    with pytest.raises(aiohttp.ClientError):
        await visitor.ask("POST", f"{REPO}/issues/1/comments", {"body": "once"})
    assert [comment.body for comment in visitor.github.issue(NAME, 1).comments] == comments


async def test_an_answer_is_delayed(visitor: Visitor) -> None:
    visitor.github.faults.add("GET", REPO, "delay", delay_s=0.1)
    began = asyncio.get_running_loop().time()
    assert (await visitor.ask("GET", REPO)).status == 200
    assert asyncio.get_running_loop().time() - began >= 0.1


async def test_a_mishap_that_is_misspelt_is_refused(visitor: Visitor) -> None:
    with pytest.raises(ValueError, match="lose_answer"):
        visitor.github.faults.add("GET", REPO, "lose-answer")  # type: ignore[arg-type]
