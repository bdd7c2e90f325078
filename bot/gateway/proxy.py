"""Passes a request of an agent on to its model, and the answer back as it comes: checked, reserved, settled."""

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

from bot.gateway.requests import Api, Asked, NotAllowed, RequestRule, choose_betas, find_api, is_light, read_request
from bot.gateway.room import HeldBytes, MemoryFull, Room
from bot.gateway.threads import run_in_turn
from bot.gateway.usage import AnswerReader
from bot.github.session import describe_failure
from runner.agents.prices import Price, find_price
from runner.model.job import Job
from runner.model.usage import NOTHING
from runner.rows.calls import Account, AtCap, Ledger
from runner.rows.claims import ClaimLost

log = structlog.get_logger()

MAX_BODY = 32 * 1024 * 1024
"""Bytes of a request; Anthropic's own limit. https://docs.anthropic.com/en/api/overview#request-size-limits"""

LIGHT = 2 * 1024 * 1024
"""Bytes of a request from which on a job sends one at a time, and all jobs together have one read at a time."""

BODY_S = 60.0
"""How long a request may take to arrive."""

RETRY_S = 5
"""How long an agent is asked to wait before it tries again."""

ANSWER_BUFFER = 64 * 1024
"""Bytes of an answer that wait for an agent that reads slowly."""

CONNECT_S, SILENCE_S = 10.0, 600.0
"""How long a model may take to be reached, and to say its next word."""

STOPS = 400
"""The status at which claude, codex and pi end at once and try no more (docs/agents.md)."""

OVER = "the run is over: its access has ended"
WRONG_TOKEN = "this token is not the job's"  # noqa: S105 - words

KEY_REFUSED = (401, 403)

UNREACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
"""What is raised before a byte of the request has left for the model."""

READING_THREADS = 2
"""Threads that read requests, for all jobs together. Each job uses one at a time."""

MAX_LOOKUPS = 2
"""Names of hosts that are looked up for one job at once."""

MAX_FETCHES = 8
"""Of git at once, for one job; more wait. `git submodule update` is asked for as many."""

MAX_LINES, MINUTE_S = 20, 60.0
"""Lines in the log about broken connections and requests of one job, in a minute."""

MAX_REFUSALS, PENALTY_S = 100, 1.0
"""After so many refusals to one job each further one takes so long: agents end at the first. After so many refusals of
what it asked models, its requests to models are read one at a time, each so long after the one before."""

PASSED_ON = ("accept", "anthropic-version", "user-agent")
"""Headers of requests. Keys, cookies and whatever names an account are not among them."""

FREE_STATUSES = {*range(400, 500), 500, 503, 529} - {408, 499}
"""Answers of a model that took nothing. Others are of somebody in between, who may have waited for it in vain.
https://docs.anthropic.com/en/api/errors · https://platform.openai.com/docs/guides/error-codes"""

PASSED_BACK = ("content-type", "request-id", "retry-after", "retry-after-ms", "x-request-id", "x-should-retry")


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where an agent's models are, by what key, and what may be asked of them."""

    url: str
    key: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    rule: RequestRule

    def sign(self, api: Api) -> dict[str, str]:
        """The headers that say who asks."""
        own = {"x-api-key": self.key} if api is Api.MESSAGES else {"authorization": f"Bearer {self.key}"}
        return {**(own if self.key else {}), **self.headers}


class NotReceived(Exception):  # noqa: N818 - an answer to the agent
    """A request did not arrive: the status of the answer, and words for the agent."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Connection(Protocol):
    """What can be broken off."""

    def abort(self) -> None:
        """Break it off."""


@dataclass(frozen=True, slots=True)
class Models:
    """What a job may ask of models, and its account of that."""

    account: Account
    upstream: Upstream


@dataclass(eq=False, slots=True)
class JobEndpoint:
    """One job's way in."""

    context: Mapping[str, object]
    """The ids that every line in the log has."""
    token: str = field(repr=False)
    models: Models | None = None
    """None where its agent asks none by the gateway, or is not at work yet."""
    repositories: tuple[str, ...] = ()
    """The private ones that it may fetch, its own first."""
    package_hosts: tuple[str, ...] = ()
    """What it may be connected to, as the operator has written it."""
    is_open: bool = True
    refusals: Counter[bool] = field(default_factory=Counter)
    """How many there were to those who had the token (True), and to others: these must not use up the job's lines."""
    fetches: int = 0
    connections: int = 0
    lines: int = 0
    """How many there were, or would have been, about broken connections and requests since `lines_since`."""
    lines_since: float = field(default_factory=time.monotonic)
    arriving: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """For the one request that arrives beyond `LIGHT`: several that wait for room would block each other."""
    fetching: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_FETCHES))
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """For the one request to a model that is read just now: reading takes time of the processor, and costs nothing."""
    looking_up: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_LOOKUPS))
    denials: int = 0
    """Requests to models that were refused once they were read."""
    answering: dict[asyncio.Task[Any], Connection] = field(default_factory=dict)
    """The connections by which requests come."""
    strangers: dict[asyncio.Task[Any], Connection] = field(default_factory=dict)
    """Those of them on which nobody has shown the token yet, the oldest first. Neighbours may reach the job's relay."""

    def knows(self, request: web.BaseRequest) -> bool:
        """Whether a request has the job's token."""
        return hmac.compare_digest(read_token(request).encode(errors="surrogateescape"), self.token.encode())

    def trust(self, task: asyncio.Task[Any]) -> None:
        """Somebody has shown the token on the connection that this task answers."""
        self.strangers.pop(task, None)

    def break_off_stranger(self) -> bool:
        """Break off the oldest connection on which nobody has shown the token. Returns whether there is one."""
        oldest = next(iter(self.strangers), None)
        if oldest is None:
            return False
        self.strangers.pop(oldest).abort()
        return True

    async def note_refusal(self, reason: str, *, has_token: bool = True) -> None:
        """Say in the log that something was refused. Whoever asks on and on has to wait, and gets no more lines."""
        self.log_refusal(reason, has_token=has_token)
        if self.refusals[has_token] > MAX_REFUSALS:
            await asyncio.sleep(PENALTY_S)

    def log_refusal(self, reason: str, *, has_token: bool = True) -> None:
        """Say in the log that something was refused, unless that has been said often enough."""
        self.refusals[has_token] += 1
        if self.refusals[has_token] <= MAX_REFUSALS:
            log.warning("gateway.refused", **self.context, reason=reason)

    def admit_line(self) -> bool:
        """Whether one more line about a broken connection or request may be in the log now."""
        if time.monotonic() - self.lines_since > MINUTE_S:
            self.note_left_out()
            self.lines, self.lines_since = 0, time.monotonic()
        self.lines += 1
        return self.lines <= MAX_LINES

    def note_left_out(self) -> None:
        """Say in the log how many lines were not admitted."""
        if self.lines > MAX_LINES:
            log.warning("gateway.lines_left_out", **self.context, count=self.lines - MAX_LINES)
            self.lines = 0

    async def pause(self) -> None:
        """Wait before the next request to a model is read, at least until the event loop has served everyone else."""
        await asyncio.sleep(PENALTY_S if self.denials >= MAX_REFUSALS else 0)

    def break_off(self) -> None:
        """Break off whatever is under way."""
        for connection in [*self.answering.values()]:
            connection.abort()


Reads = Callable[[str, str, str, bytes, RequestRule], Asked]
"""See `bot.gateway.requests.read_request`."""


class ModelProxy:
    """Answers requests, each for the job through whose endpoint it came."""

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
        """Answer one request. What is not passed on is refused in words that the agent prints."""
        api = find_api(request.path)
        if (models := endpoint.models) is None:
            return await self._turn_down(endpoint, api, STOPS, "this job asks no models by the gateway")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            return await self._turn_down(endpoint, api, STOPS, "compressed requests are not passed on")
        with self._room.hold(endpoint) as held:
            try:
                await self._receive(endpoint, request, held)
                asked = await self._read(endpoint, request, held, models.upstream.rule)
                # What costs nothing is in no account, and passes all the same only while the run goes on.
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
        """Hold a request's body. Raises `NotReceived`."""
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
        """What a request asks for; the body to pass on is held. Raises `NotAllowed`. One of a job is read at a time.

        Reading takes several times the memory of a request, so of large ones one of all jobs is read at a time.
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
        """The id of the call, once it is written down; None for one that costs nothing. Raises what answers instead."""
        call = None
        if endpoint.is_open and not asked.is_free:
            most = asked.most.take(find_price(asked.model, self._prices))
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
                # Whoever went away must not take the account of it along.
                await asyncio.shield(asyncio.ensure_future(self._settle(models.account, call, asked, answer, began)))
        assert answer.response
        return answer.response

    async def _settle(self, account: Account, call: str, asked: Asked, answer: _Answer, began: float) -> None:
        """Write down what an answer took, or has to be assumed to have taken."""
        count = answer.reader.count if answer.is_certain else answer.reader.reckon(asked.most)
        taken, assumed = count.take(find_price(asked.model, self._prices)), not answer.is_certain
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
                data=io.BytesIO(answer.held.take()),  # The only reference: else aiohttp would make a copy.
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
                    finally:  # It was said, whether or not anybody heard it.
                        answer.feed(chunk)
                answer.finish()
                await answer.response.write_eof()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if endpoint.admit_line():
                log.warning("gateway.broken", **job.log_context(), reason=describe_failure(error))
            if answer.response is None:
                # A model that was never reached took nothing.
                answer.is_certain = isinstance(error, UNREACHED)
                answer.response = refuse(asked.api, 502, "the model cannot be reached")
            elif request.transport:
                request.transport.abort()  # To end the answer as if it were whole would be a lie.


class _Answer:
    """What has come back so far."""

    def __init__(self, reader: AnswerReader, held: HeldBytes) -> None:
        self.reader = reader
        self.held = held
        """The request until the answer begins, then what of the answer cannot be read yet."""
        self.response: web.StreamResponse | None = None
        self.status = 0
        self.is_certain = False
        """Whether it is known what it took."""

    def refuse_key(self, api: Api, status: int, job: Job) -> None:
        """The model does not take our key: that is the operator's matter, and what it says of the key is nobody's."""
        log.error("gateway.key_refused", **job.log_context(), status=status)
        self.status, self.is_certain = status, True
        self.response = refuse(api, STOPS, f"the model does not take the service's key (status {status})")

    def begin(self, theirs: aiohttp.ClientResponse) -> None:
        """The model has begun to answer."""
        self.status = theirs.status
        kept = {name: theirs.headers[name] for name in PASSED_BACK if name in theirs.headers}
        self.response = web.StreamResponse(status=theirs.status, headers=kept)

    def feed(self, chunk: bytes) -> None:
        """It has said so much. Once it has said that this is all, it is known what that took, whoever hangs up then."""
        self.reader.feed(chunk)
        if not self.held.resize(self.reader.unread):
            self.reader.skip()
            self.held.resize(self.reader.unread)
        has_said_all = self.reader.has_ended and self.reader.is_final
        self.is_certain = self.is_certain or (self.status == HTTPStatus.OK and has_said_all)

    def finish(self) -> None:
        """It has answered to the end."""
        self.reader.finish()
        self.is_certain = self.reader.is_final or self.status in FREE_STATUSES


def read_token(request: web.BaseRequest) -> str:
    """What a request says it may be made by: vendors have two places for it."""
    return request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")


def refuse(api: Api, status: int, message: str) -> web.Response:
    """A refusal as the model itself would word it."""
    kind = {401: "authentication_error", 502: "api_error", 503: "overloaded_error"}.get(status, "invalid_request_error")
    error = {"type": kind, "message": f"ptq-bot: {message}"}
    whole = {"type": "error", "error": error} if api is Api.MESSAGES else {"error": {**error, "code": kind}}
    return web.json_response(whole, status=status, headers={"retry-after": str(RETRY_S)} if status == 503 else None)
