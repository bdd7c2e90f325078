"""Finds out from the rows what an operator must know: machines, caps, and confidential reports without an issue.

Level-triggered: the current state is compared with the last notification, so a crash, a restart or another replica does
no harm. A machine that changes often is reported rarely, with its current state.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.context import Context
from handlers.notices.notifications import BACK, OUT, draft_concern, draft_machine
from runner.db.schema import jobs, reports
from runner.model.caps import WARN_FROM, Caps, CapUse, Scope, find_uses
from runner.model.job import FINAL, Topic
from runner.model.machines import USABLE, MachineState
from runner.rows import job_rows
from runner.rows.machine_states import fetch_machine_states
from runner.rows.notifications import (
    Notification,
    NotificationKind,
    draft,
    drop_notification,
    fetch_newest,
    insert_notification,
)

HICCUP = timedelta(minutes=1)
"""An outage that is shorter than this is not reported."""

LOOK_EVERY = timedelta(seconds=30)

LATELY = timedelta(days=7)
"""How far back reports without an issue are searched."""

PERIODS = {Scope.USER_DAY: "%F", Scope.REPOSITORY_DAY: "%F", Scope.REPOSITORY_MONTH: "%Y-%m"}
"""The scopes whose caps are reported to the operator -> the format of their period.

The people concerned read about other caps in replies and reports.
"""


class Alerts:
    """`step` is one pass."""

    def __init__(self, context: Context, rest: timedelta, look_every: timedelta = LOOK_EVERY) -> None:
        """A machine is reported at most once in `rest`."""
        self._context = context
        self._rest = rest
        self._look_every = look_every
        self._due_at: datetime | None = None

    async def step(self) -> None:
        """Store new notifications."""
        now = self._context.now()
        if self._due_at and self._due_at - self._look_every <= now < self._due_at:
            return
        await self._look_at_machines(now)
        await self._look_at_caps(now)
        await self._look_at_reports(now)
        self._due_at = now + self._look_every

    async def _look_at_machines(self, now: datetime) -> None:
        async with self._context.db.write() as connection:
            states = await fetch_machine_states(connection)
            told = await fetch_newest(connection, NotificationKind.MACHINE)
            for name in self._context.machines:
                state, last = states.get(name, USABLE), told.get(name)
                if last and is_outdated(last, state):
                    await drop_notification(connection, last)
                elif news := find_news(name, state, last, self._rest, now):
                    await insert_notification(connection, news)

    async def _look_at_caps(self, now: datetime) -> None:
        async with self._context.db.read() as connection:
            near = await _find_near(connection, self._context, now)
        if near:
            async with self._context.db.write() as connection:
                for about, use in near:
                    await insert_notification(connection, draft_cap(about, use, now))

    async def _look_at_reports(self, now: datetime) -> None:
        """Report confidential results of jobs without an issue. `handlers.jobs.outcomes` reports all others."""
        query = select(jobs.c.id).join(reports, reports.c.job_id == jobs.c.id)
        query = query.where(jobs.c.thread.is_(None), jobs.c.state.in_(sorted(map(str, FINAL))))
        query = query.where(jobs.c.ended_at > now - LATELY, reports.c.withheld)
        async with self._context.db.write() as connection:
            for job_id in (await connection.execute(query)).scalars().all():
                job, report = (
                    await job_rows.fetch_job(connection, job_id),
                    await job_rows.fetch_report(connection, job_id),
                )
                if job and report:
                    await insert_notification(connection, draft_concern(job, report, now))


def is_outdated(told: Notification, state: MachineState) -> bool:
    """Whether an unsent notification about a machine is no longer true. Pure."""
    return told.delivered_at is None and (told.facts["standing"] == OUT) != (state.outage is not None)


def find_news(
    name: str, state: MachineState, told: Notification | None, rest: timedelta, now: datetime
) -> Notification | None:
    """The notification about a machine's current state. None if there is nothing new, or if it can wait. Pure."""
    outage, is_known_out = state.outage, told is not None and told.facts["standing"] == OUT
    if (outage is not None) == is_known_out or (told and now - told.created_at < rest):
        return None
    if outage is None:
        assert told
        return draft_machine(name, BACK, told.created_at, {}, now)
    if state.drained_at or not (outage.permanent or now - outage.since >= HICCUP):
        return None
    return draft_machine(name, OUT, outage.since, {"reason": outage.reason, "permanent": outage.permanent}, now)


def draft_cap(about: str, use: CapUse, now: datetime) -> Notification:
    """A cap is used up, or nearly so. It is reported again if it is raised and used up as far again. Pure."""
    occasion = f"{use.scope} {use.kind} {use.limit:g} {now.astimezone(UTC).strftime(PERIODS[use.scope])}"
    facts = {
        "scope": str(use.scope),
        "counts": use.kind,
        "limit": use.limit,
        "spent": use.spent,
        "cap": use.describe(about),
        "key": use.key,
    }
    return draft(NotificationKind.CAP if use.share >= 1 else NotificationKind.CAP_NEAR, about, occasion, facts, now)


async def _find_near(connection: AsyncConnection, context: Context, now: datetime) -> list[tuple[str, CapUse]]:
    """Each daily or monthly cap whose used share is at least `WARN_FROM`, with its repository or person."""
    found = []
    for rules in context.repositories.values():
        caps = {scope: of_scope for scope, of_scope in rules.caps.items() if of_scope != Caps()}
        people = await _list_people(connection, rules.name, now) if Scope.USER_DAY in caps else []
        for person in people or [""] * bool(caps.keys() & PERIODS):
            spent = await job_rows.fetch_spent(
                connection, Topic(rules.name, None), requested_by=person, now=now, caps=caps
            )
            uses = [use for use in find_uses(caps, spent) if use.scope in PERIODS and use.share >= WARN_FROM]
            found += [(person if use.scope is Scope.USER_DAY else rules.name, use) for use in uses]
    return found


async def _list_people(connection: AsyncConnection, repository: str, now: datetime) -> list[str]:
    """The people who requested something there today."""
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    query = select(jobs.c.requested_by).where(jobs.c.repository == repository, jobs.c.created_at >= day).distinct()
    return list((await connection.execute(query)).scalars())
