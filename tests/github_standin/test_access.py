"""Who may do what on the stand-in, and how much of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.visitor import APP_ID, NAME, REPO, Visitor, open_visitor

COMMENTS = f"{REPO}/issues/1/comments"


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    async with open_visitor(tmp_path) as visitor:
        await visitor.github.open_issue(NAME, "Broken", "It is.", by="bob")
        yield visitor


@pytest.mark.parametrize("issuer", [APP_ID, int(APP_ID)])
async def test_the_app_signs_in_with_its_key(visitor: Visitor, issuer: object) -> None:
    reply = await visitor.ask("GET", "/app", token=visitor.app_token({"iss": issuer}))
    assert (reply.status, reply.body["slug"]) == (200, "ptq-bot")


@pytest.mark.parametrize(
    ("claims", "status", "words"),
    [
        ({"iss": "1"}, 404, "Integration not found"),
        ({"exp": -1}, 401, "'exp'"),
        ({"exp": 660}, 401, "too far in the future"),
        ({"exp": None}, 401, "'exp'"),
        ({"iat": 60}, 401, "'iat'"),
        ({"iat": "soon"}, 401, "'iat'"),
    ],
)
async def test_a_jwt_with_wrong_claims_is_refused(
    visitor: Visitor, claims: dict[str, object], status: int, words: str
) -> None:
    now = int(visitor.clock().timestamp())
    shifted = {name: now + value if isinstance(value, int) else value for name, value in claims.items()}
    reply = await visitor.ask("GET", "/app", token=visitor.app_token(shifted))
    assert reply.status == status
    assert words in reply.message


async def test_a_jwt_by_another_key_or_algorithm_is_refused(visitor: Visitor) -> None:
    symmetric = visitor.app_token(key="0" * 32, alg="HS256")
    for credential in (symmetric, f"{visitor.app_token()[:-9]}AAAAAAAAA", "a.b.c"):
        assert (await visitor.ask("GET", "/app", token=credential)).status == 401


@pytest.mark.parametrize("credential", ["", "ghs_unknown", "x" * 3000])
async def test_an_unknown_token_is_refused(visitor: Visitor, credential: str) -> None:
    assert (await visitor.ask("GET", REPO, token=credential)).status == 401


async def test_a_token_is_long_and_lives_an_hour(visitor: Visitor) -> None:
    reply = await visitor.mint()
    assert re.fullmatch(r"ghs_[A-Za-z0-9._]{300,}", reply.body["token"])
    visitor.clock.forward(3599)
    assert (await visitor.ask("GET", REPO, token=reply.body["token"])).status == 200
    visitor.clock.forward(1)
    assert (await visitor.ask("GET", REPO, token=reply.body["token"])).message == "Bad credentials"


async def test_each_kind_of_credential_has_its_own_endpoints(visitor: Visitor) -> None:
    assert (await visitor.ask("GET", "/app")).status == 401
    assert (await visitor.ask("GET", REPO, token=visitor.app_token())).status == 403


async def test_a_token_does_no_more_than_it_was_minted_for(visitor: Visitor) -> None:
    token = await visitor.sign_in(permissions={"issues": "read"})
    assert (await visitor.ask("GET", COMMENTS, token=token)).status == 200
    refused = await visitor.ask("POST", COMMENTS, {"body": "hello"}, token=token)
    assert (refused.status, refused.message) == (403, "Resource not accessible by integration")
    assert refused.headers["X-Accepted-GitHub-Permissions"] == "issues=write"
    assert (await visitor.ask("GET", f"{REPO}/pulls", token=token)).status == 403
    assert (await visitor.ask("GET", f"{REPO}/collaborators/alice/permission", token=token)).status == 200


@pytest.mark.parametrize(
    "narrowing",
    [
        {"permissions": {"administration": "write"}},
        {"permissions": {"metadata": "write"}},
        {"permissions": {"issues": "everything"}},
        {"repositories": ["elsewhere"]},
        {"repository_ids": [1]},
    ],
)
async def test_a_token_cannot_be_wider_than_the_installation(tmp_path: Path, narrowing: dict[str, object]) -> None:
    async with open_visitor(tmp_path, watched=False) as visitor:
        assert (await visitor.mint(**narrowing)).status == 422


async def test_a_token_sees_only_its_repositories(visitor: Visitor, tmp_path: Path) -> None:
    visitor.github.add_repository("octo/gadgets", tmp_path / "widgets.git")
    visitor.github.add_repository("octo/private", tmp_path / "widgets.git", private=True, installed=False)
    visitor.github.add_repository("other/widgets", tmp_path / "widgets.git")
    token = await visitor.sign_in(repositories=["widgets"])
    for name, status in (("octo/Widgets", 200), ("octo/gadgets", 404), ("octo/private", 404), ("other/widgets", 404)):
        assert (await visitor.ask("GET", f"/repos/{name}", token=token)).status == status
    seen = await visitor.ask("GET", "/installation/repositories", token=token)
    assert [found["full_name"] for found in seen.body["repositories"]] == [NAME]


async def test_a_repository_without_the_app_has_no_installation(visitor: Visitor, tmp_path: Path) -> None:
    visitor.github.add_repository("octo/bare", tmp_path / "widgets.git", installed=False)
    for name in ("octo/bare", "octo/nothing"):
        assert (await visitor.ask("GET", f"/repos/{name}/installation", token=visitor.app_token())).status == 404


@pytest.mark.parametrize(
    ("login", "role", "permission"),
    [
        ("alice", "write", "write"),
        ("ALICE", "write", "write"),
        ("maja", "maintain", "write"),
        ("tina", "triage", "read"),
        ("bob", "read", "read"),
        ("octo", "admin", "admin"),
        ("banned", "none", "none"),
        ("ptq-bot[bot]", "none", "none"),
    ],
)
async def test_permissions_have_an_old_name_and_a_role(
    visitor: Visitor, login: str, role: str, permission: str
) -> None:
    for person, granted in (("maja", "maintain"), ("tina", "triage"), ("banned", "none")):
        visitor.github.set_permission(NAME, person, granted)
    reply = await visitor.ask("GET", f"{REPO}/collaborators/{login}/permission")
    assert (reply.body["role_name"], reply.body["permission"]) == (role, permission)


async def test_nobody_is_not_found(visitor: Visitor) -> None:
    assert (await visitor.ask("GET", f"{REPO}/collaborators/nobody/permission")).status == 404


async def test_the_hours_requests_run_out_and_come_back(visitor: Visitor) -> None:
    visitor.github.limits.requests_per_hour = 5
    for left in "43210":
        assert (await visitor.ask("GET", REPO)).headers["X-RateLimit-Remaining"] == left
    spent = await visitor.ask("GET", REPO)
    assert (spent.status, spent.headers["X-RateLimit-Remaining"]) == (403, "0")
    assert "API rate limit exceeded" in spent.message
    assert (await visitor.ask("GET", "/rate_limit")).body["rate"]["remaining"] == 0
    visitor.clock.forward(3599)
    visitor.token = await visitor.sign_in()
    assert int(spent.headers["X-RateLimit-Reset"]) <= visitor.clock().timestamp() + 1
    visitor.clock.forward(1)
    assert (await visitor.ask("GET", REPO)).status == 200


async def test_an_enterprise_server_without_limits_tells_of_none(visitor: Visitor) -> None:
    visitor.github.limits.requests_per_hour = None
    reply = await visitor.ask("GET", REPO)
    assert [name for name in reply.headers if name.lower().startswith("x-ratelimit")] == []
    assert (await visitor.ask("GET", "/rate_limit")).status == 404


async def test_too_many_comments_in_a_minute_are_held_up(visitor: Visitor) -> None:
    visitor.github.limits.content_per_minute = 2
    for _ in range(2):
        assert (await visitor.ask("POST", COMMENTS, {"body": "one"})).status == 201
        visitor.clock.forward(10)
    refused = await visitor.ask("POST", COMMENTS, {"body": "one more"})
    assert (refused.status, refused.headers["Retry-After"]) == (403, "40")
    assert "secondary rate limit" in refused.message
    visitor.clock.forward(40)
    assert (await visitor.ask("POST", COMMENTS, {"body": "one more"})).status == 201


async def test_an_unchanged_answer_is_not_sent_again(visitor: Visitor) -> None:
    first = await visitor.ask("GET", f"{REPO}/issues/1")
    again = await visitor.ask("GET", f"{REPO}/issues/1", If_None_Match=first.headers["ETag"])
    assert (again.status, again.body) == (304, "")


async def test_a_request_needs_a_user_agent_and_a_version_that_exists(visitor: Visitor) -> None:
    assert (await visitor.ask("GET", REPO, User_Agent="")).status == 403
    assert (await visitor.ask("GET", REPO, X_GitHub_Api_Version="2001-01-01")).status == 400
    assert (await visitor.ask("GET", REPO, X_GitHub_Api_Version="2022-11-28")).status == 200


async def test_what_the_stand_in_lacks_is_not_found_and_noted(tmp_path: Path) -> None:
    async with open_visitor(tmp_path, watched=False) as visitor:
        assert (await visitor.ask("GET", f"{REPO}/milestones")).status == 404
        assert (await visitor.ask("PUT", REPO)).status == 404
        assert [call.path for call in visitor.github.unknown_calls] == [f"{REPO}/milestones", REPO]


async def test_no_credential_is_kept(visitor: Visitor) -> None:
    await visitor.ask("GET", REPO)
    assert visitor.token not in str([exchange.request_headers for exchange in visitor.github.exchanges])
    assert [exchange.token_kind for exchange in visitor.github.exchanges][-2:] == ["app", "installation"]


async def test_what_an_observer_raises_becomes_a_complaint(tmp_path: Path) -> None:
    def object_to_everything(exchange: object) -> None:
        raise ValueError("I object")

    async with open_visitor(tmp_path) as visitor:
        visitor.github.observers.append(object_to_everything)
        assert (await visitor.ask("GET", REPO)).status == 200
        assert visitor.github.complaints == ["I object"]
        visitor.github.complaints.clear()
