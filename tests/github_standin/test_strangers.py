"""Whatever is thrown at the stand-in, it answers as GitHub would: with a refusal, never with an accident."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from github_standin.api.endpoints import ENDPOINTS
from tests.support.visitor import NAME, REPO, Visitor, open_visitor

STRANGE_BODIES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe",
    b'{"body": "\\ud800"}',
    b'{"body": NaN}',
    b'{"body": ' + b"9" * 5000 + b"}",
    b"[" * 100_000,
    b'{"body": {"a": []}, "title": 7, "content": null, "tree": [null], "sha": [], "ref": {}, "labels": "x"}',
    b'{"tree": [{}], "message": "\\u0000", "head": "\\u0000", "base": "-", "permissions": [], "content": "eyes"}',
)
STRANGE_PARTS = ("1", "0", "999999999999999999", "%00", "..", "-x", "%2F", "%FF%FE", "a%0Ab", "x" * 300, "%F0%9F%99%82")
STRANGE_QUERIES = ("", "?page=-1&per_page=x", "?since=yesterday", "?since=0001-01-01T00:00:00%2B14:00", "?ref=%00")
STRANGE_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    "",
    "x",
    "\0",
    "refs/heads/\n",
    [],
    [None],
    {},
    {"a": 1},
)
FIELDS = (
    *("title", "body", "state", "labels", "content", "encoding", "tree", "base_tree", "message", "parents", "author"),
    *("ref", "sha", "force", "head", "base", "draft", "repositories", "repository_ids", "permissions"),
)


async def fill(visitor: Visitor) -> None:
    await visitor.github.open_issue(NAME, "Broken", "It is.", by="bob", labels=["ptq"])
    await visitor.github.comment(NAME, 1, "hello", by="bob")
    visitor.github.limits.content_per_minute = visitor.github.limits.content_per_hour = 10**9
    visitor.github.limits.requests_per_hour = 10**9


def path_of(template: str, part: str) -> str:
    path = template.replace("{owner}/{repo}", NAME)
    while "{" in path:
        head, _, rest = path.partition("{")
        path = head + part + rest.partition("}")[2]
    return path


@pytest.mark.slow
@pytest.mark.parametrize("part", STRANGE_PARTS)
async def test_strange_paths_and_queries_are_refused(tmp_path: Path, part: str) -> None:
    async with open_visitor(tmp_path, watched=False) as visitor:
        await fill(visitor)
        for endpoint in ENDPOINTS:
            token = visitor.app_token() if endpoint.needs == "app" else visitor.token
            for query in STRANGE_QUERIES:
                reply = await visitor.ask(endpoint.method, f"{path_of(endpoint.path, part)}{query}", token=token)
                assert reply.status < 500, (endpoint, part, query)


@pytest.mark.slow
async def test_strange_bodies_are_refused(tmp_path: Path) -> None:
    async with open_visitor(tmp_path, watched=False) as visitor:
        await fill(visitor)
        for endpoint in ENDPOINTS:
            if endpoint.method != "GET":
                token = visitor.app_token() if endpoint.needs == "app" else visitor.token
                for body in STRANGE_BODIES:
                    reply = await visitor.ask(endpoint.method, path_of(endpoint.path, "1"), body, token=token)
                    assert reply.status < 500, (endpoint, body)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_fields_of_the_wrong_kind_are_refused(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with open_visitor(tmp_path, watched=False) as visitor:
        await fill(visitor)
        writes = [endpoint for endpoint in ENDPOINTS if endpoint.method in ("POST", "PATCH")]
        for _ in range(120):
            endpoint = chance.choice(writes)
            token = visitor.app_token() if endpoint.needs == "app" else visitor.token
            body = {name: chance.choice((*STRANGE_VALUES, "main", visitor.base)) for name in FIELDS}
            body["tree"] = chance.choice((body["tree"], [{"path": "a", "mode": "100644", "sha": body["sha"]}]))
            reply = await visitor.ask(endpoint.method, path_of(endpoint.path, "1"), body, token=token)
            assert reply.status < 500, (endpoint, body)


@pytest.mark.parametrize("part", STRANGE_PARTS)
async def test_strange_pages_are_not_found(tmp_path: Path, part: str) -> None:
    async with open_visitor(tmp_path, watched=False) as visitor:
        await fill(visitor)
        for path in (f"/{part}", f"/{part}/{part}", f"/{NAME}/issues/{part}", f"/{NAME}/pull/{part}.diff"):
            assert (await visitor.ask("GET", f"{visitor.github.url}{path}")).status < 500
        for path in ("info/refs?service=git-upload-pack", f"info/refs?service={part}"):
            assert (await visitor.ask("GET", f"{visitor.github.url}/{NAME}.git/{path}")).status < 500
        pack = f"{visitor.github.url}/{NAME}.git/git-upload-pack"
        assert (await visitor.ask("POST", pack, b"0032want nothing")).status == 400
        assert (await visitor.ask("GET", REPO)).status == 200
