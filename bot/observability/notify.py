"""Sends notifications to the operator's URL over HTTP. It is level-triggered: a failed one is sent again.

After a crash, a notification may be sent twice, because the service cannot know whether the first request arrived. The
URL is a secret, because anyone who knows it can post there. So no message of the HTTP client reaches the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

import aiohttp
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.policy_tables import NotifyTable
from bot.github.session import describe_failure
from handlers.context import Context
from handlers.effects.drain import FRESH, Due, Effect, drain
from handlers.effects.retry_policy import Verdict
from handlers.notices.alerts import Alerts
from handlers.notices.notifications import render_for_slack, render_payload
from runner.model.back_off import BackOff
from runner.rows.notifications import Notification, NotificationKind, change_notification, fetch_waiting

log = structlog.get_logger()

TIMEOUT_S = 10.0
WAITS = BackOff(2.0, 900.0)


class NotTaken(Exception):  # noqa: N818 - an outcome
    """The operator's URL did not accept a notification. The message says why, without the URL."""


class Notifier(Effect[Due[Notification]]):
    """`step` is one pass. Without a URL, notifications go to the log.

    For a confidential one, the log only has the command that shows it, once after each start.
    """

    waits = "notification.waits"
    store = staticmethod(change_notification)

    def __init__(self, session: aiohttp.ClientSession, context: Context, table: NotifyTable) -> None:
        super().__init__(context)
        self._session = session
        self._alerts = Alerts(context, timedelta(minutes=table.machine_rest_minutes))
        self._url = table.url.get_secret_value() if table.url else ""
        self._for_slack = table.format == "slack"
        self._complained: set[str] = set()

    async def step(self) -> None:
        """Create new notifications, then send those that are due."""
        await self._alerts.step()
        if self._url:
            await drain(self)
            return
        async with self.context.db.read() as connection:
            waiting = await fetch_waiting(connection)
        for notification in waiting:
            await self._complain(notification)

    async def _complain(self, notification: Notification) -> None:
        """Log a notification, because there is no URL. Confidential text is not logged, and its notification waits."""
        payload = render_payload(notification, self.context.secrets)
        if notification.kind is not NotificationKind.CONCERN:
            async with self.context.db.write() as connection:
                await change_notification(connection, notification, delivered_at=self.context.now())
            log.error("notification.for_the_log", kind=str(notification.kind), text=payload["text"])
        elif notification.key not in self._complained:
            self._complained.add(notification.key)
            log.error("notification.no_target", about=notification.key, look=payload["command"])

    async def fetch_next(
        self, connection: AsyncConnection, now: datetime, tried: Collection[str]
    ) -> Due[Notification] | None:
        """See `Effect`."""
        waiting = await fetch_waiting(connection)
        due = (one for one in waiting if one.next_attempt_at <= now and one.key not in tried)
        notification = next(due, None)
        return Due(notification.key, notification, {"about": notification.key}) if notification else None

    async def carry_out(self, due: Due[Notification]) -> None:
        """See `Effect`."""
        payload = render_payload(due.row, self.context.secrets)
        await self._post(render_for_slack(payload) if self._for_slack else payload)
        await self.save(due, delivered_at=self.context.now(), **FRESH)
        log.info("notification.delivered", about=due.key)

    def judge(self, due: Due[Notification], error: Exception) -> Verdict:
        """See `Effect`. No answer of the URL is final, because the operator may repair the receiver."""
        if isinstance(error, NotTaken):
            return Verdict(str(error), WAITS.after(due.row.attempts + 1), due.row.refusals, due.row.absences)
        return super().judge(due, error)

    async def _post(self, payload: Mapping[str, Any]) -> None:
        """Send a payload. Raises `NotTaken`."""
        try:
            async with self._session.post(
                self._url,
                json=payload,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                # A redirect could send confidential text to a URL that the operator has not configured.
                allow_redirects=False,
            ) as answer:
                if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
                    raise NotTaken(f"HTTP status {answer.status}")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise NotTaken(describe_failure(error)) from None
