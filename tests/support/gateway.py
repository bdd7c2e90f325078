"""A gateway between a test and a scripted model, over real connections."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
from aiohttp import web

from bot.gateway.endpoints import ModelGateway
from bot.gateway.git import GitProxy, Granting
from bot.gateway.packages import PackageProxy
from bot.gateway.proxy import Reads, Upstream
from bot.gateway.requests import RequestRule, read_request
from bot.gateway.room import Room
from bot.github.session import OutboundSettings, open_session
from runner.agents.prices import Price
from runner.db.database import Database
from runner.model.caps import Caps, Scope
from runner.model.job import Job
from runner.model.machines import Machine
from runner.rows import job_rows
from runner.rows.calls import Account, StoredUsage
from runner.transport.jobd_client import JobdClient
from runner.transport.listening import Accept, Listening
from runner.transport.local_host import LocalHost
from tests.support.calls import fetch_calls
from tests.support.jobs import NOON, open_database
from tests.support.model_endpoint import ModelEndpoint, Step
from tests.support.world import World

DIRECT = OutboundSettings()
KEY = "sk-the-operators-own-key-1234567890"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "private words"}]},
    "/v1/responses": {"model": "m", "max_output_tokens": 500, "input": [], "tools": []},
    "/v1/chat/completions": {"model": "m", "max_tokens": 500, "messages": []},
}


class Wire:
    """The way to a machine, which is this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = Machine("here", str(folder), serves=frozenset({"public", "private"}))
        self.paths: dict[str, str] = {}
        self.ways: dict[str, Listening] = {}

    def is_for(self, *, private: bool) -> bool:
        return self.machine.is_for(private=private)

    async def listen(self, job_id: str, accept: Accept) -> Listening:
        self.paths[job_id] = str(self.folder / f"{job_id}.{len(self.paths)}")
        self.ways[job_id] = await LocalHost().listen(self.paths[job_id], accept)
        return self.ways[job_id]


@dataclass
class Pieces:
    """What somebody says by a stream, piece by piece. Nobody listens there."""

    pieces: list[bytes]

    async def read(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def write(self, data: bytes) -> None:
        raise BrokenPipeError

    async def end(self) -> None:
        """Nothing to do."""

    def abort(self) -> None:
        """Nothing to do."""


@dataclass
class Floor:
    gateway: ModelGateway
    model: ModelEndpoint
    db: Database
    wire: Wire
    accounts: dict[str, Account] = field(default_factory=dict)

    async def begin(self, job: Job, **caps: Any) -> Account:
        async with self.db.write() as connection:
            await job_rows.insert_job(connection, job)
        account = await self.gateway.open(job, {Scope.JOB: Caps(**caps)}, StoredUsage())
        assert account
        await self.gateway.connect(job.id, cast(JobdClient, self.wire))
        return account

    @asynccontextmanager
    async def ask(
        self, job: Job, path: str, token: str | None = None, headers: dict[str, str] | None = None, **changes: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request, as the job's agent makes it."""
        access = self.gateway.grant(job)
        assert access
        body = {**BODIES[path.removesuffix("/count_tokens")], "stream": True, **changes}
        sent = {"authorization": f"Bearer {access.token if token is None else token}", **(headers or {})}
        connector = aiohttp.UnixConnector(self.wire.paths[job.id])
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(
                f"http://127.0.0.1:1{path}", data=io.BytesIO(json.dumps(body).encode()), headers=sent
            ) as answer,
        ):
            yield answer

    async def rows(self) -> list[Any]:
        return [(call.state, call.input_tokens, call.output_tokens) for call in await fetch_calls(self.db)]

    async def wait_for(self, rows: list[Any]) -> None:
        async with asyncio.timeout(10):
            while await self.rows() != rows:
                await asyncio.sleep(0.01)


def make_no_git(session: aiohttp.ClientSession) -> GitProxy:
    """It fetches nothing, because no repository is configured."""
    return GitProxy(session, "https://github.invalid", cast(Granting, None), {})


@asynccontextmanager
async def open_floor(
    folder: Path,
    *script: Step,
    url: str = "",
    rule: RequestRule | None = None,
    own_url: str = "",
    way: OutboundSettings = DIRECT,
    read: Reads = read_request,
    room: Room | None = None,
) -> AsyncIterator[Floor]:
    """`url` stands for the scripted model; machines come to `own_url`, where there is one, instead of by a relay."""
    (folder / "w").mkdir()
    async with (
        ModelEndpoint(*script).running() as model,
        open_database(folder) as db,
        open_session(way, auto_decompress=False) as session,
    ):
        upstream = Upstream(url or model.url, KEY, {"x-team": "widgets"}, rule or RequestRule())
        prices = {"m": Price(10.0, 1.0, 50.0)}
        git, packages = make_no_git(session), PackageProxy({})
        gateway = ModelGateway(
            session, db, {"mine": upstream}, prices, lambda: NOON, git, packages, own_url, read, room
        )
        floor = Floor(gateway, model, db, Wire(folder / "w"))
        try:
            yield floor
        finally:
            for job_id in floor.wire.paths:
                await gateway.close(job_id)


@asynccontextmanager
async def serving(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


async def come_by_address(world: World) -> None:
    """From now on machines have no relay."""
    playground = world.playground
    await playground.stop_service()
    with playground.config.open("a") as config:
        config.write(f'\n[gateway]\nurl = "http://127.0.0.1:{playground.service_port}/gateway"\n')
    await playground.start_service()
