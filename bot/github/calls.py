"""Calls below one repository: the right token, the right line, every page.

It refuses to know the shapes of requests and answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import Any

import aiohttp

from bot.github.credentials import AppCredentials
from bot.github.timings import Timings
from bot.github.tokens import Access, Grant, Tokens
from bot.github.transport import Line
from handlers.ports import GitHubError, GitHubUnavailable

PAGE_SIZE = 100
_UNAUTHORIZED = 401


class Calls:
    """GitHub's API as one App reaches it. Each method raises `GitHubError`, `NotFound` or `GitHubUnavailable`.

    `path` is a URI template (RFC 6570) below `/repos/OWNER/NAME`, filled and quoted from `url_vars`.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        api_url: str,
        credentials: AppCredentials,
        timings: Timings,
        now: Callable[[], datetime],
    ) -> None:
        self._session = session
        self._api_url = api_url
        self._credentials = credentials
        self._timings = timings
        self._now = now
        self._app_line = self._open_line(paced=False)
        self._lines: dict[int, Line] = {}
        self._tokens = Tokens(self._app_line, credentials, timings, now)

    async def fetch_as_app(self, path: str, **url_vars: Any) -> Any:
        """One thing that is the App's own; `path` is below the API's root."""
        answer, _ = await self._app_line.ask("GET", path, url_vars, self._credentials.sign(self._now()))
        return answer

    async def list_as_app(self, path: str, **url_vars: Any) -> AsyncGenerator[list[Any], None]:
        """The pages of a list of the App's own, as the `Link` headers lead; `path` takes `per_page`."""
        url, filling = path, {**url_vars, "per_page": PAGE_SIZE}
        while url:
            page, more = await self._app_line.ask("GET", url, filling, self._credentials.sign(self._now()))
            yield page or []
            url, filling = more or "", {}

    async def fetch(self, access: Access, repository: str, path: str, **url_vars: Any) -> Any:
        """One thing, or the first page of a list."""
        answer, _ = await self._ask(access, repository, "GET", *_below(repository, path, url_vars))
        return answer

    async def fetch_all(self, access: Access, repository: str, path: str, **url_vars: Any) -> list[Any]:
        """A whole list, page by page as the `Link` headers lead; `path` takes `per_page`."""
        items: list[Any] = []
        url, filling = _below(repository, path, {**url_vars, "per_page": PAGE_SIZE})
        for _ in range(self._timings.max_pages):
            page, more = await self._ask(access, repository, "GET", url, filling)
            items += page or []
            if more is None:
                return items
            url, filling = more, {}
        raise GitHubUnavailable(f"{path} of {repository} has more than {self._timings.max_pages} pages")

    async def send(self, access: Access, repository: str, method: str, path: str, data: Any, **url_vars: Any) -> Any:
        """A write. Sent again only where GitHub certainly did not act on it."""
        answer, _ = await self._ask(access, repository, method, *_below(repository, path, url_vars), data)
        return answer

    async def _ask(
        self, access: Access, repository: str, method: str, url: str, filling: dict[str, Any], data: Any = b""
    ) -> tuple[Any, str | None]:
        grant = await self._tokens.fetch(repository, access)
        try:
            return await self._line(grant).ask(method, url, filling, grant.bearer, data)
        except GitHubError as refusal:
            if refusal.status != _UNAUTHORIZED:
                raise
        # GitHub took the token back early, and did nothing: a new one, once.
        self._tokens.forget(grant)
        grant = await self._tokens.fetch(repository, access)
        return await self._line(grant).ask(method, url, filling, grant.bearer, data)

    def _line(self, grant: Grant) -> Line:
        if grant.installation_id not in self._lines:
            self._lines[grant.installation_id] = self._open_line(paced=True)
        return self._lines[grant.installation_id]

    def _open_line(self, *, paced: bool) -> Line:
        return Line(self._session, self._api_url, self._timings, self._now, paced=paced)


def _below(repository: str, path: str, url_vars: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    owner, _, name = repository.partition("/")
    return "/repos/{owner}/{repo}" + path, {"owner": owner, "repo": name, **url_vars}
