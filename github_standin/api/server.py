"""The stand-in's API over HTTP: who may do what, what goes wrong on order, and a record of every exchange.

It refuses to know what an endpoint does.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aiohttp import web
from yarl import URL

from github_standin.api.calls import Call, Site, caller_of, etag_of
from github_standin.api.endpoints import ANYONE, APP, NOTHING, PERSON, TOKEN, Endpoint, find_endpoint
from github_standin.model.answers import Answer, Refusal, forbidden, not_found
from github_standin.model.auth import Token, UserToken
from github_standin.model.faults import ApiFault, Faults
from github_standin.model.render import API_ROOT
from github_standin.model.state import Pull, Repository

API_VERSIONS = frozenset({"2022-11-28", "2026-03-10"})
MAX_BODY_BYTES = 150 * 1024 * 1024
"""Room for the largest blob in base64."""
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to the API and its answer. `path` is below the API's root, percent-encoded as it came.

    A repository that came by its id, `/repositories/ID`, has its name there.
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
    """The path as GitHub describes it; None when the stand-in has no such endpoint."""
    status: int
    """0 where the connection was cut before anything was done."""
    response_headers: Mapping[str, str]
    response_body: bytes
    fault: str | None = None
    """The kind of mishap that was ordered for it."""


@dataclass(slots=True)
class _Visit:
    """What is known of a request while it is being answered."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: str = "nobody"
    token_kind: str = "none"  # noqa: S105
    endpoint: Endpoint | None = None


class ApiServer:
    """Answers requests below `API_ROOT`."""

    def __init__(self, site: Site, faults: Faults) -> None:
        self._site = site
        self._faults = faults
        self.exchanges: list[Exchange] = []
        self.observers: list[Callable[[Exchange], None]] = []
        self.complaints: list[str] = []
        """What observers raised, and accidents of our own: empty when all is well."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request, from its bytes to the bytes of the answer."""
        visit = _Visit(
            request.method,
            self._by_name(request.rel_url.raw_path.removeprefix(API_ROOT)),
            dict(request.query),
            request.headers,
            await request.read(),
        )
        fault = self._faults.take(visit.method, visit.path)
        if fault:
            await asyncio.sleep(fault.delay_s)
        if fault and fault.kind == "reset":
            return self._cut(request, visit, web.Response(status=500), fault, status=0)
        response = self._respond(visit, await self._answer_or_fail(visit, fault))
        if fault and fault.kind == "lose_answer":
            return self._cut(request, visit, response, fault, status=response.status)
        self._record(visit, response, response.status, fault)
        return response

    def _cut(
        self, request: web.Request, visit: _Visit, response: web.Response, fault: ApiFault, status: int
    ) -> web.Response:
        self._record(visit, response, status, fault)
        if request.transport:
            request.transport.abort()
        return response

    async def _answer_or_fail(self, visit: _Visit, fault: ApiFault | None) -> Answer:
        if fault and isinstance(fault.kind, int):
            return Refusal(fault.kind, fault.message, headers=fault.headers).answer()
        try:
            return await self._answer(visit)
        except Refusal as refusal:
            return refusal.answer()
        except Exception as error:  # an accident of the stand-in: tests fail on the complaint
            self.complaints.append(f"{visit.method} {visit.path}: {error!r}")
            return Refusal(500, "Server Error").answer()

    async def _answer(self, visit: _Visit) -> Answer:
        _check_headers(visit.headers)
        found = find_endpoint(visit.method, visit.path)
        visit.endpoint = found[0] if found else None
        token = None
        if not (found and found[0].needs == NOTHING):
            token = self._site.authority.identify(visit.headers.get("Authorization", ""))
            visit.caller, visit.token_kind = caller_of(token), _kind_of(token)
        if not found or found[0].path != "/rate_limit":
            self._site.rates.count(visit.caller)
        if not found:
            raise not_found()
        endpoint, params = found
        repository = self._find_repository(visit, params)
        _admit(endpoint, token, repository, params)
        fields = _parse_body(visit.body) if visit.method != "GET" else {}
        if endpoint.creates_content:
            self._site.rates.count_content(visit.caller)
        call = Call(self._site, visit.path, params, visit.query, fields, token, repository)
        return await endpoint.handler(call)

    def _by_name(self, path: str) -> str:
        """The path with the name of a repository that it has by its id: where redirects lead."""
        found = re.match(r"/repositories/([0-9]{1,18})(?=/|$)", path)
        for repository in self._site.world.repositories.values():
            if found and str(repository.id) == found[1]:
                return f"/repos/{repository.full_name}{path[found.end() :]}"
        return path

    def _find_repository(self, visit: _Visit, params: Mapping[str, str]) -> Repository | None:
        if "owner" not in params:
            return None
        name = f"{params['owner']}/{params['repo']}".casefold()
        if former := self._site.world.former.get(name):
            below = visit.path.split("/", 4)[4:]
            address = URL(f"{self._site.links.api}/repositories/{former.id}/{''.join(below)}".rstrip("/"), encoded=True)
            raise Refusal(301, "Moved Permanently", headers={"Location": str(address.with_query(visit.query))})
        repository = self._site.world.repositories.get(name)
        if repository is None:
            raise not_found()
        return repository

    def _respond(self, visit: _Visit, answer: Answer) -> web.Response:
        headers = {
            **self._site.rates.headers(visit.caller),
            "X-GitHub-Request-Id": uuid.uuid4().hex.upper(),
            "X-GitHub-Media-Type": "github.v3; format=json",
            **answer.headers,
        }
        if visit.endpoint and ":" in visit.endpoint.needs:
            headers["X-Accepted-GitHub-Permissions"] = visit.endpoint.needs.replace(":", "=")
        if answer.body is None:
            return web.Response(status=answer.status, headers=headers)
        body = json.dumps(answer.body, ensure_ascii=False).encode()
        if visit.method == "GET" and answer.status == 200:
            headers["ETag"] = etag_of(body)
            if visit.headers.get("If-None-Match") == headers["ETag"]:
                return web.Response(status=304, headers=headers)
        return web.Response(
            status=answer.status, body=body, headers=headers, content_type="application/json", charset="utf-8"
        )

    def _record(self, visit: _Visit, response: web.Response, status: int, fault: ApiFault | None) -> None:
        body = response.body if isinstance(response.body, bytes) else b""
        exchange = Exchange(
            at=self._site.world.clock(),
            method=visit.method,
            path=visit.path,
            query=visit.query,
            request_headers={name: text for name, text in visit.headers.items() if name.lower() not in _SECRET_HEADERS},
            request_body=visit.body,
            token_kind=visit.token_kind,
            endpoint=visit.endpoint.path if visit.endpoint else None,
            status=status,
            response_headers=dict(response.headers),
            response_body=body,
            fault=str(fault.kind) if fault else None,
        )
        self.exchanges.append(exchange)
        for observer in self.observers:
            try:
                observer(exchange)
            except Exception as error:  # a failed check must reach the test, not the client
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
    """Raise `Refusal` unless the caller may use this endpoint on this repository."""
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
    """The request's JSON object; nothing counts as an empty one."""
    if not body:
        return {}
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "Problems parsing JSON") from error
    if not isinstance(value, dict):
        raise Refusal(400, "Body should be a JSON object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
