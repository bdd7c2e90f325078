"""A GitHub that says exactly what a test tells it to: for answers that no well-behaved stand-in would give.

It mints tokens and finds installations unasked, remembers every request, and answers 404 to what has no script.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from bot.github import AppGitHub, Timings

ROOT = "/api/v3"
FAST = Timings(timeout_s=5, connect_timeout_s=2, attempts=3, backoff_s=0.001, max_wait_s=1, write_interval_s=0)
INSTALLATION = "GET /repos/octo/widgets/installation"
MINT = "POST /app/installations/7/access_tokens"


@functools.cache
def make_app_key() -> rsa.RSAPrivateKey:
    """One key for all tests: making one takes a tenth of a second."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def app_key_pem() -> str:
    """As GitHub hands it out: PKCS#1."""
    pem = make_app_key().private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    return pem.decode()


def app_public_pem() -> str:
    return make_app_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@dataclass(frozen=True)
class Heard:
    """One request; `call` is the method and the path with its query, below the API's root, as it travelled."""

    call: str
    headers: Mapping[str, str]
    body: Any
    at: float


@dataclass(frozen=True)
class Says:
    """One answer. `cut` acts, and closes the connection without a word."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    delay_s: float = 0.0
    cut: bool = False


Answer = Says | Callable[[Heard], Says]


class ScriptedGitHub:
    """`script` says what comes next; the last answer to a call repeats."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.heard: list[Heard] = []
        self.busiest = 0
        self.url = ""
        self.number, self.name = 1, "octo/widgets"
        """The repository of the tokens."""
        self._busy = 0
        self._minted = 0
        self._scripts: dict[str, list[Answer]] = {
            INSTALLATION: [Says({"id": 7})],
            MINT: [self.mint],
            "GET /app": [Says({"slug": "ptq-bot"})],
        }

    def script(self, call: str, *answers: Answer) -> None:
        self._scripts[call] = list(answers)

    def client(self, timings: Timings = FAST) -> AppGitHub:
        return AppGitHub(
            self.session,
            api_url=self.url,
            app_id="12345",
            private_key=app_key_pem(),
            timings=timings,
            now=self.clock,
        )

    def mint(self, heard: Heard) -> Says:
        self._minted += 1
        expires_at = (self.clock() + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        minted = {"token": f"ghs_secret{self._minted}", "expires_at": expires_at}
        return Says({**minted, "repositories": [{"id": self.number, "full_name": self.name}]}, status=201)

    def calls(self, containing: str = "") -> list[str]:
        return [heard.call for heard in self.heard if containing in heard.call]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        call = f"{request.method} {request.raw_path.removeprefix(ROOT)}"
        body = await request.read()
        heard = Heard(call, request.headers, json.loads(body or b"null"), asyncio.get_running_loop().time())
        self.heard.append(heard)
        answers = self._scripts.get(call, [Says({"message": "Not Found"}, status=404)])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        self._busy += 1
        self.busiest = max(self.busiest, self._busy)
        try:
            return await _say(request, answer if isinstance(answer, Says) else answer(heard))
        finally:
            self._busy -= 1


async def _say(request: web.Request, says: Says) -> web.StreamResponse:
    await asyncio.sleep(says.delay_s)
    if says.cut and request.transport is not None:
        request.transport.abort()
    if says.text is not None:
        return web.Response(status=says.status, headers=says.headers, text=says.text, content_type="application/json")
    return web.json_response(says.body, status=says.status, headers=says.headers)


@asynccontextmanager
async def scripted_github() -> AsyncIterator[ScriptedGitHub]:
    """A server on a free port of the loopback, and a session to reach it."""
    async with aiohttp.ClientSession() as session:
        server = ScriptedGitHub(session)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}{ROOT}"
        try:
            yield server
        finally:
            await runner.cleanup()


def comment_payload(number: int = 1, **changes: Any) -> dict[str, Any]:
    """As much of GitHub's comment as the client reads."""
    return {
        "id": number,
        "user": {"login": "alice", "type": "User"},
        "body": f"comment {number}",
        "created_at": "2026-01-02T03:04:05Z",
        "updated_at": "2026-01-02T03:04:06Z",
        "html_url": f"https://github.com/octo/widgets/issues/1#issuecomment-{number}",
        **changes,
    }


def pull_payload(number: int, branch: str = "ptq/issue-1-a", repository_id: int | None = 1) -> dict[str, Any]:
    """As much of GitHub's pull request as the client reads; without a `repository_id` its branch's one is gone."""
    repository = None if repository_id is None else {"id": repository_id, "full_name": f"octo/{repository_id}"}
    return {
        "number": number,
        "body": None,
        "html_url": f"https://github.com/octo/widgets/pull/{number}",
        "state": "closed",
        "user": {"login": "ptq-bot[bot]"},
        "head": {"ref": branch, "sha": "a" * 40, "repo": repository},
        "base": {"ref": "main", "repo": {"id": 1}},
    }
