"""Deliveries of a repository that has the name of another one: nothing is done, and the operator hears of it once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from gidgethub.routing import Router
from sqlalchemy import select

from handlers.cases.known_repositories import SharedRepositories
from handlers.context import Context
from handlers.events import find_lane
from handlers.inbox.inbox import Inbox
from handlers.notices.notifications import render_payload as render_notification
from handlers.ports import GitHub
from handlers.rules import RepositoryRules
from runner.db.schema import deliveries
from runner.rows import job_rows
from runner.rows.notifications import fetch_waiting
from tests.handlers.asked import NAME, render_payload
from tests.support.clock import Clock
from tests.support.jobs import NOON, make_job, open_database

KNOWN, OTHER = 3_000_000_001, 3_000_000_002
LABEL: Mapping[str, Any] = {"action": "labeled", "label": {"name": "ptq:fix"}}


def comment(body: str) -> Mapping[str, Any]:
    said = {"id": 1, "body": body, "created_at": NOON.isoformat(), "html_url": "https://github.com/octo/widgets#1"}
    return {"action": "created", "comment": said}


@pytest.mark.parametrize("more", [LABEL, comment("/ptq fix"), comment("/ptq cancel")], ids=["label", "fix", "cancel"])
@pytest.mark.parametrize(
    ("repository", "is_worked", "is_told"),
    [
        ({"id": OTHER}, False, True),
        ({"id": OTHER, "full_name": NAME.upper()}, False, True),
        ({}, False, True),
        ({"id": KNOWN}, True, False),
        ({"id": OTHER, "full_name": "octo/new"}, True, False),
    ],
    ids=["another", "in capitals", "without an id", "the known one", "not known yet"],
)
async def test_only_the_known_repository_asks_for_something(
    tmp_path: Path, more: Mapping[str, Any], repository: Mapping[str, Any], is_worked: bool, is_told: bool
) -> None:
    worked, router = [], Router()

    async def work(event: Any, _context: Context) -> None:
        worked.append(event.delivery_id)

    for event in ("issues", "issue_comment"):
        router.add(work, event)
    async with open_database(tmp_path) as database:
        await SharedRepositories(database, lambda: {NAME}).note(NAME, KNOWN)
        async with database.write() as connection:
            await job_rows.insert_job(connection, make_job(repository=NAME))
        rules = {NAME: RepositoryRules(NAME, agent="mine")}
        clock = Clock()
        context = Context(cast(GitHub, None), database, rules, {}, "", (), clock, lambda: None)
        inbox = Inbox(database, router, clock)
        for guid in ("one", "two"):
            payload = render_payload(1, "mallory", NOON, guid=guid, **more)
            payload["repository"] |= {"private": True, **repository}
            event = "issue_comment" if "comment" in more else "issues"
            await inbox.receive(guid, event, find_lane(payload), json.dumps(payload).encode())
            await inbox.step(context)
            await inbox.stop()
        assert worked == (["one", "two"] if is_worked else [])
        async with database.read() as connection:
            rows = (await connection.execute(select(deliveries.c.state, deliveries.c.error))).all()
            (job,) = await job_rows.fetch_recent_jobs(connection, 2)
            told = [render_notification(one, ())["text"] for one in await fetch_waiting(connection)]
    assert {row.state for row in rows} == {"done"}
    assert all((row.error is None) is is_worked for row in rows)
    assert job.private is (repository.get("id") == KNOWN), "what another repository is says nothing about this one"
    number = repository.get("id")
    assert (
        told
        == [
            f"octo/widgets: GitHub sends events of another repository with this name (id {number}, not {KNOWN}). "
            "ptq-bot ignores them. ptq-bot doctor says what to do."
        ]
        * is_told
    )


async def test_a_namesake_of_a_former_name_that_is_not_configured_any_more_does_nothing_without_a_notice(
    tmp_path: Path,
) -> None:
    worked, router = [], Router()

    async def work(event: Any, _context: Context) -> None:
        worked.append(event.delivery_id)

    router.add(work, "issue_comment")
    async with open_database(tmp_path) as database:
        await SharedRepositories(database, lambda: {NAME}).note(NAME, KNOWN)
        async with database.write() as connection:
            await job_rows.insert_job(connection, make_job(repository=NAME))
        clock = Clock()
        context = Context(cast(GitHub, None), database, {}, {}, "", (), clock, lambda: None)
        inbox = Inbox(database, router, clock)
        for number in (OTHER, KNOWN):
            payload = render_payload(1, "mallory", NOON, guid=str(number), **comment("/ptq fix"))
            payload["repository"] |= {"private": number == OTHER, "id": number}
            await inbox.receive(str(number), "issue_comment", find_lane(payload), json.dumps(payload).encode())
            await inbox.step(context)
            await inbox.stop()
        async with database.read() as connection:
            assert await fetch_waiting(connection) == []
            errors = (await connection.execute(select(deliveries.c.error))).scalars().all()
            (job,) = await job_rows.fetch_recent_jobs(connection, 2)
    assert (worked, job.private) == ([str(KNOWN)], False)
    assert [error and error.split(":")[0] for error in errors] == [f"another repository is called {NAME}", None]
