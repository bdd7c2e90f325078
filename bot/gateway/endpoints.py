"""The gateway of a running service: one endpoint per job, and the connections through which machines reach it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import aiohttp
import structlog
from aiohttp import web

from bot.gateway.fetches import ROOT
from bot.gateway.git import GitProxy, refuse_git
from bot.gateway.packages import METHOD, PackageProxy
from bot.gateway.proxy import (
    OVER,
    STOPS,
    WRONG_TOKEN,
    JobEndpoint,
    ModelProxy,
    Models,
    Reads,
    Upstream,
    read_token,
    refuse,
)
from bot.gateway.requests import find_api, read_request
from bot.gateway.room import Room
from bot.gateway.transport import StreamTransport
from runner.agents.prices import Price
from runner.db.database import Database
from runner.model.caps import Caps, Scope
from runner.model.job import Job
from runner.model.jobd_answers import JobdError
from runner.rows import job_rows
from runner.rows.calls import Account, Ledger, StoredUsage
from runner.steps.gateway import Fetcher, GatewayRoute, ModelAccess
from runner.transport.jobd_client import JobdClient
from runner.transport.listening import Listening, Stream, peek

log = structlog.get_logger()

TOKEN = "ptq-{job_id}-{mac}"  # noqa: S105 - a form
KEEP_ALIVE_S = 3600.0
"""Seconds that an idle connection stays open. An agent may think for a long time between two requests, and a closed
connection would look like a network failure to it."""
SETTLE_S = 5.0
"""Seconds that the end of a job waits for its open requests to be counted."""
MAX_CONNECTIONS = 128
"""The most connections of one job at the same time. Agents and their helpers open a few, package installers about
fifty."""
MAX_TOGETHER, ALWAYS = 512, 16
"""The number of connections that all jobs share, and the number that each job can have even if all of these are taken.
`Room` does not count data that waits on a connection: some 300 kB in the window of SSH and in aiohttp's buffers."""
MAX_HEADERS, MAX_FIELD = 64, 4096
"""The most headers of a request, and the most bytes of one header. Agents send about twenty headers. The longest have a
few hundred bytes."""
MAX_WAITING = 2
"""The most requests that wait on one connection. No agent sends a request before the previous one is answered."""
READ_BUFFER = 32 * 1024
"""Bytes that are read from a connection ahead of the handler. aiohttp reads up to twice as much."""
FIRST_BYTES_S = 60.0
"""Seconds in which a new connection must send its first bytes."""
NOT_SERVED = "this machine does not serve private repositories, so that it fetches none: see `serves`"
PREFIX = "/gateway"
"""The prefix of the paths of requests to the gateway's own URL."""


@dataclass(frozen=True, slots=True)
class _Caller:
    """A client of the gateway's own URL. Its handler continues after the connection is lost, so `abort` cancels it."""

    task: asyncio.Task[Any]
    transport: asyncio.Transport

    def abort(self) -> None:
        """See `bot.gateway.proxy.Connection`."""
        self.transport.abort()
        self.task.cancel()


def find_most(others: int) -> int:
    """The most connections of a job, if all other jobs together have `others` connections.

    A job can have at most as many connections as are then still free, as in `Room`, but always `ALWAYS`.
    """
    return min(MAX_CONNECTIONS, max(ALWAYS, (MAX_TOGETHER - others) // 2))


class ModelGateway:
    """See `runner.steps.gateway.Gateway`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        db: Database,
        upstreams: Mapping[str, Upstream],
        prices: Mapping[str, Price],
        now: Callable[[], datetime],
        git: GitProxy,
        packages: PackageProxy,
        url: str = "",
        read: Reads = read_request,
        room: Room | None = None,
    ) -> None:
        """The keys of `upstreams` are agents' names. `url` is the gateway's own URL, or empty with a relay."""
        self._git = git
        self._packages = packages
        self._db = db
        self._ledger = Ledger(db)
        self._proxy = ModelProxy(session, self._ledger, prices, now, read, room)
        self._upstreams = upstreams
        self._now = now
        self._url = url
        self._endpoints: dict[str, JobEndpoint] = {}
        self._accounts: dict[str, Account] = {}
        self._ways: dict[str, Listening] = {}

    def grant(self, job: Job) -> ModelAccess | None:
        """See `runner.steps.gateway.Gateway`."""
        if job.agent not in self._upstreams:
            return None
        return ModelAccess(self._make_token(job.id), self._url)

    def list_accounts(self) -> Collection[str]:
        """See `runner.steps.gateway.Gateway`."""
        return [*self._accounts]

    async def open(self, job: Job, caps: Mapping[Scope, Caps], stored: StoredUsage) -> Account | None:
        """See `runner.steps.gateway.Gateway`."""
        if job.agent not in self._upstreams:
            return None
        endpoint = self._find_endpoint(job.id, job.log_context())
        endpoint.context = job.log_context()
        if endpoint.models is None:
            account = Account(job, caps, stored, beside=self._accounts)
            await self._ledger.load(account, self._now())
            endpoint.models = Models(account, self._upstreams[job.agent])
            self._accounts[job.id] = account
        account = endpoint.models.account
        account.renew(caps, stored)
        if job.is_ending:
            self.cut_off(job.id)
        return account

    def cut_off(self, job_id: str) -> None:
        """See `runner.steps.gateway.Gateway`."""
        endpoint = self._endpoints.get(job_id)
        if endpoint and endpoint.is_open:
            endpoint.is_open = False
            endpoint.break_off()

    async def connect(self, job_id: str, client: JobdClient) -> None:
        """See `runner.steps.gateway.Gateway`."""
        way, endpoint = self._ways.get(job_id), self._endpoints.get(job_id)
        if self._url or endpoint is None or (way and way.is_alive):
            return
        self._ways[job_id] = await client.listen(job_id, partial(self._accept, endpoint))
        log.info("gateway.connected", **endpoint.context)

    async def open_git_route(self, fetcher: Fetcher, client: JobdClient) -> GatewayRoute:
        """See `runner.steps.gateway.Gateway`."""
        repositories = self._git.find_repositories(fetcher)
        if not repositories:
            return GatewayRoute()
        if not client.is_for(private=fetcher.private):
            raise JobdError("not_served", NOT_SERVED)
        endpoint = self._find_endpoint(fetcher.id, {"job": fetcher.id, "repository": fetcher.repository})
        endpoint.repositories = repositories
        await self.connect(fetcher.id, client)
        return self._git.build_route(fetcher, endpoint, self._url)

    async def open_package_route(self, fetcher: Fetcher, client: JobdClient) -> GatewayRoute:
        """See `runner.steps.gateway.Gateway`."""
        hosts = () if self._url else self._packages.find_hosts(fetcher)
        if not hosts:
            return GatewayRoute()
        endpoint = self._find_endpoint(fetcher.id, {"job": fetcher.id, "repository": fetcher.repository})
        endpoint.package_hosts = hosts
        await self.connect(fetcher.id, client)
        return self._packages.build_route(endpoint)

    async def close(self, job_id: str) -> None:
        """See `runner.steps.gateway.Gateway`."""
        if way := self._ways.pop(job_id, None):
            way.close()
        if endpoint := self._endpoints.pop(job_id, None):
            endpoint.is_open = False
            endpoint.break_off()
            if endpoint.answering:
                await asyncio.wait([*endpoint.answering], timeout=SETTLE_S)
            endpoint.lines.end()

    def forget(self, job_id: str) -> None:
        """See `runner.steps.gateway.Gateway`."""
        self._accounts.pop(job_id, None)

    async def answer_by_url(self, request: web.Request) -> web.StreamResponse:
        """Answer a request to the gateway's own URL. Only the token tells which job it belongs to."""
        token, path = read_token(request), request.path.removeprefix(PREFIX)
        found = re.fullmatch(TOKEN.format(job_id="([0-9a-f]{10})", mac="[0-9a-f]{40}"), token)
        endpoint = self._endpoints.get(found[1]) if found else None
        # A request without the job's token must not count towards the job's connections.
        if endpoint is None or not endpoint.knows(request):
            is_ours = found is not None and hmac.compare_digest(token, self._make_token(found[1]))
            return self._turn_away(path, *await self._explain_absence(found[1] if found and is_ours else None))
        url, task = request.rel_url.with_path(path, keep_query=True), asyncio.current_task()
        assert task
        assert request.transport
        if len(endpoint.answering) >= self._find_limit(endpoint):
            return self._turn_away(path, 503, "too many requests at once")
        endpoint.answering[task] = _Caller(task, request.transport)
        try:
            return await self._answer(endpoint, request.clone(rel_url=url))
        finally:
            del endpoint.answering[task]

    def _find_limit(self, endpoint: JobEndpoint) -> int:
        """The most connections that a job may have now."""
        return find_most(sum(len(each.answering) for each in self._endpoints.values() if each is not endpoint))

    def _find_endpoint(self, job_id: str, context: Mapping[str, object]) -> JobEndpoint:
        """The endpoint of a job. It is created if there is none."""
        if job_id not in self._endpoints:
            self._endpoints[job_id] = JobEndpoint(context, self._make_token(job_id))
        return self._endpoints[job_id]

    async def _answer_by_relay(
        self, endpoint: JobEndpoint, task: asyncio.Task[Any], request: web.BaseRequest
    ) -> web.StreamResponse:
        """Answer a request if it has the job's token. Other jobs on the machine may reach this job's relay."""
        if not endpoint.knows(request):
            await endpoint.note_refusal(WRONG_TOKEN, has_token=False)
            return self._turn_away(request.path, 401, WRONG_TOKEN)
        endpoint.trust(task)
        return await self._answer(endpoint, request)

    async def _answer(self, endpoint: JobEndpoint, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request that has the job's token. The request is from git, or it is to a model."""
        if request.path.startswith(ROOT):
            return await self._git.answer(endpoint, request)
        return await self._proxy.answer(endpoint, request)

    async def _explain_absence(self, job_id: str | None) -> tuple[int, str]:
        """The status and the reason to answer if there is no endpoint.

        `job_id` is the job of the request's token, or None if the token is not valid.
        """
        job = None
        if job_id:
            async with self._db.read() as connection:
                job = await job_rows.fetch_job(connection, job_id)
        if job is None:  # The refresh of a base also ends here: it has a token but no row.
            return 401, "no job that is at work here has this token"
        if job.active and not job.is_ending:
            return 503, "nobody here looks after this job just now"
        return STOPS, OVER

    def _turn_away(self, path: str, status: int, reason: str) -> web.Response:
        """Refuse a request that no endpoint handles."""
        return refuse_git(status, reason) if path.startswith(ROOT) else refuse(find_api(path), status, reason)

    def _make_token(self, job_id: str) -> str:
        """The token of a job. Only replicas can compute it, because they share a secret in the database."""
        mac = hmac.digest(self._db.secret, f"gateway {job_id}".encode(), "sha256").hex()[:40]
        return TOKEN.format(job_id=job_id, mac=mac)

    async def _accept(self, endpoint: JobEndpoint, stream: Stream) -> None:
        """Handle one connection from the machine."""
        task = asyncio.current_task()
        assert task
        if len(endpoint.answering) >= self._find_limit(endpoint) and not endpoint.break_off_stranger():
            stream.abort()
            return
        endpoint.answering[task] = endpoint.strangers[task] = stream
        try:
            async with asyncio.timeout(FIRST_BYTES_S):
                begun = await peek(stream, len(METHOD))
            if begun.first.startswith(METHOD):
                await self._packages.answer(endpoint, begun)
            else:
                await self._serve(endpoint, task, begun)
        except Exception as error:  # asyncssh would close the SSH connection to the machine after any error here.
            if endpoint.lines.admit():
                log.warning("gateway.not_accepted", **endpoint.context, reason=type(error).__name__)
            stream.abort()
        finally:
            endpoint.strangers.pop(task, None)
            del endpoint.answering[task]

    async def _serve(self, endpoint: JobEndpoint, task: asyncio.Task[Any], stream: Stream) -> None:
        """Answer the HTTP requests of one connection. Raises `OSError`."""
        server = web.Server(partial(self._answer_by_relay, endpoint, task), handler_cancellation=True)
        try:
            await StreamTransport(stream, _JobConnection(server, endpoint), endpoint.share).run()
        finally:
            await server.shutdown(SETTLE_S)


class _JobConnection(web.RequestHandler):
    """aiohttp's handler of one connection, with lower limits."""

    def __init__(self, server: web.Server, endpoint: JobEndpoint) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            logger=_JobLogger(endpoint),  # type: ignore[arg-type]
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,
            keepalive_timeout=KEEP_ALIVE_S,
            max_headers=MAX_HEADERS,
            max_field_size=MAX_FIELD,
            read_bufsize=READ_BUFFER,
        )

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if len(self._messages) > MAX_WAITING and self.transport is not None:
            self.transport.abort()


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's own log lines about a job's connections. `JobEndpoint.lines` limits their number."""

    def __init__(self, endpoint: JobEndpoint) -> None:
        super().__init__(logging.getLogger("aiohttp.server"), {})
        self._endpoint = endpoint

    def log(self, level: int, msg: object, *args: object, **named: Any) -> None:
        """See `logging.LoggerAdapter`."""
        if self.isEnabledFor(level) and self._endpoint.lines.admit():
            super().log(level, msg, *args, **named)
