"""Passes an agent's requests on to its model, and streams the answers back.

Each request is checked. Its maximum cost is reserved before it is sent, and its real cost is recorded afterwards.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

import aiohttp
import structlog
from aiohttp import web

from bot.gateway.requests import (
    MAX_NAME,
    Api,
    Asked,
    NotAllowed,
    RequestRule,
    choose_betas,
    find_api,
    is_light,
    read_request,
)
from bot.gateway.room import HeldBytes, MemoryFull, Room
from bot.gateway.threads import run_in_turn
from bot.gateway.usage import AnswerReader, Count
from bot.github.session import describe_failure
from runner.agents.prices import Price, find_price
from runner.line_limit import LineLimit
from runner.model.job import Job
from runner.model.usage import NOTHING
from runner.rows.calls import Account, AtCap, Ledger
from runner.rows.claims import ClaimLost
from runner.transport.paced import LoopShare

log = structlog.get_logger()

MAX_BODY = 32 * 1024 * 1024
"""The most bytes of a request. This is Anthropic's limit:
https://docs.anthropic.com/en/api/overview#request-size-limits"""

LIGHT = 2 * 1024 * 1024
"""The most bytes of a light request. Larger requests of one job arrive one at a time. Larger requests of all jobs
together are parsed one at a time."""

BODY_S = 60.0
"""Seconds in which a whole request to a model, or the next part of a request from git, must arrive."""

RETRY_S = 5
"""Seconds that an agent is asked to wait before it tries again (`Retry-After`)."""

ANSWER_BUFFER = 64 * 1024
"""Bytes of an answer that are buffered for an agent that reads slowly."""

CONNECT_S, SILENCE_S = 10.0, 600.0
"""Seconds to connect to a model (or to GitHub, for git), and the longest pause in an answer."""

STOPS = 400
"""The status after which claude, codex and pi end at once, without a retry (docs/agents.md)."""

OVER = "the run is over: its access has ended"
WRONG_TOKEN = "this token is not the job's"  # noqa: S105 - a message

KEY_REFUSED = (401, 403)

UNREACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
"""Errors that are raised before any byte of a request is sent to the model."""

READING_THREADS = 2
"""Threads that read requests, for all jobs together. Each job uses one at a time."""

MAX_LOOKUPS = 2
"""DNS lookups for one job at the same time."""

MAX_FETCHES = 8
"""Requests from git for one job at the same time. Further ones wait."""

MAX_REFUSALS, PENALTY_S = 100, 1.0
"""After `MAX_REFUSALS` refusals, each further refusal to the job is delayed by `PENALTY_S` seconds. Agents end after
their first refusal. After `MAX_REFUSALS` refused requests to models, each further request to a model is parsed only
after the same delay, one at a time."""

MAX_LOGGED = 100
"""The most log lines about one job's fetches, and about its connections to package hosts."""

PASSED_ON = ("accept", "anthropic-version", "user-agent")
"""Headers of requests that are passed on. Keys, cookies and headers that name an account are not."""

FREE_STATUSES = {*range(400, 500), 500, 503, 529} - {408, 499}
"""Statuses for which the vendor bills no tokens. Any other error may come from a proxy in between that stopped waiting
for the model's answer.
https://docs.anthropic.com/en/api/errors · https://platform.openai.com/docs/guides/error-codes"""

PASSED_BACK = ("content-type", "request-id", "retry-after", "retry-after-ms", "x-request-id", "x-should-retry")


@dataclass(frozen=True, slots=True)
class Upstream:
    """The API of an agent's models: its URL, its key, and the rule for requests."""

    url: str
    key: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    rule: RequestRule

    def sign(self, api: Api) -> dict[str, str]:
        """The headers that authenticate the service to the vendor."""
        own = {"x-api-key": self.key} if api is Api.MESSAGES else {"authorization": f"Bearer {self.key}"}
        return {**(own if self.key else {}), **self.headers}


class NotReceived(Exception):  # noqa: N818 - an answer to the agent
    """A request could not be received. `status` and the message are for the answer to the agent."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Connection(Protocol):
    """A connection that can be aborted."""

    def abort(self) -> None:
        """Close the connection immediately."""


@dataclass(frozen=True, slots=True)
class Models:
    """A job's access to models: its account, and the API that its requests are sent to."""

    account: Account
    upstream: Upstream


@dataclass(eq=False, slots=True)
class JobEndpoint:
    """The state of one job's access to the gateway."""

    context: Mapping[str, object]
    """The ids in every log line about the job."""
    token: str = field(repr=False)
    models: Models | None = None
    """The job's access to models. None if its agent does not reach models through the gateway, or does not run yet."""
    repositories: tuple[str, ...] = ()
    """The repositories that the job may fetch with a token. The first one is the repository that the job works on."""
    package_hosts: tuple[str, ...] = ()
    """The hosts that the job may connect to, as in the operator's list."""
    is_open: bool = True
    refusals: Counter[bool] = field(default_factory=Counter)
    """The number of refused requests with the token (True) and without it (False).

    They are counted separately, so that clients without the token do not use up the job's log lines.
    """
    logged: Counter[str] = field(default_factory=Counter)
    """The number of log lines of each kind that `may_log` has been asked about."""
    lines: LineLimit = field(init=False)
    """Limits the log lines about broken connections and requests."""
    arriving: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Held while a request larger than `LIGHT` arrives. Two of them could block each other while both need memory."""
    fetching: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_FETCHES))
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Held while a request to a model is parsed. Parsing takes CPU time, which no cap limits."""
    looking_up: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_LOOKUPS))
    share: LoopShare = field(default_factory=LoopShare)
    """The share of the event loop's time for receiving requests, for all connections of the job's relay together."""
    denials: int = 0
    """The number of requests to models that were refused after they were received."""
    answering: dict[asyncio.Task[Any], Connection] = field(default_factory=dict)
    """The open connections, by the task that handles each."""
    strangers: dict[asyncio.Task[Any], Connection] = field(default_factory=dict)
    """The open connections on which no request has had the token yet, oldest first. They may be other jobs', because
    other jobs on the machine may reach this job's relay."""

    def __post_init__(self) -> None:
        self.lines = LineLimit(self.note_left_out)

    def knows(self, request: web.BaseRequest) -> bool:
        """Whether a request has the job's token."""
        return hmac.compare_digest(read_token(request).encode(errors="surrogateescape"), self.token.encode())

    def trust(self, task: asyncio.Task[Any]) -> None:
        """Note that a request on this task's connection had the token."""
        self.strangers.pop(task, None)

    def break_off_stranger(self) -> bool:
        """Abort the oldest connection on which no request had the token. False if there is none."""
        oldest = next(iter(self.strangers), None)
        if oldest is None:
            return False
        self.strangers.pop(oldest).abort()
        return True

    async def note_refusal(self, reason: str, *, has_token: bool = True) -> None:
        """Log a refusal. After `MAX_REFUSALS`, delay the client instead."""
        self.log_refusal(reason, has_token=has_token)
        if self.refusals[has_token] > MAX_REFUSALS:
            await asyncio.sleep(PENALTY_S)

    def log_refusal(self, reason: str, *, has_token: bool = True) -> None:
        """Log a refusal, unless `MAX_REFUSALS` have been logged."""
        self.refusals[has_token] += 1
        if self.refusals[has_token] <= MAX_REFUSALS:
            log.warning("gateway.refused", **self.context, reason=reason)

    def may_log(self, kind: str) -> bool:
        """Whether there may be another log line of this kind. An agent can cause any number of them."""
        self.logged[kind] += 1
        return self.logged[kind] <= MAX_LOGGED

    def note_left_out(self, count: int) -> None:
        """Log how many lines were left out."""
        log.warning("gateway.lines_left_out", **self.context, count=count)

    async def pause(self) -> None:
        """Wait before the next request to a model is parsed, at least until other tasks have run once."""
        await asyncio.sleep(PENALTY_S if self.denials >= MAX_REFUSALS else 0)

    def break_off(self) -> None:
        """Abort all open connections."""
        for connection in [*self.answering.values()]:
            connection.abort()


Reads = Callable[[str, str, str, bytes, RequestRule], Asked]
"""See `bot.gateway.requests.read_request`."""


class ModelProxy:
    """Answers requests to models, each for the job whose endpoint received it."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        ledger: Ledger,
        prices: Mapping[str, Price],
        now: Callable[[], datetime],
        read: Reads = read_request,
        room: Room | None = None,
    ) -> None:
        self._read_request = read
        self._room = room or Room()
        self._threads = ThreadPoolExecutor(READING_THREADS, "gateway-read")
        self._reading_large = asyncio.Semaphore(1)
        self._session = session
        self._ledger = ledger
        self._prices = prices
        self._now = now

    async def answer(self, endpoint: JobEndpoint, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. The agent prints the reason of a refusal."""
        api = find_api(request.path)
        if (models := endpoint.models) is None:
            return await self._turn_down(endpoint, api, STOPS, "this job asks no models by the gateway")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            return await self._turn_down(endpoint, api, STOPS, "compressed requests are not passed on")
        with self._room.hold(endpoint) as held:
            try:
                await self._receive(endpoint, request, held)
                asked = await self._read(endpoint, request, held, models.upstream.rule)
                # A free request is not counted in the account, but it is also refused after the end of the run.
                call = await self._reserve(endpoint, models, asked)
            except (NotAllowed, AtCap) as refusal:
                endpoint.denials += 1
                endpoint.log_refusal(str(refusal))
                return refuse(api, STOPS, str(refusal))
            except NotReceived as refusal:
                endpoint.log_refusal(str(refusal))
                return refuse(api, refusal.status, str(refusal))
            except ClaimLost:
                return refuse(api, 503, "another replica of the service answers now")
            return await self._pass_on(endpoint, models, request, asked, call, held)

    async def _turn_down(self, endpoint: JobEndpoint, api: Api, status: int, reason: str) -> web.Response:
        await endpoint.note_refusal(reason)
        return refuse(api, status, reason)

    async def _receive(self, endpoint: JobEndpoint, request: web.BaseRequest, held: HeldBytes) -> None:
        """Receive a request's body into `held`. Raises `NotReceived`."""
        body = io.BytesIO()
        try:
            async with asyncio.timeout(BODY_S), AsyncExitStack() as turn:
                while chunk := await request.content.readany():
                    size = body.tell() + len(chunk)
                    if size > MAX_BODY:
                        raise NotReceived(413, f"the request is larger than {MAX_BODY} bytes")
                    if body.tell() <= LIGHT < size:
                        await turn.enter_async_context(endpoint.arriving)
                    await held.grow(len(chunk))
                    body.write(chunk)
        except TimeoutError:
            raise NotReceived(408, f"the request did not arrive within {BODY_S:g} seconds") from None
        except MemoryFull:
            raise NotReceived(503, "there is no memory for such a large request just now: try again") from None
        held.replace(body.getvalue())

    async def _read(self, endpoint: JobEndpoint, request: web.BaseRequest, held: HeldBytes, rule: RequestRule) -> Asked:
        """Parse and check the received body. In `held`, the body to pass on replaces it. Raises `NotAllowed`.

        A job's requests are parsed one at a time. Parsing takes several times the size of a request in memory, so only
        one large request of all jobs is parsed at a time.
        """
        body = held.content
        read = partial(self._read_request, request.method, request.path, request.query_string, body, rule)
        if not is_light(body) and len(body) <= LIGHT:
            asked = await run_in_turn(self._threads, endpoint.reading, read, endpoint.pause)
        else:
            async with endpoint.reading:
                await endpoint.pause()
                asked = read() if is_light(body) else await run_in_turn(self._threads, self._reading_large, read)
        held.replace(asked.body)
        return replace(asked, body=b"")

    async def _reserve(self, endpoint: JobEndpoint, models: Models, asked: Asked) -> str | None:
        """Reserve the maximum that a request can cost. Returns the id of the call, or None for a free request.

        Raises `NotAllowed`, `AtCap` and `ClaimLost`.
        """
        call = None
        if endpoint.is_open and asked.is_free:
            models.account.count_free()
        elif endpoint.is_open:
            price = find_price(asked.model, self._prices)
            if price is None and models.account.caps_money and not models.upstream.rule.names(asked.model):
                raise NotAllowed(explain_unpriced(asked.model, models.account.job.agent))
            most = asked.most.take(price)
            call = await self._ledger.reserve(models.account, asked.model, most, self._now())
        if not endpoint.is_open:
            if call:
                await self._ledger.settle(models.account, call, asked.model, NOTHING, self._now(), assumed=False)
            raise NotAllowed(OVER)
        return call

    async def _pass_on(
        self,
        endpoint: JobEndpoint,
        models: Models,
        request: web.BaseRequest,
        asked: Asked,
        call: str | None,
        held: HeldBytes,
    ) -> web.StreamResponse:
        answer, began = _Answer(AnswerReader(streams=asked.streams), held), time.monotonic()
        try:
            await self._stream(endpoint, models, request, asked, answer)
        finally:
            if call:
                # The call is settled even if the agent disconnects, which cancels this task.
                await asyncio.shield(asyncio.ensure_future(self._settle(models.account, call, asked, answer, began)))
        assert answer.response
        return answer.response

    async def _settle(self, account: Account, call: str, asked: Asked, answer: _Answer, began: float) -> None:
        """Record what an answer used. If that is not certain, record the most that it may have used."""
        count, assumed = answer.find_count(asked.most), not answer.is_certain
        taken = count.take(find_price(asked.model, self._prices)) if count else NOTHING
        await self._ledger.settle(account, call, asked.model, taken, self._now(), assumed=assumed)
        log.info(
            "gateway.answered",
            **account.job.log_context(),
            model=asked.model,
            status=answer.status,
            input_tokens=taken.input_tokens,
            output_tokens=taken.output_tokens,
            cost_usd=taken.cost_usd,
            assumed=assumed,
            took_s=round(time.monotonic() - began, 3),
        )

    async def _stream(
        self, endpoint: JobEndpoint, models: Models, request: web.BaseRequest, asked: Asked, answer: _Answer
    ) -> None:
        upstream, job = models.upstream, models.account.job
        url = f"{upstream.url}{asked.target}"
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        if betas := choose_betas(request.headers.get("anthropic-beta", "")):
            headers["anthropic-beta"] = betas
        headers |= {"content-type": "application/json", "accept-encoding": "identity", **upstream.sign(asked.api)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        try:
            async with self._session.post(
                url,
                data=io.BytesIO(answer.held.take()),  # With another reference to the bytes, aiohttp would copy them.
                headers=headers,
                allow_redirects=False,
                timeout=timeout,
                read_bufsize=ANSWER_BUFFER,
            ) as theirs:
                answer.held.drop()
                if theirs.status in KEY_REFUSED:
                    answer.refuse_key(asked.api, theirs.status, job)
                    return
                answer.begin(theirs)
                assert answer.response
                await answer.response.prepare(request)
                async for chunk in theirs.content.iter_any():
                    try:
                        await answer.response.write(chunk)
                    finally:  # The chunk counts even if the agent did not receive it, because the model has sent it.
                        answer.feed(chunk)
                answer.finish()
                await answer.response.write_eof()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if endpoint.lines.admit():
                log.warning("gateway.broken", **job.log_context(), reason=describe_failure(error))
            if answer.response is None:
                # A model that was never reached has used no tokens.
                answer.is_certain = isinstance(error, UNREACHED)
                answer.response = refuse(asked.api, 502, "the model cannot be reached")
            elif request.transport:
                request.transport.abort()  # A normal end would make the partial answer look complete.


class _Answer:
    """The part of an answer that has arrived so far."""

    def __init__(self, reader: AnswerReader, held: HeldBytes) -> None:
        self.reader = reader
        self.held = held
        """Bytes in memory: the request until the answer begins, then the part of the answer that is not parsed yet."""
        self.response: web.StreamResponse | None = None
        self.status = 0
        self.is_certain = False
        """Whether the usage is known."""

    def refuse_key(self, api: Api, status: int, job: Job) -> None:
        """Refuse the call: the vendor rejected the service's key. The agent does not see the vendor's message."""
        log.error("gateway.key_refused", **job.log_context(), status=status)
        self.status, self.is_certain = status, True
        self.response = refuse(api, STOPS, f"the model does not take the service's key (status {status})")

    def begin(self, theirs: aiohttp.ClientResponse) -> None:
        """Start the response to the agent, with the status and headers of the model's answer."""
        self.status = theirs.status
        kept = {name: theirs.headers[name] for name in PASSED_BACK if name in theirs.headers}
        self.response = web.StreamResponse(status=theirs.status, headers=kept)

    def feed(self, chunk: bytes) -> None:
        """Read a part of the answer.

        Once the model has sent its final count and the end of its answer, the usage is known, even if a connection
        breaks after that.
        """
        self.reader.feed(chunk)
        if not self.held.resize(self.reader.unread):
            self.reader.skip()
            self.held.resize(self.reader.unread)
        has_said_all = self.reader.has_ended and self.reader.is_final
        self.is_certain = self.is_certain or (self.status == HTTPStatus.OK and has_said_all)

    def find_count(self, most: Count) -> Count | None:
        """The tokens of the call. If they are not known, an estimate from `most`, the reserved maximum.

        None if the call certainly used no tokens.
        """
        if not self.is_certain:
            return self.reader.estimate(most)
        return self.reader.count if self.reader.is_final else None

    def finish(self) -> None:
        """Note that the whole answer has arrived."""
        self.reader.finish()
        self.is_certain = self.reader.is_final or self.status in FREE_STATUSES


def explain_unpriced(model: str, agent: str) -> str:
    """Why a model is not asked if money is capped, its price is unknown, and the operator has not named it."""
    return (
        f"the price of model {model[:MAX_NAME]} is unknown, and money is capped: the operator can add it to [prices], "
        f"or name the model in models of [agents.{agent}.gateway], where its turns are counted instead"
    )


def read_token(request: web.BaseRequest) -> str:
    """The token of a request. Each vendor uses one of two headers for it."""
    return request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")


def refuse(api: Api, status: int, message: str) -> web.Response:
    """A refusal in the format of the vendor's own errors."""
    kind = {401: "authentication_error", 502: "api_error", 503: "overloaded_error"}.get(status, "invalid_request_error")
    error = {"type": kind, "message": f"ptq-bot: {message}"}
    whole = {"type": "error", "error": error} if api is Api.MESSAGES else {"error": {**error, "code": kind}}
    return web.json_response(whole, status=status, headers={"retry-after": str(RETRY_S)} if status == 503 else None)
