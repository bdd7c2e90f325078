"""Tells the operator, over HTTP, what must not be said in public. Level-triggered: what failed is tried again.

A repeat after a crash tells them twice rather than not at all: HTTP has no better word for it. The address is a secret
(whoever knows it can write there), so no message of the HTTP client reaches the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from http import HTTPStatus

import aiohttp
import structlog
from pydantic import SecretStr

from handlers.notifications import Notification, change_notification, fetch_waiting, render_payload
from runner.db import Database

log = structlog.get_logger()

TIMEOUT_S = 10.0
MAX_WAIT_S = 900.0


class Notifier:
    """`step` is one pass; without an address it says in the log, once for each job, that somebody must look."""

    def __init__(
        self, session: aiohttp.ClientSession, database: Database, url: SecretStr | None, now: Callable[[], datetime]
    ) -> None:
        self._session = session
        self._db = database
        self._url = url
        self._now = now
        self._complained: set[str] = set()

    async def step(self) -> None:
        """Deliver what is due. One that fails waits; the others go on."""
        async with self._db.read() as connection:
            waiting = await fetch_waiting(connection)
        for notification in waiting:
            if self._url is None:
                self._complain(notification)
            elif notification.next_attempt_at <= self._now():
                await self._deliver(notification, self._url)

    async def tell(self, text: str) -> bool:
        """Tell the operator something that is about no job, now or not at all; False when they were not reached."""
        refusal = await self._post({"text": text}, self._url) if self._url else None
        if refusal is not None:
            log.warning("notification.lost", reason=refusal)
        return refusal is None

    def _complain(self, notification: Notification) -> None:
        if notification.job_id not in self._complained:
            self._complained.add(notification.job_id)
            look = render_payload(notification)["command"]
            log.error("notification.no_target", job=notification.job_id, look=look)

    async def _deliver(self, notification: Notification, url: SecretStr) -> None:
        refusal = await self._post(render_payload(notification), url)
        attempts = notification.attempts + 1
        async with self._db.write() as connection:
            if refusal is None:
                await change_notification(connection, notification, attempts=attempts, delivered_at=self._now())
                log.info("notification.delivered", job=notification.job_id)
                return
            wait_s = min(2.0 ** min(attempts, 20), MAX_WAIT_S)
            at = self._now() + timedelta(seconds=wait_s)
            await change_notification(connection, notification, attempts=attempts, next_attempt_at=at)
        log.warning("notification.waits", job=notification.job_id, reason=refusal, attempts=attempts, wait_s=wait_s)

    async def _post(self, payload: Mapping[str, str | int], url: SecretStr) -> str | None:
        """Why it was not taken, without a word of the address; None when it was."""
        try:
            async with self._session.post(
                url.get_secret_value(),
                json=payload,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                # A redirect would carry what only the operator may hear to a place that they have not named.
                allow_redirects=False,
            ) as answer:
                taken = HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES
                return None if taken else f"HTTP status {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return type(error).__name__
