"""Tells the operator, over HTTP, what they must know. Level-triggered: what failed is tried again.

A repeat after a crash tells them twice rather than not at all: HTTP has no better word for it. The address is a secret
(whoever knows it can write there), so no message of the HTTP client reaches the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import aiohttp
import structlog

from bot.config.policy_tables import NotifyTable
from bot.github.session import describe_failure
from handlers.context import Context
from handlers.notices.alerts import Alerts
from handlers.words.notifications import render_for_slack, render_payload
from runner.model.back_off import BackOff
from runner.rows.notifications import Kind, Notification, change_notification, fetch_waiting

log = structlog.get_logger()

TIMEOUT_S = 10.0
WAITS = BackOff(2.0, 900.0)


class Notifier:
    """`step` is one pass; without an address the log has it all, and each confidential report once a start."""

    def __init__(self, session: aiohttp.ClientSession, context: Context, table: NotifyTable) -> None:
        self._session = session
        self._db = context.db
        self._alerts = Alerts(context, timedelta(minutes=table.machine_rest_minutes))
        self._url = table.url.get_secret_value() if table.url else None
        self._for_slack = table.format == "slack"
        self._secrets = context.secrets
        self._now = context.now
        self._complained: set[str] = set()

    async def step(self) -> None:
        """Find out what is news, then deliver what is due. One that fails waits; the others go on."""
        await self._alerts.step()
        async with self._db.read() as connection:
            waiting = await fetch_waiting(connection)
        for notification in waiting:
            payload = render_payload(notification, self._secrets)
            if self._url is None:
                await self._complain(notification, payload)
            elif notification.next_attempt_at <= self._now():
                await self._deliver(notification, render_for_slack(payload) if self._for_slack else payload, self._url)

    async def _complain(self, notification: Notification, payload: Mapping[str, Any]) -> None:
        """Without an address: confidential words stay out of the log and wait; all else has been said there."""
        if notification.kind is not Kind.CONCERN:
            async with self._db.write() as connection:
                await change_notification(connection, notification, delivered_at=self._now())
            log.error("notification.for_the_log", kind=str(notification.kind), text=payload["text"])
        elif notification.key not in self._complained:
            self._complained.add(notification.key)
            log.error("notification.no_target", about=notification.key, look=payload["command"])

    async def _deliver(self, notification: Notification, payload: Mapping[str, Any], url: str) -> None:
        refusal = await self._post(payload, url)
        attempts = notification.attempts + 1
        async with self._db.write() as connection:
            if refusal is None:
                await change_notification(connection, notification, attempts=attempts, delivered_at=self._now())
                log.info("notification.delivered", about=notification.key)
                return
            wait_s = WAITS.after(attempts)
            at = self._now() + timedelta(seconds=wait_s)
            await change_notification(connection, notification, attempts=attempts, next_attempt_at=at)
        log.warning("notification.waits", about=notification.key, reason=refusal, attempts=attempts, wait_s=wait_s)

    async def _post(self, payload: Mapping[str, Any], url: str) -> str | None:
        """Why it was not taken, without a word of the address; None when it was."""
        try:
            async with self._session.post(
                url,
                json=payload,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                # A redirect would carry what only the operator may hear to a place that they have not named.
                allow_redirects=False,
            ) as answer:
                taken = HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES
                return None if taken else f"HTTP status {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return describe_failure(error)
