"""The stand-in makes an App of a manifest as GitHub does, and lets its owner install it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.visitor import NAME, PERMISSIONS, Visitor, open_visitor

MANIFEST = {
    "name": "ptq-bot-of-octo",
    "url": "https://ptq.example",
    "hook_attributes": {"url": "https://ptq.example/webhook"},
    "redirect_url": "http://127.0.0.1:1/github/created",
    "public": False,
    "default_permissions": {"issues": "write"},
    "default_events": ["issues"],
}


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    async with open_visitor(tmp_path) as visitor:
        yield visitor


async def create(visitor: Visitor, **changes: object) -> tuple[int, str]:
    """The status, and the address that it leads to."""
    manifest = json.dumps({**MANIFEST, **changes})
    form = {"manifest": manifest, "name": "Bot of Octo", "state": "s 1", "owner": "octo"}
    url = f"{visitor.github.url}/settings/apps/manifest"
    async with visitor.session.post(url, data=form, allow_redirects=False) as answer:
        return answer.status, answer.headers.get("Location", "")


async def test_whoever_confirms_comes_back_with_a_code_that_is_good_once(visitor: Visitor) -> None:
    status, location = await create(visitor)
    query = parse_qs(urlsplit(location).query)
    assert (status, location.partition("?")[0], query["state"]) == (302, MANIFEST["redirect_url"], ["s 1"])
    path = f"/app-manifests/{query['code'][0]}/conversions"
    made = await visitor.ask("POST", path, token="")
    assert (made.status, made.body["slug"], made.body["owner"]["login"]) == (201, "bot-of-octo", "octo")
    assert made.body["permissions"] == {"metadata": "read", "issues": "write"}
    assert made.body["pem"].startswith("-----BEGIN")
    assert min(len(made.body[name]) for name in ("webhook_secret", "client_secret")) > 20
    assert visitor.github.webhook_url == "https://ptq.example/webhook"
    assert (await visitor.ask("POST", path, token="")).status == 404
    app_token = visitor.app_token({"iss": made.body["id"]}, key=made.body["pem"])
    assert (await visitor.ask("GET", "/app", token=app_token)).body["slug"] == "bot-of-octo"
    assert (await visitor.ask("GET", "/app", token=visitor.app_token())).status == 401, "the App before is no more"


async def test_the_page_shows_what_the_app_would_get(visitor: Visitor) -> None:
    url = f"{visitor.github.url}/organizations/octo/settings/apps/new?state=s"
    async with visitor.session.post(url, data={"manifest": json.dumps(MANIFEST)}) as answer:
        page = await answer.text()
    assert answer.status == 200
    for words in ("issues: write", "https://ptq.example/webhook", "Owner: <b>octo</b>", 'value="ptq-bot-of-octo"'):
        assert words in page, words


@pytest.mark.parametrize(
    "changes", [{"hook_attributes": {}}, {"url": "ptq.example"}, {"redirect_url": None}, {"permissions": {}}]
)
async def test_a_manifest_that_github_would_refuse_is_refused(visitor: Visitor, changes: dict[str, object]) -> None:
    assert await create(visitor, **changes) == (422, "")


async def test_its_owner_installs_it_where_they_like(visitor: Visitor) -> None:
    visitor.github.add_repository("octo/parts", visitor.git_dir, installed=False)
    url = f"{visitor.github.url}/apps/ptq-bot/installations/new"
    async with visitor.session.get(url) as answer:
        assert 'value="octo/parts"' in await answer.text()
    async with visitor.session.post(url, data={"repository": "octo/parts"}) as answer:
        assert answer.status == 200
    listed = await visitor.ask("GET", "/app/installations", token=visitor.app_token())
    assert [found["permissions"] for found in listed.body] == [PERMISSIONS]
    token = f"/app/installations/{listed.body[0]['id']}/access_tokens"
    minted = await visitor.ask("POST", token, token=visitor.app_token())
    found = await visitor.ask("GET", "/installation/repositories", token=minted.body["token"])
    assert [one["full_name"] for one in found.body["repositories"]] == ["octo/parts"]
    assert (await visitor.ask("GET", f"/repos/{NAME}/installation", token=visitor.app_token())).status == 404
