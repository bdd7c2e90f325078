"""Pages, names in addresses, and the pace of writes, on a GitHub that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from bot.github.errors import GITHUB_ERRORS
from handlers.ports import GitHubError, GitHubUnavailable, NotFound, TooLong
from tests.support.scripted_github import FAST, Says, ScriptedGitHub, comment_payload, pull_payload, scripted_github

COMMENTS = "/repos/octo/widgets/issues/1/comments"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedGitHub]:
    async with scripted_github() as server:
        yield server


def _next(server: ScriptedGitHub, path: str) -> dict[str, str]:
    return {"Link": f'<{server.url}/x?page=1>; rel="prev", <{server.url}{path}>; rel="next"'}


async def test_all_pages_are_read_in_order(server: ScriptedGitHub) -> None:
    second, third = (f"{COMMENTS}?per_page=100&page={page}" for page in (2, 3))
    server.script(f"GET {COMMENTS}?per_page=100", Says([comment_payload(1)], headers=_next(server, second)))
    server.script(f"GET {second}", Says([comment_payload(2)], headers=_next(server, third)))
    server.script(f"GET {third}", Says([comment_payload(3)]))
    assert [comment.id async for comment in server.client().list_comments("octo/widgets", 1)] == [1, 2, 3]


async def test_the_pull_requests_of_a_branch_come_newest_first_from_all_pages(server: ScriptedGitHub) -> None:
    first, second = (
        f"/repos/octo/widgets/pulls?head=octo:mine&state=all&per_page=100{more}" for more in ("", "&page=2")
    )
    server.script(
        f"GET {first}", Says([pull_payload(4, "mine"), pull_payload(5, "other")], headers=_next(server, second))
    )
    server.script(f"GET {second}", Says([pull_payload(9, "mine")]))
    assert [pull.number for pull in await server.client().list_pull_requests("octo/widgets", "mine")] == [9, 4]


async def test_a_list_without_end_is_refused_rather_than_cut(server: ScriptedGitHub) -> None:
    path = f"{COMMENTS}?per_page=100"
    server.script(f"GET {path}", Says([comment_payload()], headers=_next(server, path)))
    with pytest.raises(TooLong, match="more than 3 pages"):
        [one async for one in server.client(replace(FAST, max_pages=3)).list_comments("octo/widgets", 1)]
    assert len(server.calls(COMMENTS)) == 3


async def test_since_travels_in_utc(server: ScriptedGitHub) -> None:
    server.script(f"GET {COMMENTS}?since=2026-01-02T03:04:05Z&per_page=100", Says([]))
    since = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert [one async for one in server.client().list_comments("octo/widgets", 1, since)] == []


async def test_names_are_quoted_in_addresses(server: ScriptedGitHub) -> None:
    github = server.client()
    assert not await github.fetch_role("octo/widgets", "a/b?c#d")
    assert await github.fetch_branch_sha("octo/widgets", "ptq/is#sue?x") is None
    assert server.calls("collaborators") == ["GET /repos/octo/widgets/collaborators/a%2Fb%3Fc%23d/permission"]
    assert server.calls("/git/") == ["GET /repos/octo/widgets/git/ref/heads/ptq/is%23sue%3Fx"]


async def test_a_bot_is_no_writer_and_github_is_not_asked(server: ScriptedGitHub) -> None:
    assert not await server.client().fetch_role("octo/widgets", "renovate[bot]")
    assert server.heard == []


async def test_the_app_is_asked_for_its_name_once(server: ScriptedGitHub) -> None:
    github = server.client()
    assert [await github.own_login(), await github.own_login()] == ["ptq-bot[bot]"] * 2
    assert server.calls() == ["GET /app"]


@pytest.mark.parametrize("status", [404, 410])
async def test_what_is_gone_is_not_found(server: ScriptedGitHub, status: int) -> None:
    server.script(f"POST {COMMENTS}", Says({"message": "Gone"}, status))
    with pytest.raises(NotFound) as caught:
        await server.client().create_comment("octo/widgets", 1, "hello")
    assert caught.value.status == status


@pytest.mark.parametrize(
    "mishap", [Says({"message": "Not Found"}, 404), Says({}, 500), Says(cut=True), Says({}, 429, {"Retry-After": "99"})]
)
async def test_a_reaction_never_costs_anything(server: ScriptedGitHub, mishap: Says) -> None:
    server.script("POST /repos/octo/widgets/issues/1/reactions", mishap)
    server.script("POST /repos/octo/widgets/issues/comments/5/reactions", mishap)
    github = server.client()
    await github.react_to_issue("octo/widgets", 1, "eyes")
    await github.react_to_comment("octo/widgets", 5, "eyes")
    await github.react_to_comment("octo/without-app", 5, "eyes")


@pytest.mark.parametrize(
    ("mishap", "kind"),
    [
        (Says({}, 500), "5xx"),
        (Says(cut=True), "no_answer"),
        (Says(text="no JSON"), "no_answer"),
        (Says({}, 429, {"Retry-After": "99"}), "rate_limited"),
        (Says({"message": "Bad credentials"}, 401), "401"),
        (Says({"message": "Invalid"}, 422), "4xx"),
        (Says({"message": "Not Found"}, 404), None),
        (Says({"id": 1}, 201), None),
    ],
)
async def test_calls_that_come_to_nothing_are_counted_by_kind(
    server: ScriptedGitHub, mishap: Says, kind: str | None
) -> None:
    server.script("POST /repos/octo/widgets/issues/1/reactions", mishap)
    before = GITHUB_ERRORS.read()
    await server.client().react_to_issue("octo/widgets", 1, "eyes")
    more = {name: count - before[name] for name, count in GITHUB_ERRORS.read().items() if count != before[name]}
    assert more.keys() == ({kind} if kind else set())


async def test_a_branch_that_exists_is_told_from_one_that_cannot_be(server: ScriptedGitHub) -> None:
    refs = "POST /repos/octo/widgets/git/refs"
    server.script(refs, Says({"message": "Reference already exists"}, 422), Says({"message": "Object missing"}, 422))
    github = server.client()
    assert not await github.create_branch("octo/widgets", "ptq/issue-1-a", "a" * 40)
    with pytest.raises(GitHubError, match="Object missing"):
        await github.create_branch("octo/widgets", "ptq/issue-1-a", "a" * 40)


async def test_writes_to_one_installation_go_one_at_a_time(server: ScriptedGitHub) -> None:
    server.script(f"POST {COMMENTS}", Says(comment_payload(), 201, delay_s=0.02))
    github = server.client(replace(FAST, write_interval_s=0.03))
    await asyncio.gather(*(github.create_comment("octo/widgets", 1, "hello") for _ in range(4)))
    times = [heard.at for heard in server.heard if heard.call == f"POST {COMMENTS}"]
    assert server.busiest == 1
    assert all(later - earlier >= 0.045 for earlier, later in pairwise(times))


async def test_reads_wait_for_no_write(server: ScriptedGitHub) -> None:
    permission = "GET /repos/octo/widgets/collaborators/alice/permission"
    server.script(f"POST {COMMENTS}", Says(comment_payload(), 201, delay_s=0.1))
    server.script(permission, Says({"permission": "write"}))
    github = server.client()
    await github.fetch_role("octo/widgets", "alice")
    writing = asyncio.create_task(github.create_comment("octo/widgets", 1, "hello"))
    while not server.calls(f"POST {COMMENTS}"):
        await asyncio.sleep(0.005)
    await github.fetch_role("octo/widgets", "alice")
    assert not writing.done()
    await writing


async def test_a_long_wait_for_our_own_pace_is_the_callers(server: ScriptedGitHub) -> None:
    server.script(f"POST {COMMENTS}", Says(comment_payload(), 201))
    github = server.client(replace(FAST, writes_per_minute=2))
    for _ in range(2):
        await github.create_comment("octo/widgets", 1, "hello")
    with pytest.raises(GitHubUnavailable, match="our write budget") as caught:
        await github.create_comment("octo/widgets", 1, "hello")
    assert caught.value.retry_after_s == pytest.approx(60, abs=2)
    assert len(server.calls(f"POST {COMMENTS}")) == 2
