"""Reads GitHub's data about the App, its webhook, its installations and repositories, for the doctor.

This module does not judge the data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from bot.github.calls import Calls
from bot.github.credentials import AppCredentials
from bot.github.limits import Left
from bot.github.pace import OwnBudget
from bot.github.payloads import parse_time, parse_tree, read_answer
from bot.github.timings import Timings
from bot.github.tokens import Access
from bot.github.transport import USER_AGENT
from handlers.cases.known_repositories import KnownRepositories
from handlers.ports import NotFound, WritePriority

QUICK = Timings(attempts=2, max_wait_s=5.0)
"""Short waits, because a person waits at a terminal."""


@dataclass(frozen=True, slots=True)
class AppFacts:
    """The App's registration on GitHub."""

    id: str
    slug: str
    permissions: Mapping[str, str]
    events: frozenset[str]


@dataclass(frozen=True, slots=True)
class HookFacts:
    """The settings of the App's webhook."""

    url: str
    content_type: str
    insecure: bool
    """Whether GitHub skips the check of the receiver's certificate."""
    has_secret: bool


@dataclass(frozen=True, slots=True)
class DeliveryFacts:
    """GitHub's record of one delivery. `status_code` is 0 if there was no answer."""

    guid: str
    event: str
    action: str | None
    delivered_at: datetime
    status_code: int
    status: str

    @property
    def succeeded(self) -> bool:
        """Whether the receiver accepted the delivery."""
        return 200 <= self.status_code < 300


@dataclass(frozen=True, slots=True)
class InstallationFacts:
    """The App's installation that covers a repository."""

    permissions: Mapping[str, str]
    suspended: bool


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    """A repository that jobs are to work on."""

    name: str
    """`owner/name` as it is now."""
    private: bool
    archived: bool
    has_issues: bool
    default_branch: str
    page: str
    """The URL of its web page."""


class Inspection:
    """Reads from GitHub as the App. Each method raises `GitHubError`, `NotFound` or `GitHubUnavailable`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        api_url: str,
        app_id: str,
        private_key: str,
        now: Callable[[], datetime],
        repositories: KnownRepositories,
    ) -> None:
        """The caller owns the session."""
        self._session, self._api_url, self._now = session, api_url, now
        self._credentials = AppCredentials.from_pem(app_id, private_key)
        budget = OwnBudget(QUICK.budget(), now)
        self._calls = Calls(session, api_url, self._credentials, QUICK, now, budget, repositories)

    async def measure_skew_s(self) -> float | None:
        """The seconds by which this clock is ahead of GitHub's, accurate to one or two seconds.

        None if the answer has no date. Raises `aiohttp.ClientError` and `TimeoutError` if there is no answer.
        """
        before = time.time()
        timeout = aiohttp.ClientTimeout(total=QUICK.timeout_s)
        # The answer has a date even if GitHub rejects the token.
        headers = {"user-agent": USER_AGENT, "authorization": f"Bearer {self._credentials.sign(self._now()).secret}"}
        url = f"{self._api_url}/app"
        async with self._session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
            said = response.headers.get("date", "")
        try:
            theirs = parsedate_to_datetime(said).timestamp()
        except ValueError:
            return None
        return (before + time.time()) / 2 - theirs

    async def fetch_app(self) -> AppFacts:
        """The App that the private key belongs to."""
        return read_answer(_parse_app, await self._calls.fetch_as_app("/app"))

    async def fetch_hook(self) -> HookFacts:
        """The settings of the App's webhook."""
        return read_answer(_parse_hook, await self._calls.fetch_as_app("/app/hook/config"))

    async def list_newest_deliveries(self) -> list[DeliveryFacts]:
        """One page of deliveries, newest first."""
        async with aclosing(self._calls.list_as_app("/app/hook/deliveries{?per_page}")) as pages:
            async for page in pages:
                return read_answer(lambda found: [_parse_delivery(one) for one in found], page)
        return []

    async def fetch_installation(self, repository: str) -> InstallationFacts:
        """The installation on a repository. Raises `NotFound` if there is none."""
        owner, _, name = repository.partition("/")
        path = "/repos/{owner}/{repo}/installation"
        return read_answer(_parse_installation, await self._calls.fetch_as_app(path, owner=owner, repo=name))

    async def fetch_repository(self, repository: str) -> RepositoryFacts:
        """A repository on which the App is installed."""
        return read_answer(_parse_repository, await self._calls.fetch_repository(Access.READ_CODE, repository))

    async def find_number(self, repository: str) -> int:
        """GitHub's id of the repository that has this name now."""
        return await self._calls.tokens.find_number(repository)

    async def has_label(self, repository: str, label: str) -> bool:
        """Whether a repository has this label."""
        try:
            await self._calls.fetch(Access.READ_ISSUES, repository, "/labels/{label}", label=label)
        except NotFound:
            return False
        return True

    async def ask_graphql(self, repository: str) -> None:
        """Send a GraphQL query that asks for no data. Raises if the GraphQL API cannot be used."""
        await self._calls.query(Access.READ_ISSUES, repository, "query { __typename }", {}, WritePriority.LIVE)

    def list_left(self, repository: str) -> list[Left]:
        """The calls that the rate limits of the repository's account leave, according to the latest answers."""
        account = repository.partition("/")[0].lower()
        return [left for whose, left in self._calls.list_left() if whose.lower() == account]

    async def list_workflows(self, repository: str, branch: str) -> list[str]:
        """The paths of the files in `.github/workflows` on a branch."""
        folder, sha = "", branch
        for name in (".github", "workflows"):
            entries = await self._list_tree(repository, sha)
            found = next((sha for entry, kind, sha in entries if (entry, kind) == (name, "tree")), None)
            if found is None:
                return []
            folder, sha = f"{folder}{name}/", found
        return [f"{folder}{entry}" for entry, kind, _ in await self._list_tree(repository, sha) if kind == "blob"]

    async def _list_tree(self, repository: str, sha: str) -> list[tuple[str, str, str]]:
        tree = await self._calls.fetch(Access.READ_CODE, repository, "/git/trees/{sha}", sha=sha)
        return read_answer(parse_tree, tree)


def _parse_app(payload: Mapping[str, Any]) -> AppFacts:
    return AppFacts(
        id=str(payload["id"]),
        slug=str(payload["slug"]),
        permissions=_parse_permissions(payload["permissions"]),
        events=frozenset(map(str, payload["events"])),
    )


def _parse_permissions(told: Mapping[str, Any]) -> Mapping[str, str]:
    return {str(name): str(level) for name, level in told.items()}


def _parse_hook(payload: Mapping[str, Any]) -> HookFacts:
    return HookFacts(
        url=str(payload.get("url") or ""),
        content_type=str(payload.get("content_type") or "form"),
        insecure=str(payload.get("insecure_ssl") or "0") != "0",
        has_secret=bool(payload.get("secret")),
    )


def _parse_delivery(payload: Mapping[str, Any]) -> DeliveryFacts:
    return DeliveryFacts(
        guid=str(payload["guid"]),
        event=str(payload["event"]),
        action=payload.get("action"),
        delivered_at=parse_time(payload["delivered_at"]),
        status_code=int(payload["status_code"] or 0),
        status=str(payload["status"]),
    )


def _parse_installation(payload: Mapping[str, Any]) -> InstallationFacts:
    return InstallationFacts(_parse_permissions(payload["permissions"]), payload["suspended_at"] is not None)


def _parse_repository(payload: Mapping[str, Any]) -> RepositoryFacts:
    return RepositoryFacts(
        name=str(payload["full_name"]),
        private=payload["private"] is True,
        archived=payload["archived"] is True,
        has_issues=payload["has_issues"] is True,
        default_branch=str(payload["default_branch"]),
        page=str(payload["html_url"]),
    )
