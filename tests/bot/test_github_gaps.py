"""What gidgethub leaves open is closed here, one test for each gap that concerns the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import pytest
import structlog

import bot.github
from bot.github.credentials import Bearer
from bot.github.transport import Line
from handlers.ports import GitHubError, GitHubUnavailable, NotFound, NotInstalled
from handlers.rules import Role
from tests.support.scripted_github import (
    FAST,
    INSTALLATION,
    MINT,
    Says,
    ScriptedGitHub,
    app_public_pem,
    comment_payload,
    scripted_github,
)

POST = "POST /repos/octo/widgets/issues/1/comments"
LIST = "GET /repos/octo/widgets/issues/1/comments?per_page=100"
PERMISSION = "GET /repos/octo/widgets/collaborators/alice/permission"
MAY_WRITE = Says({"permission": "write"})


@pytest.fixture
async def server() -> AsyncIterator[ScriptedGitHub]:
    async with scripted_github() as server:
        yield server


# A 429 and a secondary 403 are plain BadRequest; the hooks for rate limits are empty; nothing is retried.


@pytest.mark.parametrize(
    ("refusal", "wait_s"),
    [
        (Says({"message": "Too many"}, 429, {"Retry-After": "90"}), 90),
        (Says({"message": "Slow down"}, 403, {"Retry-After": "30"}), 30),
        (Says({"message": "You have exceeded a secondary rate limit"}, 403), 60),
        (Says({"message": "Too many"}, 429), 60),
        (Says(None, 429, text="no JSON, though it says so"), 60),
    ],
)
async def test_a_rate_limit_in_any_shape_says_how_long_to_stay_away(
    server: ScriptedGitHub, refusal: Says, wait_s: float
) -> None:
    server.script(POST, refusal)
    with pytest.raises(GitHubUnavailable) as caught:
        await server.client().create_comment("octo/widgets", 1, "hello")
    assert caught.value.retry_after_s == pytest.approx(wait_s, abs=2)
    assert len(server.calls(POST)) == 1


async def test_a_spent_hour_is_waited_for_until_its_reset(server: ScriptedGitHub) -> None:
    reset = int(datetime.now(UTC).timestamp()) + 600
    spent = {"x-ratelimit-limit": "5000", "x-ratelimit-remaining": "0", "x-ratelimit-reset": str(reset)}
    server.script(POST, Says({"message": "API rate limit exceeded"}, 403, spent))
    with pytest.raises(GitHubUnavailable) as caught:
        await server.client().create_comment("octo/widgets", 1, "hello")
    assert caught.value.retry_after_s == pytest.approx(600, abs=3)


@pytest.mark.parametrize("status", [403, 429])
async def test_a_write_that_a_short_limit_refused_is_sent_again(server: ScriptedGitHub, status: int) -> None:
    server.script(POST, Says({}, status, {"Retry-After": "0"}), Says(comment_payload(), 201))
    comment = await server.client().create_comment("octo/widgets", 1, "hello")
    assert comment.id == 1
    assert len(server.calls(POST)) == 2


async def test_a_limit_that_never_ends_ends_the_attempts(server: ScriptedGitHub) -> None:
    server.script(PERMISSION, Says({}, 429, {"Retry-After": "0"}))
    with pytest.raises(GitHubUnavailable):
        await server.client().fetch_role("octo/widgets", "alice")
    assert len(server.calls(PERMISSION)) == FAST.attempts


async def test_an_exhausted_bucket_is_not_even_asked(server: ScriptedGitHub) -> None:
    server.script(PERMISSION, Says({"permission": "write"}, headers=_remaining(0, "core")))
    github = server.client()
    assert await github.fetch_role("octo/widgets", "alice")
    before = len(server.heard)
    with pytest.raises(GitHubUnavailable) as caught:
        await github.fetch_role("octo/widgets", "alice")
    assert caught.value.retry_after_s > 500
    assert len(server.heard) == before


async def test_another_bucket_that_is_exhausted_stops_nothing(server: ScriptedGitHub) -> None:
    server.script(PERMISSION, Says({"permission": "write"}, headers=_remaining(0, "search")))
    github = server.client()
    assert await github.fetch_role("octo/widgets", "alice")
    assert await github.fetch_role("octo/widgets", "alice")


async def test_each_installation_has_buckets_of_its_own(server: ScriptedGitHub) -> None:
    server.script(PERMISSION, Says({"permission": "write"}, headers=_remaining(0, "core")))
    server.script("GET /repos/acme/tools/installation", Says({"id": 8}))
    server.script("POST /app/installations/8/access_tokens", server.mint)
    server.script("GET /repos/acme/tools/collaborators/alice/permission", MAY_WRITE)
    github = server.client()
    assert await github.fetch_role("octo/widgets", "alice")
    assert await github.fetch_role("acme/tools", "alice")


def _remaining(count: int, resource: str) -> dict[str, str]:
    reset = int(datetime.now(UTC).timestamp()) + 600
    return {
        "x-ratelimit-limit": "5000",
        "x-ratelimit-remaining": str(count),
        "x-ratelimit-reset": str(reset),
        "x-ratelimit-resource": resource,
    }


async def test_a_plain_403_is_a_no_and_no_rate_limit(server: ScriptedGitHub) -> None:
    server.script(POST, Says({"message": "Resource not accessible by integration"}, 403))
    with pytest.raises(GitHubError, match="Resource not accessible") as caught:
        await server.client().create_comment("octo/widgets", 1, "hello")
    assert caught.value.status == 403
    assert len(server.calls(POST)) == 1
    assert "/octo/widgets/issues/1" in caught.value.message
    assert "octo" not in caught.value.said, "what was asked for is not among GitHub's words"


@pytest.mark.parametrize(
    "mishap",
    [
        *(Says({}, status) for status in (500, 502, 503, 504)),
        Says(cut=True),
        Says(status=502, text="<html>not JSON, though it says so</html>"),
        Says(status=200, text='[{"id": 1, "bo'),
    ],
)
async def test_a_get_is_sent_again_after_a_mishap(server: ScriptedGitHub, mishap: Says) -> None:
    server.script(LIST, mishap, mishap, Says([comment_payload()]))
    assert [comment.id async for comment in server.client().list_comments("octo/widgets", 1)] == [1]


async def test_a_get_is_not_sent_for_ever(server: ScriptedGitHub) -> None:
    server.script(LIST, Says({}, 503))
    with pytest.raises(GitHubUnavailable, match="503"):
        [one async for one in server.client().list_comments("octo/widgets", 1)]
    assert len(server.calls(LIST)) == FAST.attempts


@pytest.mark.parametrize("mishap", [Says({}, 500), Says({}, 502), Says(cut=True), Says(text='{"id": 1, "bo')])
async def test_a_post_with_an_unknown_outcome_is_sent_once(server: ScriptedGitHub, mishap: Says) -> None:
    server.script(POST, mishap)
    with pytest.raises(GitHubUnavailable):
        await server.client().create_comment("octo/widgets", 1, "hello")
    assert len(server.calls(POST)) == 1


async def test_a_patch_with_an_unknown_outcome_is_sent_once(server: ScriptedGitHub) -> None:
    server.script("PATCH /repos/octo/widgets/issues/comments/5", Says({}, 502))
    with pytest.raises(GitHubUnavailable):
        await server.client().update_comment("octo/widgets", 5, "hello")
    assert len(server.calls("PATCH")) == 1


async def test_a_status_that_python_has_no_name_for_is_an_outage(server: ScriptedGitHub) -> None:
    server.script(POST, Says({}, 520))
    with pytest.raises(GitHubUnavailable):
        await server.client().create_comment("octo/widgets", 1, "hello")


async def test_a_write_that_never_left_is_sent_again(server: ScriptedGitHub) -> None:
    async with scripted_github() as gone:
        nobody_listens_there = gone.url
    line = Line(server.session, nobody_listens_there, FAST, server.clock)
    with (
        structlog.testing.capture_logs() as lines,
        pytest.raises(GitHubUnavailable, match="Connection refused"),
    ):
        await line.ask("POST", "/x", {}, Bearer("token"), {})
    assert [entry["event"] for entry in lines] == ["github.retry"] * (FAST.attempts - 1)


# The response cache is keyed by address only.


async def test_nothing_is_answered_from_a_cache(server: ScriptedGitHub) -> None:
    kept = {"ETag": '"1"', "Cache-Control": "private, max-age=60"}
    server.script(PERMISSION, Says({"permission": "write"}, headers=kept), Says({"permission": "read"}, headers=kept))
    github = server.client()
    assert await github.fetch_role("octo/widgets", "alice") is Role.WRITE
    assert await github.fetch_role("octo/widgets", "alice") is Role.READ
    assert not any("If-None-Match" in heard.headers for heard in server.heard)


# GraphQL skips retry, base URL and the App's credentials.


def test_the_client_never_uses_gidgethubs_graphql() -> None:
    folder = Path(bot.github.__file__).parent
    assert not [path.name for path in folder.glob("*.py") if ".graphql" in path.read_text()]


# A 301 on POST becomes a GET that "succeeds"; no time-out; no API version.


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirected_post_is_the_same_post_elsewhere_and_never_a_get(
    server: ScriptedGitHub, status: int
) -> None:
    server.script(POST, Says({"message": "Moved"}, status, {"Location": server.url + "/repositories/1/comments"}))
    server.script("GET /repositories/1/comments", Says(comment_payload(2)))
    server.script("POST /repositories/1/comments", Says(comment_payload(3), 201))
    assert (await server.client().create_comment("octo/widgets", 1, "hello")).id == 3
    assert server.calls("/repositories/") == ["POST /repositories/1/comments"]
    assert [heard.body for heard in server.heard[-2:]] == [{"body": "hello"}] * 2


async def test_a_post_takes_its_token_to_no_other_host(server: ScriptedGitHub) -> None:
    async with scripted_github() as stranger:
        server.script(POST, Says({"message": "Moved"}, 301, {"Location": stranger.url + "/anything"}))
        with pytest.raises(GitHubError) as caught:
            await server.client().create_comment("octo/widgets", 1, "hello")
        assert caught.value.status == 301
        assert stranger.heard == []


async def test_a_get_follows_a_renamed_repository(server: ScriptedGitHub) -> None:
    moved = "/repositories/1/collaborators/alice/permission"
    server.script(PERMISSION, Says({"message": "Moved Permanently"}, 301, {"Location": server.url + moved}))
    server.script(f"GET {moved}", MAY_WRITE)
    assert await server.client().fetch_role("octo/widgets", "alice")


def _move_issue(server: ScriptedGitHub, *, home: str, number: int) -> None:
    """GitHub redirects issue 7 of octo/widgets to this issue of a repository, which may have a new name."""
    target = f"/repositories/99/issues/{number}"
    issue = {"number": number, "title": "It breaks", "created_at": "2026-03-01T10:00:00Z"}
    issue |= {"updated_at": "2026-03-01T10:00:00Z", "repository_url": f"{server.url}/repos/{home}"}
    where = {"Location": server.url + target}
    server.script("GET /repos/octo/widgets/issues/7", Says({"message": "Moved Permanently"}, 301, where))
    server.script(f"GET {target}", Says(issue))


def _name_repository(server: ScriptedGitHub, name: str) -> None:
    current = {
        "id": 1,
        "full_name": name,
        "private": False,
        "default_branch": "main",
        "clone_url": "https://github/x.git",
    }
    server.script("GET /repos/octo/widgets", Says(current))


@pytest.mark.parametrize("number", [7, 12])
async def test_a_transferred_issue_is_not_found(server: ScriptedGitHub, number: int) -> None:
    _move_issue(server, home="octo/other", number=number)
    _name_repository(server, "octo/widgets")
    with pytest.raises(NotFound, match="transferred"):
        await server.client().fetch_issue("octo/widgets", 7)


async def test_an_issue_of_a_renamed_repository_is_found(server: ScriptedGitHub) -> None:
    _move_issue(server, home="octo/gadgets", number=7)
    _name_repository(server, "octo/gadgets")
    assert (await server.client().fetch_issue("octo/widgets", 7)).number == 7


async def test_a_get_takes_its_token_to_no_other_host(server: ScriptedGitHub) -> None:
    async with scripted_github() as stranger:
        server.script(PERMISSION, Says({}, 301, {"Location": stranger.url + "/anything"}))
        with pytest.raises(GitHubError) as caught:
            await server.client().fetch_role("octo/widgets", "alice")
        assert caught.value.status == 301
        assert stranger.heard == []


async def test_a_next_page_on_another_host_is_refused(server: ScriptedGitHub) -> None:
    async with scripted_github() as stranger:
        server.script(LIST, Says([], headers={"Link": f'<{stranger.url}/more>; rel="next"'}))
        with pytest.raises(GitHubUnavailable, match="another host"):
            [one async for one in server.client().list_comments("octo/widgets", 1)]
        assert stranger.heard == []


async def test_a_redirect_in_a_circle_ends(server: ScriptedGitHub) -> None:
    server.script(PERMISSION, Says({}, 302, {"Location": server.url + PERMISSION.removeprefix("GET ")}))
    with pytest.raises(GitHubError):
        await server.client().fetch_role("octo/widgets", "alice")
    assert len(server.calls(PERMISSION)) == 4


async def test_a_silent_github_is_given_up(server: ScriptedGitHub) -> None:
    server.script(POST, Says(comment_payload(), delay_s=30))
    github = server.client(replace(FAST, timeout_s=0.2))
    async with asyncio.timeout(5):
        with pytest.raises(GitHubUnavailable, match="TimeoutError"):
            await github.create_comment("octo/widgets", 1, "hello")


async def test_every_request_goes_to_the_configured_root_and_names_version_and_sender(server: ScriptedGitHub) -> None:
    server.script(POST, Says(comment_payload(), 201))
    github = server.client()
    await github.own_login()
    await github.create_comment("octo/widgets", 1, "hello")
    assert server.calls() == ["GET /app", INSTALLATION, MINT, POST]
    for heard in server.heard:
        assert heard.headers["X-GitHub-Api-Version"] == "2022-11-28"
        assert heard.headers["User-Agent"] == "ptq-bot"
        assert heard.headers["Accept"] == "application/vnd.github+json"


# PyJWT >= 2.10 needs `iss` as a string.


async def test_the_app_names_itself_with_a_string_and_for_a_few_minutes(server: ScriptedGitHub) -> None:
    await server.client().own_login()
    token = server.heard[0].headers["Authorization"].split()[1]
    claims: dict[str, Any] = jwt.decode(token, app_public_pem(), algorithms=["RS256"], issuer="12345")
    now = datetime.now(UTC).timestamp()
    assert claims["iss"] == "12345"
    assert claims["iat"] == pytest.approx(now - 60, abs=5)
    assert now < claims["exp"] <= now + 600


async def test_a_path_of_dots_never_leaves(server: ScriptedGitHub) -> None:
    assert not await server.client().fetch_role("octo/widgets", "..")
    with pytest.raises(NotInstalled):
        [one async for one in server.client().list_comments("octo/..", 1)]
    assert server.calls() == [INSTALLATION, MINT]
