"""Calls to GitHub's API for one repository. Chooses the token and the `Line`, and follows the pages of lists.

This module does not know the content of requests and answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import aiohttp

from bot.github.credentials import AppCredentials
from bot.github.limits import Left
from bot.github.pace import WritePace
from bot.github.payloads import find_refusal, read_answer
from bot.github.timings import Timings
from bot.github.tokens import Access, Grant, Tokens
from bot.github.transport import Line, Unauthorized
from handlers.cases.known_repositories import KnownRepositories
from handlers.effects.rate_limit import WriteBudget
from handlers.ports import NotFound, TooLong, WritePriority

PAGE_SIZE = 100
BELOW = "/repos/{owner}/{repo}"


class Calls:
    """GitHub's API for one App. Each method raises `GitHubError`, `NotFound` or `GitHubUnavailable`.

    `path` is a URI template (RFC 6570) relative to `/repos/OWNER/NAME`. `url_vars` are its variables, not yet quoted.
    `repository` names the repository that had this name when the service first used the name. OWNER/NAME is the current
    name of that repository.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        api_url: str,
        credentials: AppCredentials,
        timings: Timings,
        now: Callable[[], datetime],
        budget: WriteBudget,
        repositories: KnownRepositories,
    ) -> None:
        self._session = session
        self._api_url = api_url
        self._credentials = credentials
        self._timings = timings
        self._now = now
        self._budget = budget
        self._app_line = self._open_line(None)
        self._lines: dict[int, Line] = {}
        self._accounts: dict[int, str] = {}
        self.tokens = Tokens(self._app_line, credentials, timings, now, repositories)
        """Also for other protocols than this API, such as git's."""

    async def fetch_as_app(self, path: str, **url_vars: Any) -> Any:
        """Get a resource of the App itself. `path` is relative to the API's root."""
        answer, _ = await self._app_line.ask("GET", path, url_vars, self._credentials.sign(self._now()))
        return answer

    async def list_as_app(self, path: str, **url_vars: Any) -> AsyncGenerator[list[Any], None]:
        """Get a list of the App itself, page by page. `path` is relative to the API's root, and must use `per_page`."""
        url, filling = path, {**url_vars, "per_page": PAGE_SIZE}
        while url:
            page, more = await self._app_line.ask("GET", url, filling, self._credentials.sign(self._now()))
            yield page or []
            url, filling = more or "", {}

    async def fetch(self, access: Access, repository: str, path: str, **url_vars: Any) -> Any:
        """Get one resource, or the first page of a list."""
        answer, _ = await self._ask(access, repository, "GET", BELOW + path, url_vars)
        return answer

    async def fetch_repository(self, access: Access, repository: str) -> Any:
        """Get the repository itself. Never returns another one, even if that got the repository's name a moment ago."""
        number = (await self.tokens.fetch(repository, access)).number
        with suppress(NotFound):
            answer = await self.fetch(access, repository, "")
            if read_answer(_parse_number, answer) == number:
                return answer
        # The repository was renamed since its tokens were minted, or it is gone. Any token can read public
        # repositories, so the number is compared again.
        self.tokens.forget_repository(repository)
        answer = await self.fetch(access, repository, "")
        if read_answer(_parse_number, answer) != number:
            raise NotFound(404, f"another repository is called {repository}")
        return answer

    async def list_pages(
        self, access: Access, repository: str, path: str, **url_vars: Any
    ) -> AsyncGenerator[list[Any], None]:
        """Get a list page by page, as linked by the `Link` headers. `path` must use `per_page`.

        A page has up to 100 texts of strangers, so the caller should keep only the parts that it needs. Raises
        `TooLong` if the list has more than `max_pages` pages.
        """
        url, filling = BELOW + path, {**url_vars, "per_page": PAGE_SIZE}
        for _ in range(self._timings.max_pages):
            page, more = await self._ask(access, repository, "GET", url, filling)
            yield page or []
            if more is None:
                return
            url, filling = more, {}
        raise TooLong(f"{path} of {repository}", self._timings.max_pages)

    async def fetch_account(self, access: Access, repository: str, login: str, path: str = "", **url_vars: Any) -> Any:
        """Get public data of an account, with a token for the repository. `path` is relative to `/users/LOGIN`."""
        answer, _ = await self._ask(access, repository, "GET", "/users/{login}" + path, {"login": login, **url_vars})
        return answer

    async def send(
        self,
        access: Access,
        repository: str,
        method: str,
        path: str,
        data: Any,
        priority: WritePriority = WritePriority.REPORT,
        **url_vars: Any,
    ) -> Any:
        """Send a write. It is repeated only if GitHub certainly did not act on it."""
        answer, _ = await self._ask(access, repository, method, BELOW + path, url_vars, data, priority)
        return answer

    async def query(
        self, access: Access, repository: str, query: str, variables: Mapping[str, str], priority: WritePriority
    ) -> Any:
        """Send a GraphQL request that does no harm if it is sent twice. Returns its `data`."""
        # An Enterprise Server has its REST API at /api/v3, and GraphQL beside it.
        root = self._api_url.removesuffix("/v3") + "/graphql"
        body = {"query": query, "variables": dict(variables)}
        answer, _ = await self._ask(access, repository, "POST", root, {}, body, priority)
        if refusal := read_answer(find_refusal, answer):
            raise refusal
        return read_answer(lambda told: told["data"], answer)

    def list_left(self) -> list[tuple[str, Left]]:
        """The calls that GitHub's rate limits leave, by account. The App's own calls have `""` as account."""
        lines = [("", self._app_line), *((self._accounts[number], line) for number, line in self._lines.items())]
        return [(account, left) for account, line in lines for left in line.left]

    async def _ask(
        self,
        access: Access,
        repository: str,
        method: str,
        url: str,
        filling: dict[str, Any],
        data: Any = b"",
        priority: WritePriority = WritePriority.REPORT,
    ) -> tuple[Any, str | None]:
        grant = await self.tokens.fetch(repository, access)
        try:
            return await self._line(grant).ask(method, url, _name(grant) | filling, grant.bearer, data, priority)
        except Unauthorized:
            # GitHub has revoked the token early. Try once more, with a new one.
            self.tokens.forget(grant)
        grant = await self.tokens.fetch(repository, access)
        return await self._line(grant).ask(method, url, _name(grant) | filling, grant.bearer, data, priority)

    def _line(self, grant: Grant) -> Line:
        if grant.installation_id not in self._lines:
            account = grant.repository.partition("/")[0]
            self._accounts[grant.installation_id] = account
            pace = WritePace(account, self._budget, self._timings.write_interval_s)
            self._lines[grant.installation_id] = self._open_line(pace)
        return self._lines[grant.installation_id]

    def _open_line(self, pace: WritePace | None) -> Line:
        return Line(self._session, self._api_url, self._timings, self._now, pace)


def _parse_number(payload: Mapping[str, Any]) -> int:
    return int(payload["id"])


def _name(grant: Grant) -> dict[str, Any]:
    owner, _, name = grant.name.partition("/")
    return {"owner": owner, "repo": name}
