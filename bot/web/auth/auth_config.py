"""What the operator has set up of the dashboard, as its parts need it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import aiohttp

from bot.config.settings import Settings
from bot.operations.bases import find_web_url
from bot.web.auth.oauth import GitHubOAuth, OAuthApp
from bot.web.auth.visibility import LASTS_S


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Who gets in, and how. As it is here, nobody can sign in."""

    oauth: GitHubOAuth | None = None
    public: bool = True
    """Whether jobs of public repositories are shown to everybody."""
    operators: Collection[str] = ()
    web_url: str = ""
    """Where GitHub's pages are."""
    role_lasts_s: float = LASTS_S
    """How long an answer of GitHub's is good for looking, in seconds."""


def build_auth_config(session: aiohttp.ClientSession, settings: Settings) -> AuthConfig:
    """The `[dashboard]` table. The session keeps no cookies."""
    table, web_url = settings.dashboard, find_web_url(settings.github.api_url)
    if table.client_id is None:
        return AuthConfig(web_url=web_url)
    app = OAuthApp(table.client_id, table.read_client_secret(), web_url, settings.github.api_url)
    return AuthConfig(GitHubOAuth(session, app), table.public, table.operators, web_url)
