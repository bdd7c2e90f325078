"""Mints, caches and drops installation tokens, with the permissions for each purpose.

A token gives access to one repository, with only the permissions that its purpose needs, so that a leak does little
damage. Tokens are kept only in memory.

A token is for the repository that had the name when the service first used the name. Once the service knows the number
of that repository, it requests tokens by number. Another repository may have the name now. No token lets the service
write to that one, or ask who has which role there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from cachetools import LRUCache, TTLCache

from bot.github.credentials import AppCredentials, Bearer
from bot.github.payloads import parse_time, read_answer
from bot.github.timings import Timings
from bot.github.transport import Line, Unauthorized
from handlers.cases.known_repositories import KnownRepositories
from handlers.ports import GitHubError, NotFound, NotInstalled
from runner.single_flight import SingleFlight

INSTALLATION_KEPT_S = 3600.0
MOST_KEPT = 4096
_INVALID = 422
_REFUSALS = (404, _INVALID)
"""How GitHub answers if an installation is gone, or does not cover the repository."""


class Access(Enum):
    """All sets of permissions that the client asks for. `app.yml` requests their union."""

    READ_ISSUES = {"metadata": "read", "issues": "read"}  # noqa: RUF012
    READ_THREADS = {"metadata": "read", "issues": "read", "pull_requests": "read"}  # noqa: RUF012
    WRITE_ISSUES = {"metadata": "read", "issues": "write"}  # noqa: RUF012
    FETCH_CODE = {"metadata": "read", "contents": "read"}  # noqa: RUF012
    READ_CODE = {"metadata": "read", "contents": "read", "pull_requests": "read"}  # noqa: RUF012
    WRITE_CODE = {"metadata": "read", "contents": "write", "pull_requests": "write"}  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class Grant:
    """An installation token, with the repository and the permissions that it was minted for."""

    repository: str
    access: Access
    installation_id: int
    bearer: Bearer
    expires_at: datetime
    name: str
    """The repository's name on GitHub when the token was minted. It differs from `repository` after a rename."""
    number: int
    """GitHub's id of the repository."""


Key = tuple[str, Access]


class Tokens:
    """Grants by repository and access. Concurrent calls for the same grant mint it once."""

    def __init__(
        self,
        line: Line,
        credentials: AppCredentials,
        timings: Timings,
        now: Callable[[], datetime],
        repositories: KnownRepositories,
    ) -> None:
        self._line = line
        self._repositories = repositories
        self._credentials = credentials
        self._now = now
        self._refresh_early = timedelta(seconds=timings.refresh_early_s)
        self._installations: TTLCache[str, int] = TTLCache(
            MOST_KEPT, INSTALLATION_KEPT_S, timer=lambda: now().timestamp()
        )
        self._grants: LRUCache[Key, Grant] = LRUCache(MOST_KEPT)
        self._mints = SingleFlight[Key, Grant]()

    async def fetch(self, repository: str, access: Access) -> Grant:
        """A grant that does not expire soon. Raises the port's errors: `NotInstalled` if the App is not installed."""
        key = (repository, access)
        kept = self._grants.get(key)
        is_fresh = kept is not None and self._now() < kept.expires_at - self._refresh_early
        # The numbers differ if an operator has accepted another repository with this name.
        if kept is not None and is_fresh and kept.number == await self._repositories.find(repository):
            return kept
        return await self._mints.join(key, lambda: self._renew(key))

    def forget(self, grant: Grant) -> None:
        """Drop a grant that GitHub rejects, and the cached installation, because the App may have been reinstalled."""
        key = (grant.repository, grant.access)
        if self._grants.get(key) is grant:
            self._grants.pop(key, None)
            self._installations.pop(grant.repository, None)

    def forget_repository(self, repository: str) -> None:
        """Drop all grants of a repository, because it has another name by now."""
        for access in Access:
            self._grants.pop((repository, access), None)

    async def find_number(self, repository: str) -> int:
        """The number of the repository that has this name now, even if the name first belonged to another one."""
        return await self._fetch_repository_id(await self._fetch_installation(repository), repository)

    async def _renew(self, key: Key) -> Grant:
        grant = self._grants[key] = await self._mint(*key)
        return grant

    async def _mint(self, repository: str, access: Access) -> Grant:
        known = self._installations.get(repository)
        if known is not None:
            try:
                return await self._post_token(known, repository, access)
            except Unauthorized:
                self._installations.pop(repository, None)
            except GitHubError as refusal:
                if refusal.status not in _REFUSALS:
                    raise
                self._installations.pop(repository, None)  # The repository may have been transferred.
        installation_id = await self._fetch_installation(repository)
        try:
            grant = await self._post_token(installation_id, repository, access)
        except GitHubError as refusal:
            if refusal.status not in _REFUSALS:
                raise
            # The status is about the token. The caller must not read it as a missing issue, or as an invalid text.
            raise NotInstalled(refusal.status, repository) from None
        self._installations[repository] = installation_id
        return grant

    async def _fetch_installation(self, repository: str) -> int:
        owner, _, name = repository.partition("/")
        where = {"owner": owner, "repo": name}
        try:
            answer, _ = await self._line.ask("GET", "/repos/{owner}/{repo}/installation", where, self._sign())
        except NotFound:
            raise NotInstalled(404, repository) from None
        return read_answer(lambda payload: int(payload["id"]), answer)

    async def _post_token(self, installation_id: int, repository: str, access: Access) -> Grant:
        number = await self._repositories.find(repository)
        if number is None:
            grant = await self._post_first_token(installation_id, repository, access)
            number = await self._repositories.note(repository, grant.number)
            if number == grant.number:
                return grant
        return await self._post_narrow_token(installation_id, repository, access, {"repository_ids": [number]})

    async def _post_first_token(self, installation_id: int, repository: str, access: Access) -> Grant:
        """A token for the repository that has the name now, because no number is stored for the name yet."""
        name = repository.partition("/")[2]
        try:
            return await self._post_narrow_token(installation_id, repository, access, {"repositories": [name]})
        except GitHubError as refusal:
            if refusal.status != _INVALID:
                raise
        # GitHub mints no token for a former name of a repository, although it redirects other requests.
        found = await self._fetch_repository_id(installation_id, repository)
        return await self._post_narrow_token(installation_id, repository, access, {"repository_ids": [found]})

    async def _post_narrow_token(
        self, installation_id: int, repository: str, access: Access, which: dict[str, Any]
    ) -> Grant:
        def parse(payload: Any) -> Grant:
            (covered,) = payload["repositories"]
            bearer, expires_at = Bearer(payload["token"]), parse_time(payload["expires_at"])
            name, number = str(covered["full_name"]), int(covered["id"])
            return Grant(repository, access, installation_id, bearer, expires_at, name, number)

        answer = await self._ask_token(installation_id, {**which, "permissions": access.value})
        return read_answer(parse, answer)

    async def _fetch_repository_id(self, installation_id: int, repository: str) -> int:
        """The id of a repository by its current or a former name. The token for this call reads only metadata."""
        minted = await self._ask_token(installation_id, {"permissions": {"metadata": "read"}})
        owner, _, name = repository.partition("/")
        bearer = read_answer(lambda payload: Bearer(payload["token"]), minted)
        try:
            answer, _ = await self._line.ask("GET", "/repos/{owner}/{repo}", {"owner": owner, "repo": name}, bearer)
        except NotFound:
            raise NotInstalled(404, repository) from None
        return read_answer(lambda payload: int(payload["id"]), answer)

    async def _ask_token(self, installation_id: int, wanted: dict[str, Any]) -> Any:
        url = "/app/installations/{id}/access_tokens"
        answer, _ = await self._line.ask("POST", url, {"id": installation_id}, self._sign(), wanted)
        return answer

    def _sign(self) -> Bearer:
        return self._credentials.sign(self._now())
