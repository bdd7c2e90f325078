"""An issue under which strangers write as much as GitHub lets them: what is kept of it, and who waits meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from handlers.commands.rights import Person, Surface
from handlers.context import Context
from handlers.events import Issue, Repository
from handlers.jobs.preconditions import NotStarted, check_unopposed
from handlers.jobs.snapshot import MAX_COMMENTS
from handlers.jobs.start import StartRequest, freeze
from handlers.rules import RepositoryRules, Role
from tests.handlers.asked import NAME
from tests.support.jobs import NOON
from tests.support.scripted_github import Says, ScriptedGitHub, comment_payload, scripted_github

pytestmark = pytest.mark.slow

RULES = RepositoryRules(NAME, "mine")
ISSUE = Issue(number=1, title="It fails", created_at=NOON, updated_at=NOON)
LONGEST = 65_536
"""GitHub takes no longer body."""

MAX_KEPT = 60_000_000
"""Bytes: one page as it arrives, once more as it is read, on this side and on the server's, and what is kept."""


@pytest.fixture
async def server() -> AsyncIterator[ScriptedGitHub]:
    async with scripted_github() as server:
        yield server


def open_context(server: ScriptedGitHub) -> Context:
    nothing: Any = None
    return Context(server.client(), nothing, {NAME: RULES}, {}, "https://ptq", (), lambda: NOON, lambda: None)


def script_pages(server: ScriptedGitHub, path: str, page: Sequence[Mapping[str, Any]], times: int) -> None:
    """A list whose pages are all the same."""
    path, text = f"/repos/{NAME}/issues/1/{path}?per_page=100", json.dumps(page)
    more = Says(text=text, headers={"Link": f'<{server.url}{path}>; rel="next"'})
    server.script(f"GET {path}", *[more] * (times - 1), Says(text=text))


def write_pull(number: int, body: str, author: str = "stranger") -> Mapping[str, Any]:
    """The event of a timeline which says that a pull request mentions the issue."""
    pull = {"number": number, "user": {"login": author}, "body": body, "pull_request": {"url": ""}, "state": "open"}
    return {
        "event": "cross-referenced",
        "source": {"issue": {**pull, "repository_url": f"https://api.github.com/repos/{NAME}"}},
    }


@contextmanager
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MAX_KEPT
    finally:
        tracemalloc.stop()


async def test_thousands_of_long_comments_are_never_in_memory_together(server: ScriptedGitHub) -> None:
    script_pages(server, "comments", [comment_payload(one, body="x" * LONGEST) for one in range(100)], times=50)
    person = Person("boss", Surface.THREAD, RULES, Role.WRITE)
    where = Repository(full_name=NAME, private=False, default_branch="main", clone_url="")
    at = datetime.fromisoformat(comment_payload()["updated_at"]) + timedelta(hours=1)
    with bounded_memory():
        snapshot = await freeze(open_context(server), StartRequest(person, where, ISSUE, "fix", at, "a label"))
    assert len(snapshot.comments) + snapshot.comments_left_out == 5_000
    assert 0 < len(snapshot.comments) <= MAX_COMMENTS


async def test_a_timeline_full_of_long_texts_is_never_in_memory_as_a_whole(server: ScriptedGitHub) -> None:
    added = {"event": "labeled", "label": {"name": "ptq"}, "actor": {"login": "boss"}, "created_at": NOON.isoformat()}
    script_pages(server, "timeline", [added, *[write_pull(2, f"see #1 {'x' * 65_000}")] * 99], times=15)
    context = open_context(server)
    with bounded_memory():
        await check_unopposed(context, NAME, ISSUE, "fix")
    script_pages(server, "timeline", [added, *[write_pull(2, f"see #1 {'x' * 65_000}")] * 99], times=15)
    with bounded_memory():
        assert len(await context.github.list_labellings(NAME, 1, "ptq")) == 15


async def test_others_take_their_turns_while_pull_requests_are_searched(server: ScriptedGitHub) -> None:
    """A page of them needs half a second."""
    script_pages(
        server, "timeline", [*[write_pull(2, "fixes " * 10_900 + "1")] * 99, write_pull(8, "Fixes #1")], times=1
    )
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - began)

    watching = asyncio.create_task(watch())
    try:
        with pytest.raises(NotStarted, match=r"would close it \(#8\)"):
            await check_unopposed(open_context(server), NAME, ISSUE, "fix")
        await asyncio.sleep(0)
    finally:
        watching.cancel()
    assert longest_s < 0.2
