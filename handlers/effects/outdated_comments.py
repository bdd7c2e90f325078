"""Folds the comments of earlier attempts on GitHub when a newer report has made them outdated.

`casebook.mark_outdated` says which comments these are. Nothing depends on folding. If GitHub refuses it, the comments
stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.casebook import OutdatedComment, Reply
from handlers.effects.drain import FRESH, Due, Effect
from handlers.effects.retry_policy import Verdict, judge
from handlers.ports import WritePriority

log = structlog.get_logger()

PATIENCE = 3
"""After this many refusals, a server does not permit folding, or has no GraphQL API."""


@dataclass(frozen=True, slots=True)
class DueFold(Due[OutdatedComment]):
    """An outdated comment that GitHub still shows."""

    reply: Reply


class OutdatedComments(Effect[DueFold]):
    """Outdated comments that are not folded yet."""

    waits = "outdated_comment.waits_for_github"
    waits_for_turn = "outdated_comment.waits_for_turn"
    store = staticmethod(casebook.change_outdated)

    async def fetch_next(self, connection: AsyncConnection, now: datetime, tried: Collection[str]) -> DueFold | None:
        """See `Effect`."""
        found = await casebook.fetch_next_outdated(connection, now, tried)
        if found is None:
            return None
        row, reply = found
        return DueFold(reply.id, row, reply.log_context(), reply)

    async def carry_out(self, due: DueFold) -> None:
        """See `Effect`. Folding a comment twice does no harm, so an earlier attempt is not looked for."""
        if due.reply.comment_id is not None:
            await self.context.github.minimize_comment(due.reply.repository, due.reply.comment_id)
        await self.save(due, minimized=True, **FRESH)
        log.info("outdated_comment.minimized", comment=due.reply.comment_id)

    def judge(self, due: DueFold, error: Exception) -> Verdict:
        """See `Effect`."""
        return judge(error, due.row, patience=PATIENCE, priority=WritePriority.LIVE, is_edit=True)

    async def give_up(self, connection: AsyncConnection, due: DueFold, verdict: Verdict, error: Exception) -> None:
        """See `Effect`. This is not an error: the comment stays as it was."""
        await self.store(connection, due.row, abandoned=verdict.trouble, trouble=None)
        log.warning("outdated_comment.abandoned", **due.log_context, reason=str(error))
