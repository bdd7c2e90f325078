"""The judge of our exchanges with GitHub lets good ones pass and names what is wrong with the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support.openapi import DescriptionMismatch, OpenApi, load_openapi

COMMENTS = "/repos/octo/widgets/issues/7/comments"


@dataclass(frozen=True)
class Travelled:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    request_body: bytes = b""
    status: int = 200
    response_body: bytes = b""


@pytest.fixture(scope="module")
def github() -> OpenApi:
    return load_openapi()


def posted(path: str, body: object) -> Travelled:
    return Travelled("POST", path, request_body=json.dumps(body).encode(), status=201)


def answered(method: str, path: str, status: int, body: object) -> Travelled:
    return Travelled(method, path, status=status, response_body=json.dumps(body).encode())


def user(login: str) -> dict[str, Any]:
    urls = (
        "avatar_url url html_url followers_url following_url gists_url starred_url subscriptions_url "
        "organizations_url repos_url events_url received_events_url"
    )
    identity = {"login": login, "id": 1, "node_id": "U", "gravatar_id": "", "type": "User", "site_admin": False}
    return identity | dict.fromkeys(urls.split(), "https://example.org")


def comment() -> dict[str, Any]:
    texts = {"node_id": "C", "url": "https://x", "html_url": "https://x", "issue_url": "https://x", "body": "Hello"}
    times = {"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"}
    return {"id": 1, "user": user("alice"), "author_association": "MEMBER", **texts, **times}


def refusal_of(github: OpenApi, exchange: Travelled) -> str:
    with pytest.raises(DescriptionMismatch) as caught:
        github.check(exchange)
    return str(caught.value)


def test_a_comment_and_its_answer_pass(github: OpenApi) -> None:
    github.check(replace(posted(COMMENTS, {"body": "Hello"}), response_body=json.dumps(comment()).encode()))


def test_a_missing_request_field_is_named(github: OpenApi) -> None:
    said = refusal_of(github, posted(COMMENTS, {}))
    assert said == f'POST {COMMENTS}: body: $: "body" is a required property'


def test_a_request_field_of_the_wrong_type_is_named(github: OpenApi) -> None:
    said = refusal_of(github, posted(COMMENTS, {"body": 7}))
    assert '$.body: 7 is not of type "string"' in said


def test_a_misspelt_request_field_is_refused(github: OpenApi) -> None:
    pull = {"title": "Fix", "head": "ptq/issue-7", "base": "main", "drafts": True}
    assert "drafts is not described" in refusal_of(github, posted("/repos/octo/widgets/pulls", pull))


@pytest.mark.parametrize("body", [b"", b"{not json", b"\xff"])
def test_a_request_body_that_is_no_json_is_refused(github: OpenApi, body: bytes) -> None:
    assert "body is no JSON" in refusal_of(github, Travelled("POST", COMMENTS, request_body=body))


def test_a_body_where_none_is_taken_is_refused(github: OpenApi) -> None:
    assert "takes no body" in refusal_of(github, Travelled("GET", COMMENTS, request_body=b'{"a": 1}'))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/repos/octo/widgets/issues/7/commentz"),
        ("GET", "/repos/octo/widgets/issues/seven/comments"),
        ("PUT", COMMENTS),
        ("GET", "/repos/octo/widgets/wishes"),
        ("GET", "/api/v3/repos/octo/widgets"),
    ],
)
def test_an_unknown_operation_is_refused(github: OpenApi, method: str, path: str) -> None:
    assert "GitHub describes no such operation" in refusal_of(github, Travelled(method, path))


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ({"per_page": "many"}, "query parameter per_page: 'many' does not fit"),
        ({"since": "yesterday"}, "query parameter since: 'yesterday' does not fit"),
        ({"sort": "asc"}, "query parameter sort is not described"),
    ],
)
def test_a_wrong_query_is_refused(github: OpenApi, query: dict[str, str], complaint: str) -> None:
    assert complaint in refusal_of(github, Travelled("GET", COMMENTS, query))


def test_a_query_outside_the_enumeration_is_refused(github: OpenApi) -> None:
    github.check_request(Travelled("GET", "/repos/octo/widgets/pulls", {"state": "all", "head": "octo:ptq/issue-7"}))
    assert "state" in refusal_of(github, Travelled("GET", "/repos/octo/widgets/pulls", {"state": "any"}))


def test_a_missing_query_parameter_is_named(github: OpenApi) -> None:
    assert "query parameter q is required" in refusal_of(github, Travelled("GET", "/search/issues"))


def test_an_answer_that_lacks_a_field_is_named(github: OpenApi) -> None:
    answer = comment()
    del answer["user"]["login"]
    said = refusal_of(github, answered("GET", COMMENTS, 200, [answer]))
    assert said.startswith(f"answer 200 to GET {COMMENTS}: $[0].user: ")
    assert '"login" is a required property' in said


def test_an_answer_with_a_malformed_time_is_named(github: OpenApi) -> None:
    answer = comment() | {"created_at": "2026-01-01 00:00"}
    assert "$[0].created_at" in refusal_of(github, answered("GET", COMMENTS, 200, [answer]))


def test_null_passes_only_where_it_is_described(github: OpenApi) -> None:
    github.check_answer(answered("GET", COMMENTS, 200, [comment() | {"user": None}]))
    assert "$[0].html_url" in refusal_of(github, answered("GET", COMMENTS, 200, [comment() | {"html_url": None}]))


def test_an_undocumented_status_is_refused(github: OpenApi) -> None:
    assert "not documented; documented are 200, 404, 410" in refusal_of(github, answered("GET", COMMENTS, 204, None))


@pytest.mark.parametrize("status", [301, 401, 403, 429])
def test_a_refusal_that_is_possible_everywhere_needs_githubs_shape(github: OpenApi, status: int) -> None:
    path = "/repos/octo/widgets/collaborators/alice/permission"
    github.check(answered("GET", path, status, {"message": "No", "documentation_url": "https://docs.github.com/rest"}))
    assert '"message" is a required property' in refusal_of(github, answered("GET", path, status, {"error": "No"}))


def test_an_outage_may_say_anything(github: OpenApi) -> None:
    github.check(Travelled("GET", COMMENTS, status=502, response_body=b"<html>Unicorn!</html>"))


def test_a_lost_answer_excuses_no_request(github: OpenApi) -> None:
    github.check(replace(posted(COMMENTS, {"body": "Hello"}), status=0))
    assert '"body" is a required property' in refusal_of(github, replace(posted(COMMENTS, {}), status=0))


def test_an_empty_answer_must_be_empty(github: OpenApi) -> None:
    path = "/repos/octo/widgets/git/refs/heads/ptq/issue-7"
    github.check(Travelled("DELETE", path, status=204))
    assert "has no body" in refusal_of(github, Travelled("DELETE", path, status=204, response_body=b"{}"))


def test_a_literal_segment_beats_a_parameter(github: OpenApi) -> None:
    answer = answered("GET", "/repos/octo/widgets/issues/comments", 200, [comment()])
    github.check(answer)
    assert "takes no body" in refusal_of(github, replace(answer, request_body=b"[1]"))


def test_a_branch_with_slashes_is_one_parameter(github: OpenApi) -> None:
    thing = {"type": "commit", "sha": "0" * 40, "url": "https://x"}
    ref = {"ref": "refs/heads/ptq/issue-7", "node_id": "R", "url": "https://x", "object": thing}
    github.check(answered("GET", "/repos/octo/widgets/git/ref/heads/ptq/issue-7", 200, ref))


def test_githubs_own_example_of_a_pull_request_passes(github: OpenApi) -> None:
    body = {"title": "Amazing new feature", "head": "octocat:new-feature", "base": "master", "draft": True}
    github.check_request(posted("/repos/octo/widgets/pulls", body))
