"""Passes git's fetches on to GitHub, with a token that never reaches a machine and can only read one repository.

Requests and answers are streamed, which takes little memory. This module does not interpret their content.
"""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Protocol
from urllib.parse import urljoin, urlsplit

import aiohttp
import structlog
from aiohttp import web
from cachetools import LRUCache

from bot.gateway.fetches import (
    LFS,
    PACK,
    REFS,
    Fetch,
    NotFetched,
    build_git_environment,
    explain_unnamed,
    list_addresses,
    read_fetch,
)
from bot.gateway.proxy import BODY_S, CONNECT_S, MAX_BODY, SILENCE_S, JobEndpoint
from bot.github.session import describe_failure
from bot.github.tokens import Grant
from handlers.ports import GitHubError, GitHubUnavailable
from runner.model.environment import Profile
from runner.rows.claims import ClaimLost
from runner.steps.gateway import Fetcher, GatewayRoute

log = structlog.get_logger()

FETCHES = "fetches"
"""The kind of log lines about fetches, in `JobEndpoint.may_log`."""
USER_AGENT = "git/ptq-bot"
PASSED_BACK = ("content-type", "content-encoding", "cache-control")
MOVED = re.compile(rf"/([\w-]+/[\w.-]+?)(?:\.git)?/(?:{REFS}|{PACK})", re.ASCII)
NOT_PUBLIC = (401, 403, 404)
REDIRECTS = (301, 302, 307, 308)
MAX_MOVED = 1024
"""The number of renamed public repositories whose new name is remembered."""
TRIES = 3
"""Attempts to get `info/refs`. An attempt fails if GitHub has revoked the token, or has renamed the repository."""


class Granting(Protocol):
    """The source of tokens for fetches."""

    async def grant_fetch(self, repository: str) -> Grant:
        """A token that reads one repository. Raises `GitHubError` and `GitHubUnavailable`."""

    def forget_grant(self, grant: Grant) -> None:
        """Do not return this token again."""


class Unanswered(Exception):  # noqa: N818 - an answer to git
    """GitHub has not answered with data. `status` is the status for git, and git shows the message."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class GitProxy:
    """Answers git's requests, each for the job whose endpoint received it."""

    def __init__(
        self, session: aiohttp.ClientSession, web_url: str, github: Granting, profiles: Mapping[str, Profile]
    ) -> None:
        """`web_url` is GitHub's root for clones, such as `https://github.com`. The session must not decompress."""
        self._session = session
        self._web_url = web_url
        self._github = github
        self._profiles = profiles
        self._moved: LRUCache[str, str] = LRUCache(MAX_MOVED)

    def find_repositories(self, fetcher: Fetcher) -> tuple[str, ...]:
        """The repositories that are fetched through the gateway.

        There are none if the repository is public, if it has no table, or if its table has a `clone_url`.
        """
        profile = self._profiles.get(fetcher.repository)
        if not profile or not profile.by_gateway or not fetcher.private:
            return ()
        if not fetcher.clone_url.startswith(f"{self._web_url}/"):
            return ()
        # The App is installed on companions with a table. Other companions must be public, and machines fetch them
        # directly.
        configured = {name.lower() for name in self._profiles}
        companions = [other.name for other in profile.companions if other.name.lower() in configured]
        return tuple(dict.fromkeys((fetcher.repository, *profile.private_repositories, *companions)))

    def build_route(self, fetcher: Fetcher, endpoint: JobEndpoint, url: str) -> GatewayRoute:
        """The settings for git on the machine. `url` is the gateway's own URL, or empty with a relay."""
        addresses = list_addresses(endpoint.repositories, self._web_url, fetcher.clone_url)
        return GatewayRoute(
            build_git_environment(url or "{gateway}", endpoint.token, addresses, by_relay=not url), by_relay=not url
        )

    async def answer(self, endpoint: JobEndpoint, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. Git shows the reason of a refusal after `remote:`."""
        if not endpoint.repositories:
            return await _turn_down(endpoint, "this job fetches nothing by the gateway")
        try:
            path, query = request.rel_url.raw_path, request.rel_url.raw_query_string
            fetch = read_fetch(request.method, path, query, request.headers, endpoint.repositories)
        except NotFetched as refusal:
            if LFS in path:
                return _as_json(await _turn_down(endpoint, str(refusal)))
            return await _turn_down(endpoint, str(refusal))
        if (request.content_length or 0) > MAX_BODY:
            return refuse_git(413, f"the request is larger than {MAX_BODY} bytes")
        async with endpoint.fetching:
            if not endpoint.is_open:
                return await _turn_down(endpoint, "the run is over: its access to the repository has ended")
            return await self._pass_on(endpoint, request, fetch)

    async def _pass_on(self, endpoint: JobEndpoint, request: web.BaseRequest, fetch: Fetch) -> web.StreamResponse:
        passed, began = _Passed(), time.monotonic()
        try:
            await self._stream(endpoint, request, fetch, passed)
        except Unanswered as refusal:
            if endpoint.may_log(FETCHES):
                log.warning("gateway.not_fetched", **endpoint.context, asked=fetch.repository, reason=str(refusal))
            return refuse_git(refusal.status, str(refusal))
        except ClaimLost:
            return refuse_git(503, "another replica of the service answers now")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if endpoint.may_log(FETCHES):
                reason = describe_failure(error)
                log.warning("gateway.broken", **endpoint.context, asked=fetch.repository, reason=reason)
            if not passed.response:
                return refuse_git(502, "GitHub cannot be reached just now")
            if request.transport:
                request.transport.abort()  # A normal end would make the partial answer look complete.
            return passed.response
        if fetch.takes_pack and endpoint.may_log(FETCHES):
            took_s = round(time.monotonic() - began, 3)
            asked, size = fetch.repository, passed.size
            log.info("gateway.fetched", **endpoint.context, asked=asked, bytes=size, took_s=took_s)
        assert passed.response
        return passed.response

    async def _stream(self, endpoint: JobEndpoint, request: web.BaseRequest, fetch: Fetch, passed: _Passed) -> None:
        """Pass GitHub's answer back as it arrives. Raises `Unanswered`, and aiohttp's errors if a connection breaks."""
        why = ""
        for _ in range(1 if fetch.takes_pack else TRIES):
            grant = await self._fetch_grant(fetch.repository) if fetch.is_granted else None
            async with aclosing(_read_body(request)) as body, self._ask(fetch, grant, request, body) as theirs:
                if theirs.status == 200:
                    await passed.take(request, theirs)
                    return
                if grant is None and theirs.status in NOT_PUBLIC:
                    raise Unanswered(403, explain_unnamed(fetch.repository, endpoint.repositories))
                if grant and theirs.status == 401:
                    self._github.forget_grant(grant)
                    why = f"GitHub does not take the token that it gave for {fetch.repository}: fetch again"
                elif theirs.status in REDIRECTS and (name := self._find_new_name(theirs)):
                    if grant:
                        self._github.forget_grant(grant)  # The next grant has the new name.
                    else:
                        self._moved[fetch.repository] = name
                    why = f"{fetch.repository} has another name by now: fetch again"
                else:
                    raise explain(theirs.status, fetch.repository)
        raise Unanswered(503, why)

    async def _fetch_grant(self, repository: str) -> Grant:
        try:
            return await self._github.grant_fetch(repository)
        except GitHubError as error:
            raise Unanswered(403, error.message) from None
        except GitHubUnavailable as error:
            raise Unanswered(503, str(error)) from None

    def _ask(
        self, fetch: Fetch, grant: Grant | None, request: web.BaseRequest, body: AsyncGenerator[bytes]
    ) -> aiohttp.client._RequestContextManager:
        headers = {**fetch.headers, "accept-encoding": "identity", "user-agent": USER_AGENT}
        headers |= sign(grant) if grant else {}
        name = grant.name if grant else self._moved.get(fetch.repository, fetch.repository)
        if fetch.takes_pack and request.content_length is not None:
            headers["content-length"] = str(request.content_length)
        return self._session.request(
            request.method,
            f"{self._web_url}/{name}.git/{fetch.target}",
            data=body if fetch.takes_pack else None,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S),
        )

    def _find_new_name(self, theirs: aiohttp.ClientResponse) -> str | None:
        """The new name of a repository. None if the redirect is not to a repository of the same GitHub."""
        target = urljoin(str(theirs.url), theirs.headers.get("location", ""))
        found = MOVED.fullmatch(urlsplit(target).path)
        if not found or not target.startswith(f"{self._web_url}/"):
            return None
        return found[1]


class _Passed:
    """The part of an answer that has been passed back so far."""

    def __init__(self) -> None:
        self.response: web.StreamResponse | None = None
        self.size = 0

    async def take(self, request: web.BaseRequest, theirs: aiohttp.ClientResponse) -> None:
        """Pass a whole answer back."""
        kept = {name: theirs.headers[name] for name in PASSED_BACK if name in theirs.headers}
        self.response = web.StreamResponse(status=200, headers=kept)
        await self.response.prepare(request)
        async for chunk in theirs.content.iter_any():
            self.size += len(chunk)
            await self.response.write(chunk)
        await self.response.write_eof()


async def _read_body(request: web.BaseRequest) -> AsyncGenerator[bytes]:
    """A request's body as it arrives. Raises `OSError` if it is too large, or if nothing arrives for `BODY_S`."""
    size = 0
    while True:
        async with asyncio.timeout(BODY_S):
            chunk = await request.content.readany()
        if not chunk:
            return
        size += len(chunk)
        if size > MAX_BODY:
            raise OSError("the request is too large")
        yield chunk


def sign(grant: Grant) -> dict[str, str]:
    """The header with which GitHub's git server accepts a token.

    docs.github.com, "Authenticating as a GitHub App installation"
    """
    return {"authorization": f"Basic {b64encode(f'x-access-token:{grant.bearer.secret}'.encode()).decode()}"}


def explain(status: int, repository: str) -> Unanswered:
    """The answer to git after an error status of GitHub."""
    if status in (403, 404):
        words = f"GitHub does not let the App read {repository}: is it installed there, with `Contents: read`?"
        return Unanswered(403, words)
    return Unanswered(503 if status >= 500 or status == 429 else 502, f"GitHub answered {status}")


async def _turn_down(endpoint: JobEndpoint, reason: str) -> web.Response:
    await endpoint.note_refusal(reason)
    return refuse_git(403, reason)


def _as_json(refusal: web.Response) -> web.Response:
    """A refusal in the format that Git LFS shows (github.com/git-lfs/git-lfs, docs/api/batch.md, "Response Errors")."""
    words = (refusal.text or "").strip()
    return web.json_response({"message": words}, status=refusal.status, content_type="application/vnd.git-lfs+json")


def refuse_git(status: int, reason: str) -> web.Response:
    """A refusal whose reason git shows. 401 becomes 403, because git answers 401 by asking for a password."""
    return web.Response(status=403 if status == 401 else status, text=f"ptq-bot: {reason}\n")
