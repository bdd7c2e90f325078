"""The configuration of sign-in and access."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import aiohttp

from bot.config.settings import Settings
from bot.config.tables import find_web_url
from bot.github.limits import ListLeft
from bot.web.auth.oauth import GitHubOAuth, OAuthApp
from bot.web.auth.visibility import LASTS_S, NONE_LASTS_S


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """The settings for who can sign in, and who sees what. With the defaults, nobody can sign in."""

    oauth: GitHubOAuth | None = None
    public: bool = True
    """Whether everybody sees jobs of public repositories."""
    operators: Collection[str] = ()
    web_url: str = ""
    """The address of GitHub's pages."""
    role_lasts_s: float = LASTS_S
    """How long a role from GitHub is cached for reading, in seconds."""
    none_lasts_s: float = NONE_LASTS_S
    """How long it is cached that somebody has no role, in seconds."""
    list_left: ListLeft = tuple
    """Lists what is left of GitHub's rate limits, by account."""
    calls_of_person: int | None = None
    """How often the pages of one person may ask GitHub in an hour. None: it depends on the number of repositories."""


def build_auth_config(session: aiohttp.ClientSession, settings: Settings, list_left: ListLeft) -> AuthConfig:
    """Build the configuration from the `[dashboard]` table. The session must not keep cookies."""
    table, web_url = settings.dashboard, find_web_url(settings.github.api_url)
    if table.client_id is None:
        return AuthConfig(web_url=web_url)
    app = OAuthApp(table.client_id, table.read_client_secret(), web_url, settings.github.api_url)
    return AuthConfig(GitHubOAuth(session, app), table.public, table.operators, web_url, list_left=list_left)
