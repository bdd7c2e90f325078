"""Installation tokens: minted narrowly, once, renewed early, dropped when GitHub does, and shown to nobody."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from bot.github import AppGitHub, Timings
from bot.github.credentials import AppCredentials
from bot.github.tokens import Access, Grant
from handlers.ports import GitHubError, GitHubUnavailable, NotInstalled
from tests.support.clock import Clock
from tests.support.scripted_github import (
    FAST,
    INSTALLATION,
    MINT,
    Heard,
    Says,
    ScriptedGitHub,
    app_key_pem,
    comment_payload,
    make_app_key,
    scripted_github,
)

PERMISSION = "GET /repos/octo/widgets/collaborators/alice/permission"
COMMENT = "POST /repos/octo/widgets/issues/1/comments"
MAY_WRITE = Says({"permission": "write"})


@pytest.fixture
async def server() -> AsyncIterator[ScriptedGitHub]:
    async with scripted_github() as server:
        server.script(PERMISSION, MAY_WRITE)
        server.script(COMMENT, Says(comment_payload(), 201))
        yield server


async def test_a_token_opens_one_repository_and_only_what_is_needed(server: ScriptedGitHub) -> None:
    github = server.client()
    await github.fetch_role("octo/widgets", "alice")
    await github.create_comment("octo/widgets", 1, "hello")
    assert [heard.body for heard in server.heard if heard.call == MINT] == [
        {"repositories": ["widgets"], "permissions": {"metadata": "read", "issues": "read"}},
        {"repository_ids": [1], "permissions": {"metadata": "read", "issues": "write"}},
    ]


def test_no_purpose_may_write_everything() -> None:
    assert all(set(access.value.values()) <= {"read", "write"} for access in Access)
    assert not [access for access in Access if {"issues", "contents"} <= set(access.value)]


async def test_installation_and_token_are_asked_for_once(server: ScriptedGitHub) -> None:
    github = server.client()
    for _ in range(3):
        await github.fetch_role("octo/widgets", "alice")
    assert server.calls() == [INSTALLATION, MINT, PERMISSION, PERMISSION, PERMISSION]


async def test_many_callers_share_one_mint(server: ScriptedGitHub) -> None:
    server.script(INSTALLATION, Says({"id": 7}, delay_s=0.05))
    github = server.client()
    assert all(await asyncio.gather(*(github.fetch_role("octo/widgets", "alice") for _ in range(10))))
    assert len(server.calls(MINT)) == 1


async def test_a_caller_that_gives_up_takes_the_token_from_nobody(server: ScriptedGitHub) -> None:
    server.script(INSTALLATION, Says({"id": 7}, delay_s=0.1))
    github = server.client()
    first = asyncio.create_task(github.fetch_role("octo/widgets", "alice"))
    await asyncio.sleep(0.02)
    second = asyncio.create_task(github.fetch_role("octo/widgets", "alice"))
    await asyncio.sleep(0.02)
    first.cancel()
    assert await second
    assert len(server.calls(MINT)) == 1


async def test_a_failed_mint_does_not_spoil_the_next(server: ScriptedGitHub) -> None:
    server.script(MINT, *[Says({}, 500)] * FAST.attempts, server.mint)
    github = server.client()
    with pytest.raises(GitHubUnavailable):
        await github.fetch_role("octo/widgets", "alice")
    assert await github.fetch_role("octo/widgets", "alice")


@pytest.mark.parametrize("lost", [Says({"message": "oops"}, 502), Says(cut=True)], ids=["502", "no answer"])
async def test_a_token_is_asked_for_again_at_once(server: ScriptedGitHub, lost: Says) -> None:
    """Nothing is created but a token. Otherwise everything that waits for it is put off, by seconds or minutes."""
    server.script(MINT, lost, server.mint)
    assert await server.client().fetch_role("octo/widgets", "alice")
    assert len(server.calls(MINT)) == 2


async def test_a_token_is_renewed_five_minutes_early(server: ScriptedGitHub) -> None:
    server.clock = clock = Clock()
    github = server.client()
    await github.fetch_role("octo/widgets", "alice")
    clock.forward(54 * 60 + 59)
    await github.fetch_role("octo/widgets", "alice")
    assert len(server.calls(MINT)) == 1
    clock.forward(1)
    await github.fetch_role("octo/widgets", "alice")
    assert len(server.calls(MINT)) == 2
    assert server.heard[-1].headers["Authorization"] == "bearer ghs_secret2"


async def test_a_token_with_a_short_life_is_used_all_the_same(server: ScriptedGitHub) -> None:
    def mint_briefly(heard: Heard) -> Says:
        expires_at = datetime.now(UTC) + timedelta(seconds=30)
        covered = [{"id": 1, "full_name": "octo/widgets"}]
        return Says({"token": "ghs_brief", "expires_at": expires_at.isoformat(), "repositories": covered}, 201)

    server.script(MINT, mint_briefly)
    github = server.client()
    assert await github.fetch_role("octo/widgets", "alice")
    assert await github.fetch_role("octo/widgets", "alice")


async def test_a_token_that_github_took_back_is_replaced_once(server: ScriptedGitHub) -> None:
    github = server.client()
    await github.create_comment("octo/widgets", 1, "hello")
    server.script(COMMENT, Says({"message": "Bad credentials"}, 401), Says(comment_payload(2), 201))
    server.script(INSTALLATION, Says({"id": 9}))  # reinstalled meanwhile
    server.script("POST /app/installations/9/access_tokens", server.mint)
    assert (await github.create_comment("octo/widgets", 1, "hello")).id == 2
    assert server.calls("access_tokens") == [MINT, "POST /app/installations/9/access_tokens"]
    assert server.heard[-1].headers["Authorization"] == "bearer ghs_secret2"


async def test_a_401_that_stays_is_an_outage_and_no_word_about_what_was_asked(server: ScriptedGitHub) -> None:
    server.script(COMMENT, Says({"message": "Bad credentials"}, 401))
    with pytest.raises(GitHubUnavailable, match="does not take our credentials"):
        await server.client().create_comment("octo/widgets", 1, "hello")
    assert len(server.calls(COMMENT)) == 2


async def test_an_installation_that_is_gone_is_looked_up_again(server: ScriptedGitHub) -> None:
    github = server.client()
    await github.fetch_role("octo/widgets", "alice")
    server.script(MINT, Says({"message": "Not Found"}, 404))
    server.script(INSTALLATION, Says({"id": 9}))
    server.script("POST /app/installations/9/access_tokens", server.mint)
    await github.create_comment("octo/widgets", 1, "hello")
    assert server.calls("installation")[-3:] == [MINT, INSTALLATION, "POST /app/installations/9/access_tokens"]


async def test_a_repository_without_the_app_is_told_from_one_that_lacks_something(server: ScriptedGitHub) -> None:
    with pytest.raises(NotInstalled, match="not installed on octo/other"):
        await server.client().create_comment("octo/other", 1, "hello")


@pytest.mark.parametrize(
    "refusal",
    [
        Says({"message": "no"}, 403),
        Says({"message": "no"}, 404),
        Says({}, 500),
        Says(cut=True),
        Says({}, 429, {"Retry-After": "90"}),
        Says({}, 301, {"Location": "http://127.0.0.1:1/"}),
        Says(text="{"),
    ],
)
async def test_no_error_tells_a_token_not_even_with_its_frames(server: ScriptedGitHub, refusal: Says) -> None:
    server.script(COMMENT, refusal)
    with pytest.raises((GitHubError, GitHubUnavailable)) as caught:
        await server.client().create_comment("octo/widgets", 1, "hello")
    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    text = "".join(told.format()) + repr(caught.value) + str(caught.value)
    used = [heard.headers["Authorization"].split()[1] for heard in server.heard]
    assert len(used) == 3
    assert not [token for token in used if token in text]


async def test_no_log_line_tells_a_token(server: ScriptedGitHub) -> None:
    server.script(PERMISSION, Says({}, 503), Says({}, 429, {"Retry-After": "0"}), MAY_WRITE)
    github = server.client()
    with structlog.testing.capture_logs() as lines:
        await github.fetch_role("octo/widgets", "alice")
        await github.react_to_issue("octo/widgets", 1, "eyes")
    assert [line["event"] for line in lines] == ["github.retry", "github.rate_limited", "github.reaction_lost"]
    assert "secret" not in repr(lines)
    assert "eyJ" not in repr(lines)


def test_no_repr_tells_a_secret() -> None:
    credentials = AppCredentials("12345", make_app_key())
    bearer = credentials.sign(datetime.now(UTC))
    grant = Grant("octo/widgets", Access.READ_ISSUES, 7, bearer, datetime.now(UTC), "octo/widgets", 1)
    assert bearer.secret not in repr(grant)
    assert repr(credentials) == "AppCredentials(app_id='12345')"


@pytest.mark.parametrize(
    "pem", ["", "not a key", "-----BEGIN RSA PRIVATE KEY-----\nc2VjcmV0\n-----END RSA PRIVATE KEY-----"]
)
async def test_a_key_that_cannot_be_read_is_refused_without_quoting_it(server: ScriptedGitHub, pem: str) -> None:
    with pytest.raises(ValueError, match="PEM") as caught:
        AppGitHub(
            server.session,
            api_url=server.url,
            app_id="1",
            private_key=pem,
            timings=Timings(),
            now=lambda: datetime.now(UTC),
        )
    assert "c2VjcmV0" not in str(caught.value)


def test_a_key_is_read_from_pem() -> None:
    assert AppCredentials.from_pem("1", app_key_pem()).key.key_size == 2048
