"""Sends requests to GitHub on behalf of a person: to learn who they are, and to post a comment in their name.

This module keeps no token. It uses the web application flow for GitHub Apps with PKCE (docs.github.com, "Generating a
user access token for a GitHub App").
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import aiohttp
from yarl import URL

from bot.github.transport import ACCEPT, API_VERSION, USER_AGENT
from handlers.effects.outbox import SETTLES

TIMEOUT = aiohttp.ClientTimeout(total=20.0)

API = {"Accept": ACCEPT, "X-GitHub-Api-Version": API_VERSION}

_NO_ANSWER = (aiohttp.ClientError, TimeoutError, ValueError)


class OAuthFailed(Exception):  # noqa: N818
    """A request failed. The message is for people, in sentences without secrets."""


class OAuthUnanswered(OAuthFailed):
    """GitHub gave no usable answer, so the request may have worked, or may still work."""


@dataclass(frozen=True, slots=True)
class OAuthApp:
    """The App's client credentials, and GitHub's addresses."""

    client_id: str
    client_secret: str = field(repr=False)
    web_url: str
    api_url: str


@dataclass(frozen=True, slots=True)
class GitHubAccount:
    """Somebody's account on GitHub. Its login can change, and its id cannot."""

    login: str
    id: int


class GitHubOAuth:
    """Sends the requests. The session must not keep cookies: it would send one person's cookies for the next person."""

    def __init__(self, session: aiohttp.ClientSession, app: OAuthApp, *, settles: timedelta = SETTLES) -> None:
        """`settles` is how long GitHub may continue to work on a request whose answer was lost."""
        self._session = session
        self._app = app
        self.settles = settles

    def authorize_url(self, state: str, verifier: str, redirect_uri: str, login: str = "") -> str:
        """The address of GitHub's sign-in page. `login` is the person who is expected to sign in, if known."""
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "client_id": self._app.client_id,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
            **({"login": login} if login else {}),
        }
        return str(URL(f"{self._app.web_url}/login/oauth/authorize").with_query(query))

    async def redeem(self, code: str, verifier: str, redirect_uri: str) -> str:
        """Exchange a code for a person's token. A code works once. Raises `OAuthFailed`."""
        form = {
            "client_id": self._app.client_id,
            "client_secret": self._app.client_secret,
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
        }
        url = f"{self._app.web_url}/login/oauth/access_token"
        answer = await self._ask("POST", url, data=form, headers={"Accept": "application/json"})
        token = answer.get("access_token")
        if not isinstance(token, str):
            raise OAuthFailed("GitHub rejected the sign-in: its code was already used or has expired.")
        return token

    async def fetch_account(self, token: str) -> GitHubAccount:
        """The account that a token belongs to. Raises `OAuthFailed`."""
        found = await self._ask("GET", f"{self._app.api_url}/user", token=token)
        login, number = found.get("login"), found.get("id")
        if not isinstance(login, str) or not isinstance(number, int):
            raise OAuthFailed("GitHub did not say who you are.")
        return GitHubAccount(login, number)

    async def comment(self, token: str, repository: str, number: int, body: str) -> str:
        """Post a comment as the person, and return its address. Raises `OAuthFailed`.

        The comment does not use the installation's write budget, because GitHub counts it for the person.
        """
        url = f"{self._app.api_url}/repos/{repository}/issues/{number}/comments"
        answer = await self._ask("POST", url, token=token, json={"body": body})
        return str(answer.get("html_url", ""))

    async def revoke(self, token: str) -> None:
        """Revoke a token. Best effort: never raises `OAuthFailed`, because the token also expires."""
        with suppress(OAuthFailed):
            headers = {**API, "Authorization": aiohttp.encode_basic_auth(self._app.client_id, self._app.client_secret)}
            url = f"{self._app.api_url}/applications/{self._app.client_id}/token"
            await self._ask("DELETE", url, headers=headers, json={"access_token": token})

    async def _ask(
        self, method: str, url: str, *, token: str = "", headers: Mapping[str, str] | None = None, **more: Any
    ) -> dict[str, Any]:
        sent = {"User-Agent": USER_AGENT, **(headers or API)} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            async with self._session.request(
                method, url, headers=sent, timeout=TIMEOUT, allow_redirects=False, **more
            ) as answer:
                found = await answer.json(content_type=None) if answer.status != 204 else {}
                status = answer.status
        except _NO_ANSWER as error:
            # The message names only the type of the error, because the text of some errors contains the request.
            raise OAuthUnanswered(f"GitHub gave no usable answer ({type(error).__name__}). Please try again.") from None
        if status >= 500:
            raise OAuthUnanswered(f"GitHub answered {status}. Please try again.")
        if status >= 300 or not isinstance(found, dict):
            raise OAuthFailed(f"GitHub answered {status}.")
        return found
