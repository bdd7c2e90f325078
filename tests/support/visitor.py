"""Somebody who talks to the stand-in with a plain HTTP client, under the eyes of GitHub's description."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import jwt

from github_standin import StandIn
from tests.support.clock import Clock
from tests.support.openapi import load_openapi
from tests.support.repository import copy_repository
from tests.support.scripted_github import app_public_pem, make_app_key

NAME = "octo/widgets"
REPO = f"/repos/{NAME}"
APP_ID = "4711"
SECRET = "hush"
PERMISSIONS = {"metadata": "read", "issues": "write", "pull_requests": "write", "contents": "write"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def message(self) -> str:
        return str(self.body["message"])


@dataclass
class Visitor:
    github: StandIn
    session: aiohttp.ClientSession
    clock: Clock
    base: str
    git_dir: Path
    token: str = ""

    def app_token(
        self, claims: Mapping[str, object] = MappingProxyType({}), *, key: str = "", alg: str = "RS256"
    ) -> str:
        now = int(self.clock().timestamp())
        facts = {"iat": now - 60, "exp": now + 540, "iss": APP_ID, **claims}
        # Not `jwt.encode`, which refuses what we want to see refused. To read the key from its PEM takes 80 ms.
        return jwt.PyJWS().encode(json.dumps(facts).encode(), key or make_app_key(), alg)

    async def ask(
        self, method: str, path: str, body: object = None, *, token: str | None = None, **headers: str
    ) -> Reply:
        credential = self.token if token is None else token
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {credential}", **{key.replace("_", "-"): headers[key] for key in headers}}
        url = path if path.startswith("http") else f"{self.github.api_url}{path}"
        async with self.session.request(method, url, data=data, headers=headers, allow_redirects=False) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return Reply(answer.status, answer.headers, json.loads(text) if is_json and text else text)

    async def mint(self, **narrowing: object) -> Reply:
        app_token = self.app_token()
        installation = (await self.ask("GET", f"{REPO}/installation", token=app_token)).body["id"]
        return await self.ask("POST", f"/app/installations/{installation}/access_tokens", narrowing, token=app_token)

    async def sign_in(self, **narrowing: object) -> str:
        token: str = (await self.mint(**narrowing)).body["token"]
        return token

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        done = subprocess.run(["git", *arguments], cwd=cwd or self.git_dir, check=True, capture_output=True, text=True)
        return done.stdout.strip()


@asynccontextmanager
async def open_visitor(folder: Path, *, watched: bool = True) -> AsyncIterator[Visitor]:
    """A visitor at a stand-in with one small repository; `watched` holds every exchange against the description."""
    clock = Clock()
    github = StandIn(
        app_id=APP_ID,
        app_slug="ptq-bot",
        app_public_key=app_public_pem(),
        webhook_secret=SECRET,
        app_permissions=PERMISSIONS,
        app_events=("issues", "issue_comment"),
        clock=clock,
    )
    if watched:
        github.observers.append(load_openapi().check)
    base = copy_repository(folder / "widgets.git")
    github.add_repository(NAME, folder / "widgets.git")
    github.set_permission(NAME, "alice", "write")
    await github.start()
    try:
        async with aiohttp.ClientSession() as session:
            visitor = Visitor(github, session, clock, base, folder / "widgets.git")
            visitor.token = await visitor.sign_in()
            yield visitor
    finally:
        await github.stop()
    assert not github.complaints, "\n".join(github.complaints)
