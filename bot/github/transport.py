"""Sends requests to GitHub over gidgethub: waits, retries, and raises the port's errors.

The App has a `Line` for its requests, and so has each installation. A line has its own rate limits and write turns,
because GitHub counts these per account. This module does not know which calls exist, or where tokens come from.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import gidgethub
import structlog
from gidgethub import sansio
from gidgethub.aiohttp import GitHubAPI
from yarl import URL

from bot.github.credentials import Bearer
from bot.github.errors import GITHUB_ERRORS, find_kind
from bot.github.limits import Buckets, Left, parse_exhausted, parse_left, parse_refusal, parse_retry_after_s
from bot.github.pace import WritePace
from bot.github.session import describe_failure
from bot.github.timings import Timings
from handlers.ports import GitHubError, GitHubUnavailable, NotFound, WritePriority
from runner.model.back_off import BackOff
from runner.rows.claims import require_claim

USER_AGENT = "ptq-bot"
API_VERSION = "2022-11-28"  # github.com and every supported Enterprise Server support it
ACCEPT = "application/vnd.github+json"
MAX_REDIRECTS = 3

_REDIRECTS = frozenset({301, 302, 307, 308})
_TRANSIENT = frozenset({500, 502, 503, 504})
_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# gidgethub raises ValueError or LookupError for invalid JSON, an unknown charset, or a status not in `http.HTTPStatus`.
_FAILURES = (gidgethub.HTTPException, aiohttp.ClientError, TimeoutError, ValueError, LookupError)

log = structlog.get_logger(__name__)


class Unauthorized(GitHubUnavailable):
    """GitHub rejected the credentials (401) and did nothing. This says nothing about the requested resource."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """The error for the caller if the call is not repeated, and whether it may be repeated."""

    error: GitHubError | GitHubUnavailable
    may_repeat: bool


def classify_failure(method: str, path: str, error: Exception, *, is_harmless: bool = False) -> CallFailure:
    """Translate a failed request into the port's errors.

    A request that does no harm if it is sent twice (`is_harmless`, and every GET) may be repeated. Any other request is
    repeated only if it was certainly never sent.
    """
    is_harmless = is_harmless or method == "GET"
    if isinstance(error, gidgethub.HTTPException):
        return _classify_answer(method, path, error, is_harmless=is_harmless)
    unavailable = GitHubUnavailable(f"no usable answer to {method} {path} ({describe_failure(error)})")
    return CallFailure(unavailable, may_repeat=is_harmless or isinstance(error, _NEVER_SENT))


def _classify_answer(method: str, path: str, error: gidgethub.HTTPException, *, is_harmless: bool) -> CallFailure:
    status = int(error.status_code)
    if status >= 500:
        wait_s = parse_retry_after_s(error.headers) or 0.0
        unavailable = GitHubUnavailable(f"GitHub answered {status} to {method} {path}", wait_s)
        return CallFailure(unavailable, may_repeat=is_harmless and status in _TRANSIENT)
    if status == 401:
        return CallFailure(Unauthorized(f"GitHub does not take our credentials ({method} {path})"), may_repeat=False)
    kind = NotFound if status in (404, 410) else GitHubError
    return CallFailure(kind(status, str(error), f"{method} {path}"), may_repeat=False)


def _explains(content: bytes) -> bool:
    """Whether a refusal is GitHub's own JSON. gidgethub cannot parse a proxy's page, and would lose the status."""
    try:
        return "message" in json.loads(content)
    except (ValueError, TypeError):
        return False


class Line(GitHubAPI):
    """Adds timeouts, the API version, redirects, retries, rate limits, and a pace for writes to gidgethub."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        api_url: str,
        timings: Timings,
        now: Callable[[], datetime],
        pace: WritePace | None = None,
    ) -> None:
        """`pace` gives the write turns. It is None for the App's own line, which only reads and creates tokens."""
        super().__init__(session, USER_AGENT, base_url=api_url)
        self._origin = URL(api_url).origin()
        self._timings = timings
        self._timeout = aiohttp.ClientTimeout(total=timings.timeout_s, sock_connect=timings.connect_timeout_s)
        self._now = now
        self._buckets = Buckets()
        self._pace = pace

    @property
    def left(self) -> Collection[Left]:
        """The calls that GitHub's rate limits leave, according to the latest answers."""
        return self._buckets.left.values()

    async def ask(
        self,
        method: str,
        url: str,
        url_vars: Mapping[str, Any],
        bearer: Bearer,
        data: Any = b"",
        priority: WritePriority = WritePriority.REPORT,
    ) -> tuple[Any, str | None]:
        """Send one request. Returns the decoded answer, and the URL of the next page (None without one).

        `url` is a URI template (RFC 6570) relative to `api_url`. Raises `GitHubError`, `NotFound` or
        `GitHubUnavailable`.
        """
        if method == "GET" or self._pace is None:
            return await self._try(method, url, url_vars, bearer, data)
        async with self._pace.turn(priority):
            return await self._try(method, url, url_vars, bearer, data)

    async def _try(
        self, method: str, url: str, url_vars: Mapping[str, Any], bearer: Bearer, data: Any
    ) -> tuple[Any, str | None]:
        path = urlsplit(sansio.format_url(url, url_vars, base_url=self.base_url)).path
        attempt = 0
        while True:
            attempt += 1
            try:
                # gidgethub sends `jwt` after `bearer`, where GitHub also accepts installation tokens.
                answer, more, _ = await self._make_request(method, url, url_vars, data, ACCEPT, jwt=bearer.secret)
                return answer, more
            except (GitHubError, GitHubUnavailable) as error:
                failure = CallFailure(error, may_repeat=False)
            except _FAILURES as error:
                GITHUB_ERRORS.count(find_kind(error))
                # The App's own line only creates tokens, and an extra token does no harm.
                failure = classify_failure(method, path, error, is_harmless=self._pace is None)
            await self._pause_or_raise(failure, attempt)

    async def _pause_or_raise(self, failure: CallFailure, attempt: int) -> None:
        jitter = random.random()  # noqa: S311 - spreads load, protects nothing
        asked_s = failure.error.retry_after_s if isinstance(failure.error, GitHubUnavailable) else 0.0
        wait_s = BackOff(self._timings.backoff_s).after(attempt, asked_s=asked_s, chance=jitter)
        if not failure.may_repeat or attempt >= self._timings.attempts or wait_s > self._timings.max_wait_s:
            # No traceback and no context, because the frames of the request contain the token.
            raise failure.error.with_traceback(None) from None
        log.info("github.retry", reason=str(failure.error), attempt=attempt, wait_s=round(wait_s, 2))
        await self.sleep(wait_s)

    async def _wait(self, wait_s: float, reason: str) -> None:
        if wait_s > self._timings.max_wait_s:
            raise GitHubUnavailable(f"{reason}: no call for another {wait_s:.0f} s", wait_s)
        if wait_s > 0:
            await self.sleep(wait_s)

    async def manage_rate_limit(self, *, method: str, url: str) -> None:
        """gidgethub's hook before each request. Waits while a bucket is empty, or raises if that takes too long."""
        await self._wait(self._buckets.wait_s(self._now()), "GitHub's rate limit")

    async def handle_rate_limit_error(
        self, *, method: str, url: str, exception: gidgethub.HTTPException, attempt: int
    ) -> bool:
        """gidgethub's hook after a refusal. Returns whether to repeat the request: True only after a rate limit.

        Writes are repeated as well, because GitHub did not act on them. `manage_rate_limit` waits before the request is
        repeated. Raises `GitHubUnavailable` after the last attempt.
        """
        limit = parse_refusal(int(exception.status_code), exception.headers, str(exception), self._now())
        self._buckets.note(limit, self._now())
        if limit is None:
            return False
        GITHUB_ERRORS.count("rate_limited")
        if attempt >= self._timings.attempts:
            wait_s = max(0.0, (limit.until - self._now()).total_seconds())
            raise GitHubUnavailable(f"GitHub's rate limit: refused {attempt} times", wait_s)
        log.info("github.rate_limited", bucket=limit.bucket, until=limit.until.isoformat(), attempt=attempt)
        return True

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request, and follow redirects within GitHub's own origin. GitHub answers 301 for a renamed repository.

        The request is sent again with the same method, as GitHub asks. A write that is repeated as a GET would seem to
        succeed, but do nothing.
        https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api
        """
        self._require_ours(url)
        answer = await self._send(method, url, headers, body)
        for _ in range(MAX_REDIRECTS):
            status, answer_headers, _content = answer
            target = urljoin(url, answer_headers.get("location", ""))
            if status not in _REDIRECTS or "location" not in answer_headers or not self._is_ours(target):
                break
            url = target
            answer = await self._send(method, url, headers, body)
        return answer

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        if method != "GET":
            require_claim(self._timings.timeout_s)
        async with self._session.request(
            method,
            url,
            headers={**headers, "x-github-api-version": API_VERSION},
            data=body,
            timeout=self._timeout,
            allow_redirects=False,
            raise_for_status=False,
        ) as response:
            content = await response.read()
        self._buckets.note(parse_exhausted(response.headers), self._now())
        self._buckets.note_left(parse_left(response.headers))
        if response.status >= 400 and not _explains(content):
            content = b""
        return response.status, response.headers, content

    def _is_ours(self, url: str) -> bool:
        return URL(url).origin() == self._origin

    def _require_ours(self, url: str) -> None:
        """Raise unless a URL has GitHub's own origin, and a path without `.` and `..`.

        A `Link` header could name another host, and that host must not get the token.
        """
        if not self._is_ours(url):
            raise GitHubUnavailable(f"GitHub points to another host: {urlsplit(url).netloc}")
        # An HTTP client would resolve such a path, and request another resource.
        if {".", ".."} & set(urlsplit(url).path.split("/")):
            raise NotFound(404, "a path with dots for names")
