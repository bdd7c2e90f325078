"""Set-up's requests to GitHub: create an App from the manifest, and list where it is installed.

https://docs.github.com/en/apps/sharing-github-apps/registering-a-github-app-from-a-manifest
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp

from bot.config.manifest import load_manifest
from bot.github.credentials import AppCredentials, Bearer
from bot.github.inspection import QUICK
from bot.github.payloads import read_answer
from bot.github.session import OutboundSettings, Proxy, check_authorities, describe_failure, open_session
from bot.github.transport import ACCEPT, API_VERSION, USER_AGENT, Line
from bot.setup.answers import App, Place
from bot.web.dashboard.sign_in import CALLBACK
from handlers.ports import GitHubError, GitHubUnavailable

CREATED = "/github/created"
"""The page to which GitHub redirects the browser."""

MAX_PAGES = 20
"""The most pages of repositories, with 100 repositories each."""

GITHUB_ERRORS = (GitHubError, GitHubUnavailable)


class GitHubSetupError(Exception):
    """GitHub could not be asked, or refused. The message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A repository where the App is installed."""

    name: str
    private: bool


def make_manifest(place: Place, our_url: str) -> str:
    """The manifest of the App, as JSON. GitHub redirects the browser back to `our_url`. Pure."""
    manifest = load_manifest()
    return json.dumps(
        {
            "name": place.app_name,
            "description": manifest.description,
            "url": place.public_url,
            "hook_attributes": {"url": place.delivery_url, "active": True},
            "redirect_url": f"{our_url}{CREATED}",
            "callback_urls": [f"{place.public_url}{CALLBACK}"],
            "public": manifest.public,
            "default_permissions": dict(manifest.permissions),
            "default_events": list(manifest.events),
        }
    )


def find_form_address(place: Place, state: str) -> str:
    """The address to which a browser posts the manifest. Pure."""
    owner = f"/organizations/{quote(place.organization)}" if place.organization else ""
    return f"{place.web_url}{owner}/settings/apps/new?{urlencode({'state': state})}"


def connect(place: Place) -> aiohttp.ClientSession:
    """Open connections to this GitHub. Raises `GitHubSetupError` if its `ca_file` cannot be used."""
    try:
        ca_file = check_authorities(Path(place.ca_file).expanduser()) if place.ca_file else None
    except ValueError as error:
        raise GitHubSetupError(f"The CA bundle {error}.") from None
    timeout = aiohttp.ClientTimeout(total=QUICK.timeout_s)
    proxy = Proxy(place.proxy, place.proxy_credentials) if place.proxy else None
    return open_session(OutboundSettings(ca_file, proxy), timeout=timeout)


async def convert(place: Place, code: str) -> App:
    """The new App with its secrets, which GitHub shows only once. Raises `GitHubSetupError`."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,200}", code):
        raise GitHubSetupError("GitHub's code is not valid.")
    headers = {"accept": ACCEPT, "x-github-api-version": API_VERSION, "user-agent": USER_AGENT}
    url = f"{place.api_url}/app-manifests/{code}/conversions"
    try:
        async with connect(place) as session, session.post(url, headers=headers, allow_redirects=False) as answer:
            status, body = answer.status, await answer.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise GitHubSetupError(
            f"GitHub did not answer at {place.api_url} ({describe_failure(error)}). {ENTER_BY_HAND}"
        ) from error
    if status == 404:
        raise GitHubSetupError("GitHub does not know this code: it works once, for an hour. Create the App again.")
    if status != 201:
        raise GitHubSetupError(f"GitHub answered {status} to the request for the App. {ENTER_BY_HAND}")
    try:
        return _parse_app(json.loads(body))
    except (ValueError, KeyError, TypeError) as error:
        raise GitHubSetupError(f"GitHub's answer about the App is not valid. {ENTER_BY_HAND}") from error


ENTER_BY_HAND = (
    "If the App is in its owner's settings, create a private key and a webhook secret there and enter them on this "
    "page; or delete the App and create it again."
)


def _parse_app(told: dict[str, Any]) -> App:
    return App(
        id=str(int(told["id"])),
        slug=str(told["slug"]),
        html_url=str(told["html_url"]),
        private_key=str(told["pem"]),
        webhook_secret=str(told["webhook_secret"]),
        client_id=str(told["client_id"]),
        client_secret=str(told["client_secret"]),
        owner=_find_owner(told),
    )


def _find_owner(told: dict[str, Any]) -> str:
    """The login of the person who owns an App; empty if an organization does."""
    owner = told.get("owner") or {}
    return str(owner["login"]) if owner.get("type") == "User" else ""


async def complete(place: Place, app: App, now: Callable[[], datetime]) -> App:
    """An App that was entered by hand, with its name and address from GitHub. Raises `GitHubSetupError`."""
    try:
        async with connect(place) as session:
            line, credentials = _open(place, app, session, now)
            told, _ = await line.ask("GET", "/app", {}, credentials.sign(now()))
        slug, html_url, owner = read_answer(
            lambda found: (str(found["slug"]), str(found["html_url"]), _find_owner(found)), told
        )
    except GITHUB_ERRORS as error:
        raise GitHubSetupError(f"GitHub rejected this key for App ID {app.id}: {error}.") from error
    return replace(app, slug=slug, html_url=html_url, owner=owner)


async def list_installed(place: Place, app: App, now: Callable[[], datetime]) -> list[Installed]:
    """The repositories where the App is installed, by name. Raises `GitHubSetupError`."""
    found: list[Installed] = []
    try:
        async with connect(place) as session:
            line, credentials = _open(place, app, session, now)
            url: str | None = "/app/installations?per_page=100"
            while url:
                installations, url = await line.ask("GET", url, {}, credentials.sign(now()))
                for installation in installations:
                    number = read_answer(lambda one: int(one["id"]), installation)
                    path = f"/app/installations/{number}/access_tokens"
                    wanted = {"permissions": {"metadata": "read"}}
                    minted, _ = await line.ask("POST", path, {}, credentials.sign(now()), wanted)
                    found += await _list_repositories(line, read_answer(lambda one: Bearer(one["token"]), minted))
    except GITHUB_ERRORS as error:
        raise GitHubSetupError(f"GitHub did not list where the App is installed: {error}.") from error
    return sorted(found, key=lambda repository: repository.name.casefold())


async def _list_repositories(line: Line, bearer: Bearer) -> list[Installed]:
    found: list[Installed] = []
    url: str | None = "/installation/repositories?per_page=100"
    for _ in range(MAX_PAGES):
        if not url:
            break
        page, url = await line.ask("GET", url, {}, bearer)
        found += read_answer(_parse_repositories, page)
    return found


def _parse_repositories(page: dict[str, Any]) -> list[Installed]:
    return [Installed(str(one["full_name"]), one["private"] is True) for one in page["repositories"]]


def _open(
    place: Place, app: App, session: aiohttp.ClientSession, now: Callable[[], datetime]
) -> tuple[Line, AppCredentials]:
    return Line(session, place.api_url, QUICK, now), AppCredentials.from_pem(app.id, app.private_key)
