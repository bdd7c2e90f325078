"""What only the operator may hear: rows, one a job, and their words. `bot.notify` delivers them.

A transaction is always the one that the caller opened. Refuses to know where the operator listens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.report import parse_report
from handlers.sanitize import one_line, redact
from runner.job import Job, Report
from runner.schema import notifications
from runner.sql import insert_new

MAX_SUMMARY = 1_000
"""Characters."""


@dataclass(frozen=True, slots=True)
class Notification:
    """That a job's report waits for the operator."""

    job_id: str
    repository: str
    issue_number: int
    text: str
    created_at: datetime
    next_attempt_at: datetime
    attempts: int = 0
    delivered_at: datetime | None = None


def draft_notification(job: Job, report: Report, secrets: Collection[str], now: datetime) -> Notification:
    """What the operator is told of a confidential report, before it is written down."""
    text = f"{job.case_key}: an agent reports a security concern. {_summarise(report, secrets)}".strip()
    return Notification(job.id, job.repository, job.issue_number, text, now, now)


def _summarise(report: Report, secrets: Collection[str]) -> str:
    """The report's summary on one line, in which chats find no mention and no link of their own.

    The three characters are those of https://docs.slack.dev/messaging/formatting-message-text/#escaping
    """
    summary = parse_report(redact(report.body, secrets)).summary
    line = one_line(summary, MAX_SUMMARY)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def render_payload(notification: Notification) -> Mapping[str, str | int]:
    """The JSON that is sent: `text` is what chats show, the rest is for programs."""
    return {
        "text": notification.text,
        "job": notification.job_id,
        "repository": notification.repository,
        "issue": notification.issue_number,
        "command": f"ptq-bot report {notification.job_id} --config ptq.toml",
    }


async def insert_notification(connection: AsyncConnection, notification: Notification) -> None:
    """Write down what the operator is to be told. A job that they are told of already changes nothing."""
    await insert_new(connection, notifications, asdict(notification))


async def fetch_waiting(connection: AsyncConnection) -> list[Notification]:
    """What the operator has not been told yet, oldest first."""
    query = select(notifications).where(notifications.c.delivered_at.is_(None)).order_by(notifications.c.created_at)
    return [Notification(**row._mapping) for row in await connection.execute(query)]


async def change_notification(connection: AsyncConnection, notification: Notification, **changes: Any) -> Notification:
    """Change a notification's row and return it as it now is."""
    where = notifications.c.job_id == notification.job_id
    await connection.execute(update(notifications).where(where).values(**changes))
    return replace(notification, **changes)
