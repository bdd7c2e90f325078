"""Webhooks: signed, posted in order, and recorded. They are sent again only on request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import aiohttp

from github_standin.model.faults import Faults, WebhookFault
from github_standin.model.state import App, World

ALWAYS_SENT = frozenset({"ping"})
"""Events that an App receives without a subscription."""

UNREACHABLE = "failed to connect to host"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to deliver one event. All attempts at the same event share the `guid`."""

    id: int
    guid: str
    event: str
    action: str | None
    payload: bytes
    installation_id: int | None
    repository_id: int | None
    delivered_at: datetime
    redelivery: bool = False
    duration_s: float = 0.0
    status: str = "pending"
    """`OK` if the answer's status was under 300, else the failure."""
    status_code: int = 0
    request_headers: Mapping[str, str] = field(default_factory=dict)
    response_headers: Mapping[str, str] = field(default_factory=dict)
    response_body: str = ""

    @property
    def name(self) -> str:
        """Event and action, such as `issue_comment.created`."""
        return f"{self.event}.{self.action}" if self.action else self.event

    @property
    def ok(self) -> bool:
        """Whether the receiver accepted it."""
        return self.status == "OK"


class Webhooks:
    """The App's webhook: its address, and its deliveries."""

    def __init__(self, world: World, app: App, faults: Faults) -> None:
        self._world = world
        self._app = app
        self._faults = faults
        self.url: str | None = None
        self.timeout_s = 10.0
        """How long GitHub waits for an answer."""
        self.hook_id = world.next_id()
        self.deliveries: list[Delivery] = []
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue()
        self._held_back: list[Delivery] = []
        self._late: set[asyncio.Task[None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._client: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Start sending."""
        self._client = aiohttp.ClientSession(auto_decompress=False)
        self._sender = asyncio.create_task(self._send_forever(), name="stand-in webhooks")

    async def stop(self) -> None:
        """Stop sending."""
        tasks = [*self._late, *([self._sender] if self._sender else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sender = None
        if self._client:
            await self._client.close()

    def emit(
        self,
        event: str,
        action: str | None,
        payload: Mapping[str, object],
        *,
        installation_id: int | None = None,
        repository_id: int | None = None,
    ) -> None:
        """Queue an event if the App subscribes to it and has a webhook."""
        if self.url and event in self._app.events | ALWAYS_SENT:
            body = json.dumps(payload, ensure_ascii=False).encode()
            guid, now = str(uuid.uuid4()), self._world.now()
            self._queue.put_nowait(
                Delivery(self._world.next_id(), guid, event, action, body, installation_id, repository_id, now)
            )

    def redeliver(self, guid: str) -> None:
        """Queue the event `guid` again, byte for byte. Raises KeyError if there was none."""
        sent = [delivery for delivery in self.deliveries if delivery.guid == guid]
        if not sent:
            raise KeyError(guid)
        again = replace(sent[0], id=self._world.next_id(), redelivery=True, status="pending", status_code=0)
        self._queue.put_nowait(again)

    async def sent(self) -> None:
        """Wait until every queued event was answered, or held back by a fault."""
        if self._sender:
            await self._queue.join()

    async def settle(self) -> None:
        """Wait until every queued event was sent, also those that a fault holds back."""
        await self._queue.join()
        while self._held_back or self._late:
            await self._send_held_back()
            await asyncio.gather(*self._late)
            await self._queue.join()

    async def _send_forever(self) -> None:
        while True:
            delivery = await self._queue.get()
            try:
                await self._send(delivery, self._faults.take_webhook(delivery.name))
            finally:
                self._queue.task_done()

    async def _send(self, delivery: Delivery, fault: WebhookFault | None) -> None:
        kind = fault.kind if fault else None
        if fault and kind == "delay":
            task = asyncio.create_task(self._send_late(delivery, fault.delay_s))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        elif kind == "reorder":
            self._held_back.append(delivery)
        elif kind == "drop":
            self.deliveries.append(replace(delivery, status=UNREACHABLE, status_code=502))
        else:
            for _ in range(2 if kind == "duplicate" else 1):
                await self._attempt(delivery)
            await self._send_held_back()

    async def _send_late(self, delivery: Delivery, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._attempt(delivery)

    async def _send_held_back(self) -> None:
        while self._held_back:
            await self._attempt(self._held_back.pop(0))

    async def _attempt(self, delivery: Delivery) -> None:
        headers, began = self._headers(delivery), time.monotonic()
        sent = replace(delivery, delivered_at=self._world.now(), request_headers=headers)
        done = await self._post(sent)
        self.deliveries.append(replace(done, duration_s=round(time.monotonic() - began, 2)))

    async def _post(self, sent: Delivery) -> Delivery:
        if not self._client or not self.url:
            return replace(sent, status=UNREACHABLE, status_code=502)
        try:
            async with asyncio.timeout(self.timeout_s):
                async with self._client.post(
                    self.url, data=sent.payload, headers=sent.request_headers, allow_redirects=False
                ) as answer:
                    text = (await answer.read()).decode(errors="replace")
        except TimeoutError:
            return replace(sent, status="timed out", status_code=504)
        except (aiohttp.ClientError, ValueError, OSError):
            return replace(sent, status=UNREACHABLE, status_code=502)
        status = "OK" if answer.status < 300 else f"Invalid HTTP Response: {answer.status}"
        headers = dict(answer.headers)
        return replace(
            sent, status=status, status_code=answer.status, response_headers=headers, response_body=text[:10_000]
        )

    def _headers(self, delivery: Delivery) -> dict[str, str]:
        secret = self._app.webhook_secret.encode()
        return {
            "Accept": "*/*",
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/0000000",
            "X-GitHub-Delivery": delivery.guid,
            "X-GitHub-Event": delivery.event,
            "X-GitHub-Hook-ID": str(self.hook_id),
            "X-GitHub-Hook-Installation-Target-ID": self._app.id,
            "X-GitHub-Hook-Installation-Target-Type": "integration",
            "X-Hub-Signature": "sha1=" + hmac.new(secret, delivery.payload, hashlib.sha1).hexdigest(),
            "X-Hub-Signature-256": "sha256=" + hmac.new(secret, delivery.payload, hashlib.sha256).hexdigest(),
        }
