"""The gateway between a machine's git and GitHub: over real connections, with real git on both sides."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from bot.gateway.endpoints import PREFIX, ModelGateway
from bot.gateway.git import GitProxy, Granting
from bot.gateway.packages import PackageProxy
from bot.gateway.proxy import MAX_REFUSALS
from bot.github import AppGitHub
from bot.github.credentials import Bearer
from bot.github.tokens import Access, Grant
from github_standin import StandIn
from runner.model.environment import Profile
from runner.model.jobd_answers import JobdError
from runner.steps.gateway import Fetcher, GatewayRoute
from runner.transport.jobd_client import JobdClient
from tests.support.gateway import Wire
from tests.support.jobs import NOON, make_job, open_database
from tests.support.repository import copy_repository
from tests.support.scripted_github import app_key_pem
from tests.support.visitor import APP_ID, open_visitor

NAME = "octo/widgets"
GITHUB_TOKEN = "ghs_the-token-that-no-machine-has"
WEB = "https://github.com"
GET, POST = "info/refs?service=git-upload-pack", "git-upload-pack"


@dataclass
class Counter:
    """Gives the same token each time, and counts."""

    given: int = 0
    forgotten: int = 0

    async def grant_fetch(self, repository: str) -> Grant:
        self.given += 1
        return Grant(repository, Access.FETCH_CODE, 1, Bearer(GITHUB_TOKEN), NOON + timedelta(hours=1), repository, 1)

    def forget_grant(self, grant: Grant) -> None:
        self.forgotten += 1


@dataclass
class Floor:
    gateway: ModelGateway
    wire: Wire
    web_url: str
    url: str
    folder: Path

    def reader(self, job_id: str = "0123456789", repository: str = NAME, *, private: bool = True) -> Fetcher:
        return Fetcher(job_id, repository, private, f"{self.web_url}/{repository}.git")

    async def lead(self, reader: Fetcher) -> GatewayRoute:
        return await self.gateway.open_git_route(reader, cast(JobdClient, self.wire))

    async def git(self, way: GatewayRoute, *words: str) -> str:
        """What git on a machine says, in and out."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        env = {**clean, **way.env, "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_GLOBAL": os.devnull}
        command = ["git", *words]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=self.folder, env=env, text=True, capture_output=True, check=False
        )
        return done.stdout + done.stderr

    @asynccontextmanager
    async def ask(
        self, way: GatewayRoute, target: str = GET, method: str = "GET", token: str | None = None, **more: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A plain request, by the job's relay."""
        connector = aiohttp.UnixConnector(self.wire.paths["0123456789"])
        bearer = way.env["GIT_CONFIG_VALUE_0"].removeprefix("Authorization: ") if token is None else f"Bearer {token}"
        headers = {"authorization": bearer, **more.pop("headers", {})}
        async with (
            aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
            session.request(method, f"http://127.0.0.1/git/{NAME}.git/{target}", headers=headers, **more) as answer,
        ):
            yield answer


@asynccontextmanager
async def open_floor(
    folder: Path, web_url: str, github: Granting, profile: Profile | None = None, *, by_url: bool = False
) -> AsyncIterator[Floor]:
    (folder / "w").mkdir()
    application = web.Application()
    runner = web.AppRunner(application, access_log=None, auto_decompress=False, handler_cancellation=True)
    async with open_database(folder) as db, aiohttp.ClientSession(auto_decompress=False) as session:
        profiles = {name: replace(profile or Profile(name), repository=name) for name in (NAME, "octo/gears")}
        git = GitProxy(session, web_url, github, profiles)
        gateways: list[ModelGateway] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            return await gateways[0].answer_by_url(request)

        application.router.add_route("*", f"{PREFIX}/{{path:.*}}", answer)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = "http://{}:{}".format(*runner.addresses[0][:2]) + PREFIX
        gateways.append(ModelGateway(session, db, {}, {}, lambda: NOON, git, PackageProxy({}), url if by_url else ""))
        floor = Floor(gateways[0], Wire(folder / "w"), web_url, url, folder)
        try:
            yield floor
        finally:
            await runner.cleanup()
            for job_id in floor.wire.paths:
                await gateways[0].close(job_id)


def make_theirs(folder: Path) -> Path:
    """Another repository, with a branch of its own."""
    copy_repository(there := folder / "theirs.git")
    subprocess.run(["git", "branch", "theirs"], cwd=there, check=True)
    return there


@asynccontextmanager
async def open_github(folder: Path, profile: Profile | None = None) -> AsyncIterator[tuple[Floor, StandIn]]:
    """Real git over TCP, and the stand-in as GitHub."""
    async with open_visitor(folder) as visitor, aiohttp.ClientSession() as session:
        github = visitor.github
        github.add_repository(NAME, visitor.git_dir, private=True)
        for name in ("octo/gears", "octo/parts"):
            github.add_repository(name, visitor.git_dir, private=True)
        github.add_repository("octo/widgets-docs", visitor.git_dir)
        github.add_repository("octo/widgets-secrets", visitor.git_dir, private=True)
        client = AppGitHub(session, api_url=github.api_url, app_id=APP_ID, private_key=app_key_pem(), now=visitor.clock)
        async with open_floor(folder, github.url, client, profile, by_url=True) as floor:
            yield floor, github


async def test_a_clone_comes_with_a_token_that_reads_one_repository_and_does_nothing_else(tmp_path: Path) -> None:
    async with open_github(tmp_path) as (floor, github):
        way = await floor.lead(floor.reader())
        assert await floor.git(way, "clone", "--quiet", f"{github.url}/{NAME}.git", "clone") == ""
        assert (tmp_path / "clone" / "README.md").exists()
        (pack,) = github.git_http.packs
        assert pack.token
        assert pack.token.permissions == {"metadata": "read", "contents": "read"}
        assert len(pack.token.repository_ids or ()) == 1


@pytest.mark.parametrize("words", [["--depth=1"], ["--filter=blob:none", "--no-checkout"], ["--single-branch"]])
async def test_a_clone_may_be_shallow_or_partial(tmp_path: Path, words: list[str]) -> None:
    async with open_github(tmp_path) as (floor, github):
        way = await floor.lead(floor.reader())
        said = await floor.git(way, "clone", "--quiet", *words, f"{github.url}/{NAME}.git", "clone")
        assert said == ""
        assert "Small tools" in await floor.git(way, "-C", "clone", "show", "HEAD:README.md")


async def test_a_push_is_refused_with_words_that_git_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_github(tmp_path) as (floor, github):
        way = await floor.lead(floor.reader())
        await floor.git(way, "clone", "--quiet", f"{github.url}/{NAME}.git", "clone")
        said = await floor.git(way, "-C", "clone", "push", "origin", "HEAD:refs/heads/mine")
        assert "remote: ptq-bot: pushing is not possible by the gateway" in said
        assert "gateway.refused" in "".join(capsys.readouterr())


async def test_of_other_private_repositories_those_come_that_the_operator_names(tmp_path: Path) -> None:
    async with open_github(tmp_path, Profile(NAME, private_repositories=("octo/parts",))) as (floor, github):
        way = await floor.lead(floor.reader())
        for address in (f"{github.url}/octo/parts", f"{github.url}/octo/parts.git", "git@127.0.0.1:octo/parts"):
            assert "refs/heads/main" in await floor.git(way, "ls-remote", address)
        said = await floor.git(way, "ls-remote", f"{floor.url}/git/octo/gears")
        assert "remote: ptq-bot: octo/gears is not among the repositories that this job may fetch" in said
        assert 'in `private_repositories` of [repos."octo/widgets"]' in said


async def test_a_repository_whose_name_begins_alike_comes_if_it_is_public_and_without_a_token(tmp_path: Path) -> None:
    async with open_github(tmp_path) as (floor, github):
        way = await floor.lead(floor.reader())
        assert await floor.git(way, "clone", "--quiet", f"{github.url}/octo/widgets-docs", "docs") == ""
        assert [pack.token for pack in github.git_http.packs] == [None]
        said = await floor.git(way, "ls-remote", f"{github.url}/octo/widgets-secrets")
        assert "remote: ptq-bot: octo/widgets-secrets is not among the repositories that this job may fetch" in said


async def test_a_repository_that_was_renamed_is_followed(tmp_path: Path) -> None:
    async with open_github(tmp_path) as (floor, github):
        way = await floor.lead(floor.reader())
        github.rename_repository(NAME, "gadgets")
        for folder in ("one", "two"):
            assert await floor.git(way, "clone", "--quiet", f"{github.url}/{NAME}.git", folder) == ""


async def test_a_repository_that_took_the_name_of_another_one_is_not_fetched(tmp_path: Path) -> None:
    async with open_github(tmp_path) as (floor, github):
        way = await floor.lead(floor.reader())
        assert "refs/heads/main" in await floor.git(way, "ls-remote", f"{github.url}/{NAME}")
        github.rename_repository(NAME, "gadgets")
        github.add_repository(NAME, make_theirs(tmp_path), private=True)
        github.revoke_tokens()
        said = await floor.git(way, "ls-remote", f"{github.url}/{NAME}")
        assert ("refs/heads/main" in said, "refs/heads/theirs" in said) == (True, False)


async def test_a_token_that_github_took_back_is_replaced(tmp_path: Path) -> None:
    async with open_github(tmp_path) as (floor, github):
        way = await floor.lead(floor.reader())
        assert "refs/heads/main" in await floor.git(way, "ls-remote", f"{github.url}/{NAME}")
        github.revoke_tokens()
        assert "refs/heads/main" in await floor.git(way, "ls-remote", f"{github.url}/{NAME}")


async def test_where_the_app_is_not_installed_that_is_said(tmp_path: Path) -> None:
    async with open_github(tmp_path, Profile(NAME, private_repositories=("else/where",))) as (floor, github):
        way = await floor.lead(floor.reader())
        said = await floor.git(way, "ls-remote", f"{github.url}/else/where")
        assert "remote: ptq-bot: the App is not installed on else/where" in said


async def test_the_token_of_one_job_opens_nothing_of_another(tmp_path: Path) -> None:
    async with open_github(tmp_path) as (floor, github):
        mine = await floor.lead(floor.reader())
        theirs = await floor.lead(floor.reader("aaaaaaaaaa", "octo/gears"))
        said = await floor.git(mine, "ls-remote", f"{floor.url}/git/octo/gears")
        assert "octo/gears is not among" in said
        assert "refs/heads/main" in await floor.git(theirs, "ls-remote", f"{github.url}/octo/gears")
        await floor.gateway.close("0123456789")
        assert "403" in await floor.git(mine, "ls-remote", f"{github.url}/{NAME}")


async def test_by_a_jobs_own_relay_another_token_opens_nothing(tmp_path: Path) -> None:
    github = Counter()
    async with open_floor(tmp_path, WEB, github) as floor:
        way = await floor.lead(floor.reader())
        theirs = await floor.lead(floor.reader("aaaaaaaaaa", "octo/gears"))
        other = theirs.env["GIT_CONFIG_VALUE_0"].rpartition(" ")[2]
        for token in (other, "", GITHUB_TOKEN):
            async with floor.ask(way, token=token) as answer:
                assert answer.status == 403, "401 would have git ask for a password"
                assert await answer.text() == "ptq-bot: this token is not the job's\n"
        assert github.given == 0


async def test_large_files_are_refused_as_git_lfs_shows_it(tmp_path: Path) -> None:
    async with open_floor(tmp_path, WEB, Counter()) as floor:
        way = await floor.lead(floor.reader())
        async with floor.ask(way, "info/lfs/objects/batch", "POST", data=b'{"operation": "download"}') as answer:
            assert (answer.status, answer.content_type) == (403, "application/vnd.git-lfs+json")
            refusal = await answer.json(content_type=None)
        assert refusal == {"message": "ptq-bot: files of Git LFS do not come by the gateway: see docs/gateway.md"}


async def test_only_what_is_private_and_has_no_other_address_goes_by_the_gateway(tmp_path: Path) -> None:
    async with open_floor(tmp_path, WEB, Counter()) as floor:
        assert await floor.lead(floor.reader(private=False)) == GatewayRoute()
        assert (
            await floor.lead(replace(floor.reader(), clone_url="ssh://git@example.org/octo/widgets")) == GatewayRoute()
        )
        assert await floor.lead(floor.reader(repository="octo/unknown")) == GatewayRoute()
        assert floor.wire.paths == {}
        assert (await floor.lead(floor.reader())).by_relay
    (tmp_path / "other").mkdir()
    async with open_floor(tmp_path / "other", WEB, Counter(), Profile(NAME, by_gateway=False)) as floor:
        assert await floor.lead(floor.reader()) == GatewayRoute()


async def test_models_are_not_asked_by_a_way_for_git(tmp_path: Path) -> None:
    async with open_floor(tmp_path, WEB, Counter()) as floor:
        way = await floor.lead(floor.reader())
        connector = aiohttp.UnixConnector(floor.wire.paths["0123456789"])
        headers = {"authorization": way.env["GIT_CONFIG_VALUE_0"].removeprefix("Authorization: ")}
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post("http://127.0.0.1/v1/messages", json={}, headers=headers) as answer,
        ):
            assert answer.status == 400
            assert "asks no models" in await answer.text()


@asynccontextmanager
async def open_scripted(
    folder: Path, handle: Callable[[web.Request], Any]
) -> AsyncIterator[tuple[Floor, GatewayRoute, Counter]]:
    """A gateway whose GitHub does what a test says."""
    application, github = web.Application(), Counter()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, access_log=None, auto_decompress=False, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with open_floor(folder, "http://{}:{}".format(*runner.addresses[0][:2]), github) as floor:
            yield floor, await floor.lead(floor.reader()), github
    finally:
        await runner.cleanup()


async def test_a_machine_that_serves_only_public_repositories_gets_no_way_to_a_private_one(tmp_path: Path) -> None:
    async with open_floor(tmp_path, WEB, Counter()) as floor:
        floor.wire.machine = replace(floor.wire.machine, serves=frozenset({"public"}))
        assert await floor.lead(floor.reader(private=False)) == GatewayRoute()
        with pytest.raises(JobdError, match="does not serve private repositories"):
            await floor.lead(floor.reader())
        assert not floor.wire.paths


async def test_of_a_request_nothing_passes_but_what_git_needs(tmp_path: Path) -> None:
    heard: list[tuple[web.Request, bytes]] = []

    async def listen(request: web.Request) -> web.Response:
        heard.append((request, await request.read()))
        return web.Response(body=b"pack", headers={"set-cookie": "a=b", "x-github-request-id": "1"})

    body = gzip.compress(b"0000" * 1000)
    own = {"cookie": "a=b", "x-forwarded-for": "10.0.0.5", "content-encoding": "gzip", "git-protocol": "version=2"}
    async with (
        open_scripted(tmp_path, listen) as (floor, way, _),
        floor.ask(way, POST, "POST", data=body, headers={**own, "user-agent": "git/2.39"}) as answer,
    ):
        assert (answer.status, await answer.read()) == (200, b"pack")
        assert not {"set-cookie", "x-github-request-id"} & {name.lower() for name in answer.headers}
    ((request, got),) = heard
    assert got == body
    assert (request.headers["content-encoding"], request.headers["git-protocol"]) == ("gzip", "version=2")
    names = {name.lower() for name in request.headers}
    assert names == {
        *("host", "accept", "git-protocol", "content-type", "content-encoding", "content-length"),
        *("accept-encoding", "user-agent", "authorization"),
    }
    assert request.headers["authorization"].startswith("Basic ")
    assert request.path == f"/{NAME}.git/git-upload-pack"


async def test_a_pack_passes_as_it_comes_and_is_never_held(tmp_path: Path) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 1_000_000)
            sent += 1

    async with open_scripted(tmp_path, flood) as (floor, way, _), floor.ask(way, POST, "POST", data=b"0000") as answer:
        assert await answer.content.read(1000) == b"x" * 1000
        await asyncio.sleep(1)
        assert sent < 30, "what nobody reads is not fetched"
        answer.close()


async def test_a_pack_that_github_breaks_off_is_broken_off(tmp_path: Path) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"PACK")
        assert request.transport
        request.transport.abort()
        return response

    async with open_scripted(tmp_path, cut) as (floor, way, _), floor.ask(way, POST, "POST", data=b"0000") as answer:
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


@pytest.mark.parametrize(
    ("status", "location", "passed", "words"),
    [
        (404, "", 403, "GitHub does not let the App read octo/widgets"),
        (403, "", 403, "GitHub does not let the App read octo/widgets"),
        (401, "", 503, "GitHub does not take the token"),
        (500, "", 503, "GitHub answered 500"),
        (429, "", 503, "GitHub answered 429"),
        (301, "https://evil.example/octo/widgets.git/info/refs", 502, "GitHub answered 301"),
        (301, "/login", 502, "GitHub answered 301"),
    ],
)
async def test_what_github_refuses_is_said_in_our_words(
    tmp_path: Path, status: int, location: str, passed: int, words: str
) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=status, text="their own words", headers={"location": location} if location else {})

    async with open_scripted(tmp_path, refuse) as (floor, way, _), floor.ask(way) as answer:
        text = await answer.text()
        assert (answer.status, answer.content_type) == (passed, "text/plain"), "git shows no other"
        assert words in text
        assert "their own words" not in text


async def test_a_github_that_is_not_there_costs_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        open_floor(tmp_path, "http://127.0.0.1:1", Counter()) as floor,
        floor.ask(await floor.lead(floor.reader())) as answer,
    ):
        assert answer.status == 502
        assert "cannot be reached" in await answer.text()
    logged = "".join(capsys.readouterr())
    assert "gateway.broken" in logged
    assert GITHUB_TOKEN not in logged


async def test_who_is_refused_on_and_on_does_not_fill_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_floor(tmp_path, WEB, Counter()) as floor:
        way = await floor.lead(floor.reader())
        for _ in range(MAX_REFUSALS + 1):
            async with floor.ask(way, "git-receive-pack", "POST") as answer:
                assert answer.status == 403
    assert "".join(capsys.readouterr()).count("gateway.refused") == MAX_REFUSALS


def test_a_job_is_a_reader_of_its_own_repository() -> None:
    job = make_job(private=True)
    assert Fetcher.of(job) == Fetcher(job.id, job.repository, True, job.clone_url)
