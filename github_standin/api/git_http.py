"""Cloning and fetching over HTTP: git's smart protocol, read-only.

Source: git-scm.com/docs/http-protocol.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass

from aiohttp import web

from github_standin.model.answers import Refusal
from github_standin.model.auth import Authority, Token
from github_standin.model.gitstore import GitFailed
from github_standin.model.state import Repository, World

SERVICE = "git-upload-pack"


@dataclass(frozen=True, slots=True)
class Pack:
    """The objects sent for a fetch, and the token that was used, if any."""

    repository: str
    token: Token | None


class GitHttp:
    """`https://host/owner/name.git`. Private repositories need a token with `contents:read`."""

    def __init__(self, world: World, authority: Authority) -> None:
        self._world = world
        self._authority = authority
        self.packs: list[Pack] = []
        self.pause_s = 0.0
        """How long each pack pauses in its middle, in seconds."""

    def add_routes(self, app: web.Application) -> None:
        """Add git's two addresses to `app`."""
        app.router.add_get("/{owner}/{repo}.git/info/refs", self.advertise)
        app.router.add_post(f"/{{owner}}/{{repo}}.git/{SERVICE}", self.send_pack)

    async def advertise(self, request: web.Request) -> web.Response:
        """The refs that can be fetched. Pushing is refused: branches are created through the API."""
        repository = self._find(request)
        if request.query.get("service") != SERVICE:
            raise web.HTTPForbidden(text="this repository is read-only\n")
        refs = await self._run(request, repository, "--advertise-refs")
        line = f"# service={SERVICE}\n".encode()
        head = f"{len(line) + 4:04x}".encode() + line + b"0000"
        return web.Response(body=head + refs, content_type=f"application/x-{SERVICE}-advertisement", headers=_FRESH)

    async def send_pack(self, request: web.Request) -> web.StreamResponse:
        """The requested objects."""
        repository = self._find(request)
        pack = await self._run(request, repository)
        headers = {**_FRESH, "Content-Type": f"application/x-{SERVICE}-result", "Content-Length": str(len(pack))}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(pack[: len(pack) // 2])
        if b"packfile" in pack[:200_000]:
            self.packs.append(Pack(repository.full_name, self._read_token(request)))
            await asyncio.sleep(self.pause_s)
        await response.write(pack[len(pack) // 2 :])
        return response

    async def _run(self, request: web.Request, repository: Repository, *options: str) -> bytes:
        protocol = request.headers.get("Git-Protocol", "")
        environment = {"GIT_PROTOCOL": protocol} if protocol.isprintable() and protocol.isascii() else {}
        arguments = ("upload-pack", "--stateless-rpc", *options, str(repository.git.git_dir))
        try:
            return await repository.git.run(*arguments, stdin=await request.read(), environment=environment)
        except GitFailed as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error

    def _find(self, request: web.Request) -> Repository:
        name = f"{request.match_info['owner']}/{request.match_info['repo']}"
        repository = self._world.repositories.get(name.casefold())
        if repository and (not repository.private or self._may_read(request, repository)):
            return repository
        if (renamed := self._world.former.get(name.casefold())) and self._may_read(request, renamed):
            raise web.HTTPMovedPermanently(request.path_qs.replace(name, renamed.full_name, 1))
        raise web.HTTPUnauthorized(text="Repository not found.\n", headers={"WWW-Authenticate": 'Basic realm="GitHub"'})

    def _may_read(self, request: web.Request, repository: Repository) -> bool:
        token = self._read_token(request)
        return token is not None and token.reaches(repository) and token.may("contents:read")

    def _read_token(self, request: web.Request) -> Token | None:
        user, _, secret = _parse_basic(request.headers.get("Authorization", "")).partition(":")
        try:
            return self._authority.identify(f"token {secret}") if user == "x-access-token" else None
        except Refusal:
            return None


_FRESH = {"Cache-Control": "no-cache"}


def _parse_basic(authorization: str) -> str:
    scheme, _, credential = authorization.partition(" ")
    try:
        return base64.b64decode(credential, validate=True).decode() if scheme.lower() == "basic" else ""
    except (binascii.Error, ValueError):
        return ""
