"""Labels that show the state of a case on its issue, in repositories that enable them. In other
repositories, labels of the bot are removed.

Level-triggered: only the newest state is written, and not too often. A label is stored before it is added, so that a
retry after a crash or a lost answer knows which label may be there. Other labels are never removed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.case import LABELS, Case
from handlers.cases.casebook import CaseLabel
from handlers.context import Context
from handlers.effects.drain import FRESH, Due, Effect
from handlers.effects.retry_policy import Verdict, judge
from handlers.ports import WritePriority

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DueLabel(Due[CaseLabel]):
    """The label of a case that is not as wanted on GitHub."""

    case: Case
    wanted: str | None


class CaseLabels(Effect[DueLabel]):
    """Labels that are not as wanted on GitHub. After a change, a label is not changed again for a while."""

    waits = "label.waits_for_github"
    waits_for_turn = "label.waits_for_turn"
    store = staticmethod(casebook.change_case_label)

    def __init__(self, context: Context, rest: timedelta) -> None:
        super().__init__(context)
        self._rest = rest

    async def fetch_next(self, connection: AsyncConnection, now: datetime, tried: Collection[str]) -> DueLabel | None:
        """See `Effect`."""
        configured = {rules.name: rules.case_labels for rules in self.context.repositories.values()}
        showing = [name for name, shows in configured.items() if shows]
        hiding = [name for name, shows in configured.items() if not shows]
        waiting = await casebook.fetch_mislabelled_cases(connection, showing, hiding, now)
        case = next((case for case in waiting if case.key not in tried), None)
        if case is None:
            return None
        label = await casebook.fetch_case_label(connection, case.key) or CaseLabel(case.key, next_attempt_at=now)
        ids = {"repository": case.repository, "issue": case.issue_number, "case": case.key}
        return DueLabel(case.key, label, ids, case, LABELS.get(case.state) if case.repository in showing else None)

    async def carry_out(self, due: DueLabel) -> None:
        """See `Effect`."""
        github, case, standing = self.context.github, due.case, due.row.standing
        if standing and standing != due.wanted:
            await github.remove_label(case.repository, case.issue_number, standing)
            await self.save(due, standing=None, settled=True)
        if due.wanted:
            await self.save(due, standing=due.wanted, settled=False)
            await github.add_label(case.repository, case.issue_number, due.wanted)
        await self.save(due, settled=True, next_attempt_at=self.context.now() + self._rest, **FRESH)
        log.info("label.shown", label=due.wanted)

    def judge(self, due: DueLabel, error: Exception) -> Verdict:
        """See `Effect`."""
        return judge(error, due.row, priority=WritePriority.LIVE)

    async def give_up(self, connection: AsyncConnection, due: DueLabel, verdict: Verdict, error: Exception) -> None:
        """See `Effect`."""
        await self.store(connection, due.row, abandoned=verdict.trouble, trouble=None)
        log.error("label.abandoned", **due.log_context, reason=str(error))
