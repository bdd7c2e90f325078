"""Limits how often people without rights are answered, so that they cannot use up the installation's writes.

The replies of the last hour are counted in the database, so the limits hold for all replicas, and after a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import timedelta

import structlog
from sqlalchemy import func, select

from handlers.context import Context
from handlers.effects.outbox import was_answered, write_reply
from runner.db.schema import replies

log = structlog.get_logger()

MAX_PER_STRANGER = 5
"""The most replies an hour to one stranger, in all repositories together."""

MAX_PER_ACCOUNT = 50
"""The most replies an hour to strangers in the repositories of one account: a tenth of what GitHub accepts there."""

HOUR = timedelta(hours=1)


def is_answered(login: str, account: str, recent: Collection[tuple[str, str]]) -> bool:
    """Whether a stranger gets a reply in a repository of this account.

    `recent` has the account and the login of each reply to a stranger in the last hour. Everything is in lower case.
    """
    by_account, by_login = (Counter(names) for names in zip(*recent, strict=True)) if recent else (Counter(), Counter())
    return by_login[login] < MAX_PER_STRANGER and by_account[account] < MAX_PER_ACCOUNT


async def reply_to_stranger(
    context: Context, repository: str, issue_number: int, occasion: str, body: str, login: str
) -> None:
    """`outbox.reply_once` for a person without rights. Beyond the limits, there is only a line in the log."""
    stranger = login.lower()
    latest = select(func.lower(replies.c.repository), replies.c.stranger).where(
        replies.c.stranger.is_not(None), replies.c.created_at > context.now() - HOUR
    )
    async with context.db.write() as connection:
        if await was_answered(connection, repository, occasion):
            return
        recent = [(name.partition("/")[0], asker) for name, asker in await connection.execute(latest)]
        if not is_answered(stranger, repository.lower().partition("/")[0], recent):
            log.info("request.not_answered", by=login, repository=repository, issue=issue_number)
            return
        await write_reply(connection, context, repository, issue_number, occasion, body, stranger)
    context.notify()
