"""The stand-in's API over HTTP: permissions, injected faults, and a record of every exchange."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from aiohttp import web
from yarl import URL

from github_standin.api.calls import Call, Site, caller_of, etag_of
from github_standin.api.endpoints import ANYONE, APP, NOTHING, PERSON, TOKEN, Endpoint, find_endpoint, find_path
from github_standin.model.answers import Answer, Refusal, forbidden, not_found
from github_standin.model.auth import Token, UserToken
from github_standin.model.faults import ApiFault, Faults
from github_standin.model.state import Pull, Repository

API_VERSIONS = frozenset({"2022-11-28", "2026-03-10"})
MAX_BODY_BYTES = 150 * 1024 * 1024
"""Enough for the largest blob in base64."""
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to the API and its answer. `path` is relative to the API's root, and percent-encoded as received.

    `/repositories/ID` is replaced by the name of the repository.
    """

    at: datetime
    method: str
    path: str
    query: Mapping[str, str]
    request_headers: Mapping[str, str]
    """Without credentials."""
    request_body: bytes
    token_kind: str
    """`app`, `installation`, `user` or `none`."""
    endpoint: str | None
    """The path in GitHub's description; None if the stand-in has no such endpoint."""
    status: int
    """0 if the connection was cut before the request was handled."""
    response_headers: Mapping[str, str]
    response_body: bytes
    fault: str | None = None
    """The kind of the injected fault."""


@dataclass(slots=True)
class _Pending:
    """A request that is being answered."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: str = "nobody"
    token_kind: str = "none"  # noqa: S105
    endpoint: Endpoint | None = None


class ApiServer:
    """Answers requests to GitHub's API."""

    def __init__(self, site: Site, faults: Faults) -> None:
        self._site = site
        self._faults = faults
        self.exchanges: list[Exchange] = []
        self.observers: list[Callable[[Exchange], None]] = []
        self.complaints: list[str] = []
        """What observers raised, and internal errors. Tests expect it to be empty."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        pending = _Pending(
            request.method,
            self._by_name(find_path(request.rel_url.raw_path)),
            dict(request.query),
            request.headers,
            await request.read(),
        )
        fault = self._faults.take(pending.method, pending.path)
        if fault:
            await asyncio.sleep(fault.delay_s)
        if fault and fault.kind == "reset":
            return self._cut(request, pending, web.Response(status=500), fault, status=0)
        response = self._respond(pending, await self._answer_or_fail(pending, fault))
        if fault and fault.kind == "lose_answer":
            return self._cut(request, pending, response, fault, status=response.status)
        self._record(pending, response, response.status, fault)
        return response

    def _cut(
        self, request: web.Request, pending: _Pending, response: web.Response, fault: ApiFault, status: int
    ) -> web.Response:
        self._record(pending, response, status, fault)
        if request.transport:
            request.transport.abort()
        return response

    async def _answer_or_fail(self, pending: _Pending, fault: ApiFault | None) -> Answer:
        if fault and isinstance(fault.kind, int):
            return Refusal(fault.kind, fault.message, headers=fault.headers).answer()
        try:
            return await self._answer(pending)
        except Refusal as refusal:
            return refusal.answer()
        except Exception as error:  # an internal error: tests fail because of it
            self.complaints.append(f"{pending.method} {pending.path}: {error!r}")
            return Refusal(500, "Server Error").answer()

    async def _answer(self, pending: _Pending) -> Answer:
        _check_headers(pending.headers)
        found = find_endpoint(pending.method, pending.path)
        pending.endpoint = found[0] if found else None
        token = None
        if not (found and found[0].needs == NOTHING):
            token = self._site.authority.identify(pending.headers.get("Authorization", ""))
            pending.caller, pending.token_kind = caller_of(token), _kind_of(token)
        if not found or found[0].path != "/rate_limit":
            self._site.rates.count(pending.caller)
        if not found:
            raise not_found()
        endpoint, params = found
        repository = self._find_repository(pending, params)
        _admit(endpoint, token, repository, params)
        fields = _parse_body(pending.body) if pending.method != "GET" else {}
        if endpoint.creates_content:
            self._site.rates.count_content(pending.caller)
        call = Call(self._site, pending.path, params, pending.query, fields, token, repository)
        return await endpoint.handler(call)

    def _by_name(self, path: str) -> str:
        """The path with the name of a repository instead of its id. Redirects lead to ids."""
        found = re.match(r"/repositories/([0-9]{1,18})(?=/|$)", path)
        for repository in self._site.world.repositories.values():
            if found and str(repository.id) == found[1]:
                return f"/repos/{repository.full_name}{path[found.end() :]}"
        return path

    def _find_repository(self, pending: _Pending, params: Mapping[str, str]) -> Repository | None:
        if "owner" not in params:
            return None
        name = f"{params['owner']}/{params['repo']}".casefold()
        if former := self._site.world.former.get(name):
            below = pending.path.split("/", 4)[4:]
            address = URL(f"{self._site.links.api}/repositories/{former.id}/{''.join(below)}".rstrip("/"), encoded=True)
            raise Refusal(301, "Moved Permanently", headers={"Location": str(address.with_query(pending.query))})
        repository = self._site.world.repositories.get(name)
        if repository is None:
            raise not_found()
        return repository

    def _respond(self, pending: _Pending, answer: Answer) -> web.Response:
        headers = {
            **self._site.rates.headers(pending.caller),
            "Date": format_datetime(self._site.world.clock().astimezone(UTC), usegmt=True),
            "X-GitHub-Request-Id": uuid.uuid4().hex.upper(),
            "X-GitHub-Media-Type": "github.v3; format=json",
            **answer.headers,
        }
        if pending.endpoint and ":" in pending.endpoint.needs:
            headers["X-Accepted-GitHub-Permissions"] = pending.endpoint.needs.replace(":", "=")
        if answer.body is None:
            return web.Response(status=answer.status, headers=headers)
        body = json.dumps(answer.body, ensure_ascii=False).encode()
        if pending.method == "GET" and answer.status == 200:
            headers["ETag"] = etag_of(body)
            if pending.headers.get("If-None-Match") == headers["ETag"]:
                return web.Response(status=304, headers=headers)
        return web.Response(
            status=answer.status, body=body, headers=headers, content_type="application/json", charset="utf-8"
        )

    def _record(self, pending: _Pending, response: web.Response, status: int, fault: ApiFault | None) -> None:
        body = response.body if isinstance(response.body, bytes) else b""
        exchange = Exchange(
            at=self._site.world.clock(),
            method=pending.method,
            path=pending.path,
            query=pending.query,
            request_headers={k: text for k, text in pending.headers.items() if k.lower() not in _SECRET_HEADERS},
            request_body=pending.body,
            token_kind=pending.token_kind,
            endpoint=pending.endpoint.path if pending.endpoint else None,
            status=status,
            response_headers=dict(response.headers),
            response_body=body,
            fault=str(fault.kind) if fault else None,
        )
        self.exchanges.append(exchange)
        for observer in self.observers:
            try:
                observer(exchange)
            except Exception as error:  # a failed check is for the test, not for the client
                self.complaints.append(str(error) or repr(error))


def _kind_of(token: Token | None) -> str:
    return "app" if token is None else "user" if isinstance(token, UserToken) else "installation"


def _check_headers(headers: Mapping[str, str]) -> None:
    if not headers.get("User-Agent"):
        raise Refusal(403, "Request forbidden by administrative rules. Please make sure your request has a User-Agent.")
    version = headers.get("X-GitHub-Api-Version")
    if version is not None and version not in API_VERSIONS:
        raise Refusal(400, f"{version[:40]} is not a supported version of the API.")


def _admit(endpoint: Endpoint, token: Token | None, repository: Repository | None, params: Mapping[str, str]) -> None:
    """Raise `Refusal` if the caller may not use this endpoint on this repository."""
    if endpoint.needs in (ANYONE, NOTHING):
        return
    if endpoint.needs == APP:
        if token:
            raise Refusal(401, "A JSON web token could not be decoded")
        return
    if token is None or (endpoint.needs == PERSON and not isinstance(token, UserToken)):
        raise forbidden()
    if repository and not token.reaches(repository):
        raise not_found()
    if endpoint.needs in (TOKEN, PERSON) or token.may(endpoint.needs):
        return
    if not (repository and _is_about_pull(repository, params) and token.may(endpoint.alternative)):
        raise forbidden()


def _is_about_pull(repository: Repository, params: Mapping[str, str]) -> bool:
    if number := params.get("issue_number"):
        return isinstance(repository.issues.get(int(number)), Pull)
    comment_id = int(params.get("comment_id", "0"))
    return any(comment.id == comment_id for pull in repository.pulls() for comment in pull.comments)


def _parse_body(body: bytes) -> Mapping[str, Any]:
    """The request's JSON object. An empty body is an empty object."""
    if not body:
        return {}
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()  # fails for a lone surrogate
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "Problems parsing JSON") from error
    if not isinstance(value, dict):
        raise Refusal(400, "Body should be a JSON object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")
