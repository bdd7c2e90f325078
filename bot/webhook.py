"""`POST /webhook`: checks a delivery, commits it to the inbox, answers. Nothing else happens before the answer.

GitHub waits 10 seconds and never retries by itself, so the answer waits for one commit and nothing else.
https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog
from aiohttp import web

from handlers.events import find_lane, find_time, parse_excerpt
from handlers.inbox.inbox import Inbox
from handlers.inbox.receiving import Arrival, NotStored
from handlers.recovery.missed import KEPT
from runner.line_limit import LineLimit
from runner.steps.loops import Wakeup

log = structlog.get_logger()

JSON = "application/json"

MAX_BODY = 25 * 1024 * 1024
"""Bytes. GitHub's own limit for a payload is 25 MB."""

MAX_HEADER = 100
"""The most characters in a header that we read. GitHub's headers are shorter."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,79}")
"""The allowed form of a delivery id. GitHub, other forges and forwarders send UUIDs."""


BODY_S = 10.0
"""The longest time that a body may take to arrive, in seconds. GitHub waits no longer for the answer."""


PLACES = ((1024 * 1024, 4), (64 * 1024, 128))
"""Pairs of a size in bytes and a count, the largest size first. At most `count` bodies above `size` are read at once.

The sender of a body is unknown until the whole body is here and its signature is checked.
"""

RETRY_AFTER_S = 10


class DeliveryRefused(Exception):  # noqa: N818
    """The request is not an acceptable delivery. `status` and the message are the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Webhook:
    """The endpoint. A delivery may be signed with any of its secrets. Several secrets allow a rotation."""

    def __init__(
        self,
        inbox: Inbox,
        secrets: Sequence[str],
        wakeup: Wakeup,
        *,
        body_s: float = BODY_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._inbox = inbox
        self._now = now
        self._secrets = [secret.encode() for secret in secrets]
        self._wakeup = wakeup
        self._body_s = body_s
        self._places = [(size, asyncio.Semaphore(count)) for size, count in PLACES]
        self._refusals = LineLimit(_note_left_out)

    async def handle(self, request: web.Request) -> web.Response:
        """Receive a delivery, and answer with a status.

        202: the delivery is now stored. 200: it was stored before, or its event has no handler. 4xx, with the reason:
        the request is not an acceptable delivery. 503: the delivery could not be stored, or too many large bodies
        arrive at once. GitHub shows it as failed, and it can be sent again.
        """
        self._refusals.end_minute()
        try:
            event, delivery_id, signature = read_headers(request)
            arrival = self._examine(delivery_id, event, signature, await self._read_signed(request, signature))
        except DeliveryRefused as refusal:
            if self._refusals.admit():
                log.warning("delivery.refused", status=refusal.status, reason=str(refusal))
            return _answer(refusal.status, error=str(refusal))
        if event == "ping":
            return _answer(200, message="pong")
        if arrival is None:
            log.info("delivery.ignored", delivery=delivery_id, event_name=event)
            return _answer(200, message="no handler for this event", delivery=delivery_id)
        try:
            stored = await self._inbox.receive_once(arrival)
        except NotStored as error:
            log.error("delivery.not_stored", delivery=delivery_id, event_name=event, reason=str(error))
            return _answer(503, error=str(error), delivery=delivery_id)
        self._wakeup.notify()
        if not stored:
            log.info("delivery.repeated", delivery=delivery_id, event_name=event)
        message = "accepted" if stored else "this delivery is here already"
        return _answer(202 if stored else 200, message=message, delivery=delivery_id)

    def _examine(self, delivery_id: str, event: str, signature: str, body: bytes) -> Arrival | None:
        """The delivery for the inbox. None if there is no handler for it. Raises `DeliveryRefused`."""
        payload = parse_body(body)
        check_age(payload, self._now())
        if not self._inbox.wants(event, payload):
            return None
        return Arrival(delivery_id, event, find_lane(payload), body, signature)

    async def _read_signed(self, request: web.Request, signature: str) -> bytes:
        """Read the body, and check that one of the secrets signed it. A large body waits for its turn (`PLACES`).

        Raises `DeliveryRefused`.
        """
        length = MAX_BODY if request.content_length is None else request.content_length
        place = next((places for size, places in self._places if length > size), None)
        if place is None:
            return await self._read(request, signature)
        try:
            async with asyncio.timeout(self._body_s):
                await place.acquire()
        except TimeoutError:
            raise DeliveryRefused(503, "too many large bodies come in at once: send it again later") from None
        try:
            return await self._read(request, signature)
        finally:
            place.release()

    async def _read(self, request: web.Request, signature: str) -> bytes:
        body = await _read_body(request, self._body_s)
        check_signature(body, signature, self._secrets)
        return body


def _note_left_out(count: int) -> None:
    log.warning("delivery.lines_left_out", count=count)


def _answer(status: int, **words: str) -> web.Response:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    return web.Response(body=msgspec.json.encode(words), status=status, headers=headers, content_type=JSON)


def read_headers(request: web.Request) -> tuple[str, str, str]:
    """The event, the delivery id and the signature of a request. Raises `DeliveryRefused`."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise DeliveryRefused(415, "compressed bodies are not accepted: GitHub sends none")
    if request.headers.get("Content-Type") != JSON and request.content_type != JSON:
        raise DeliveryRefused(415, "the content type must be application/json: set it in the App's webhook settings")
    if (request.content_length or 0) > MAX_BODY:
        raise DeliveryRefused(413, f"the body is larger than {MAX_BODY} bytes")
    event = _read_header(request, "X-GitHub-Event", 400)
    delivery_id = _read_header(request, "X-GitHub-Delivery", 400)
    if not _ID.fullmatch(delivery_id):
        raise DeliveryRefused(400, "the X-GitHub-Delivery header must be at most 80 letters, digits and any of - _ . :")
    if "X-Hub-Signature-256" not in request.headers and "X-Hub-Signature" in request.headers:
        raise DeliveryRefused(401, "the SHA-1 signature alone is not enough: X-Hub-Signature-256 is missing")
    return event, delivery_id, _read_header(request, "X-Hub-Signature-256", 401)


def _read_header(request: web.Request, name: str, status: int) -> str:
    values = request.headers.getall(name, [])
    if len(values) != 1 or not values[0]:
        raise DeliveryRefused(status, f"exactly one {name} header is needed")
    value = values[0]
    if not (value.isascii() and value.isprintable()) or len(value) > MAX_HEADER:
        raise DeliveryRefused(status, f"the {name} header must be at most {MAX_HEADER} printable ASCII characters")
    return value


async def _read_body(request: web.Request, patience_s: float) -> bytes:
    try:
        if request.content.is_eof():  # Usually the body has arrived with the headers.
            return request.content.read_nowait()
        async with asyncio.timeout(patience_s):
            # Only this endpoint accepts bodies this long.
            return await request.clone(client_max_size=MAX_BODY).read()
    except web.HTTPRequestEntityTooLarge:
        raise DeliveryRefused(413, f"the body is larger than {MAX_BODY} bytes") from None
    except TimeoutError:
        raise DeliveryRefused(408, f"the body did not arrive within {patience_s:g} seconds") from None
    except (ConnectionError, web.RequestPayloadError):
        # The sender has probably gone. The refusal gives the log one line, not a traceback.
        raise DeliveryRefused(400, "the body was cut off") from None


def check_signature(body: bytes, signature: str, secrets: Sequence[bytes]) -> None:
    """Raise `DeliveryRefused` unless a secret signs exactly these bytes.

    The comparison takes the same time wherever the signature differs.
    """
    wanted = [f"sha256={hmac.digest(secret, body, 'sha256').hex()}" for secret in secrets]
    if not sum(hmac.compare_digest(signature, one) for one in wanted):
        raise DeliveryRefused(401, "the signature does not match: check the webhook secret on both sides")


def check_age(subject: Mapping[str, Any], now: datetime) -> None:
    """Raise `DeliveryRefused` if the event is older than GitHub can redeliver: somebody else kept a copy and sent it.

    The status is not 410, because some forwarders end a subscription at that status.
    """
    at = find_time(subject)
    if at and now - at > KEPT:
        raise DeliveryRefused(
            422,
            f"this event is from {at:%F %R} UTC, and GitHub sends nothing older than {KEPT.days} days: "
            "ptq-bot replay handles a stored delivery again",
        )


def parse_body(body: bytes) -> dict[str, Any]:
    """What is needed of the payload. Raises `DeliveryRefused` if the body is not a JSON object."""
    try:
        payload = parse_excerpt(body)
    except (ValueError, RecursionError):
        raise DeliveryRefused(400, "the body is not JSON") from None
    if not isinstance(payload, dict):
        raise DeliveryRefused(400, "the body is not a JSON object")
    return payload
