"""The query of the job list, with filters, search and pages.

A page ends with a cursor, the position of its last job. New jobs do not shift pages, and the ten thousandth page costs
as much as the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.web.auth.visibility import VisibleJobs
from handlers.words.costs import describe_cost
from handlers.words.report_comment import render_duration
from handlers.words.verified import find_outcome, mark_confidential
from runner.changes.concerns import OUTCOME_READ, read_outcome
from runner.characters import make_storable
from runner.checks.verification import Check
from runner.db.schema import cases, jobs, meters, pulls, reports
from runner.model.job import ACTIVE, FINAL, KINDS, JobKind, JobState
from runner.model.meter import Meter
from runner.rows import job_rows
from runner.rows.check_rows import fetch_checks_of

PAGE = 50

ACTIVE_ONES = "active"
"""A filter value: any state of a job that has not ended."""

ENDED = "ended"
"""Shown instead of the final state of a withheld job."""

MAX_TYPED = 200
"""The most characters of a filter that are used."""

_SHOWN = (
    *("id", "repository", "thread", "attempt", "preset", "agent", "machine", "requested_by", "state"),
    *("created_at", "started_at", "ended_at", "trouble", "name", "kind"),
)
"""The columns for a list, without the long brief."""


@dataclass(frozen=True, slots=True)
class PageFilter:
    """The filters of a list. Without any filter, the list has all jobs."""

    repository: str = ""
    state: str = ""
    preset: str = ""
    agent: str = ""
    machine: str = ""
    who: str = ""
    search: str = ""
    before: str = ""
    """The cursor."""

    @property
    def narrows(self) -> bool:
        """Whether it has filters besides search and state."""
        return any((self.repository, self.preset, self.agent, self.machine, self.who))

    def query(self, **changes: str) -> str:
        """The filters as a URL query, with changes."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | changes
        return urlencode({name: value for name, value in values.items() if value})


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in a list."""

    id: str
    repository: str
    case_key: str
    title: str
    attempt: int
    preset: str
    agent: str
    """Who works on it: the agent, a person, or the service itself."""
    machine: str | None
    requested_by: str
    state: str
    created_at: datetime
    trouble: str | None
    outcome: str
    """The outcome, from the job's report or checks. Empty if there is none, or if the reader may not know it."""
    pull_number: int | None
    took: str
    """How long the job has run. Empty if it has not started, or if the reader may not know it."""
    cost: str


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of a list."""

    jobs: tuple[ListedJob, ...]
    cursor: str
    """The cursor of the next page. Empty on the last page."""


def read_filter(query: Mapping[str, str]) -> PageFilter:
    """Read the filters of a URL. Every query is valid. Pure."""
    given = {field.name: make_storable(query.get(field.name, "").strip()[:MAX_TYPED]) for field in fields(PageFilter)}
    return PageFilter(**given)


def choose(scope: VisibleJobs, wanted: PageFilter) -> list[ColumnElement[bool]]:
    """The SQL conditions for the jobs of a list. Pure."""
    conditions = [_show(scope)]
    if wanted.repository:
        conditions.append(func.lower(jobs.c.repository) == wanted.repository.lower())
    if wanted.who:
        conditions.append(func.lower(jobs.c.requested_by) == wanted.who.removeprefix("@").lower())
    if wanted.state == ACTIVE_ONES:
        conditions.append(jobs.c.state.in_(sorted(map(str, ACTIVE))))
    elif wanted.state:
        conditions.append(jobs.c.state == wanted.state)
        if wanted.state in FINAL and not scope.everything:
            # A filter by final state must not reveal the state of a withheld job.
            conditions.append(~exists().where(reports.c.job_id == jobs.c.id, reports.c.withheld))
            conditions.append(~jobs.c.confidential)
    conditions += [jobs.c[name] == value for name in ("preset", "agent", "machine") if (value := getattr(wanted, name))]
    if wanted.search:
        conditions.append(_search(wanted.search))
    if place := _read_cursor(wanted.before):
        at, job_id = place
        conditions += [jobs.c.created_at <= at, or_(jobs.c.created_at < at, jobs.c.id < job_id)]
    return conditions


def _show(scope: VisibleJobs) -> ColumnElement[bool]:
    has_thread, name = jobs.c.thread.is_not(None), func.lower(jobs.c.repository)
    is_readable = or_(~jobs.c.private, name.in_(sorted(scope.private)))
    return or_(
        jobs.c.id == "" if not scope.everything else jobs.c.id != "",
        *([and_(~jobs.c.private, has_thread)] if scope.public else []),
        *([and_(name.in_(sorted(scope.read)), has_thread, is_readable)] if scope.read else []),
        *([and_(name.in_(sorted(scope.start)), is_readable)] if scope.start else []),
    )


def _search(words: str) -> ColumnElement[bool]:
    """Jobs with these words in title, repository, name, person or id, or with this issue number."""
    columns = (jobs.c.repository, jobs.c.requested_by, jobs.c.id, jobs.c.name)
    same_issue = and_(cases.c.repository == jobs.c.repository, cases.c.issue_number == jobs.c.thread)
    repository, _, number = words.rpartition("#")
    if number.isascii() and number.isdecimal() and len(number) < 10:
        about = jobs.c.thread == int(number)
        return and_(about, jobs.c.repository.icontains(repository, autoescape=True)) | (jobs.c.id == words)
    return or_(
        *(column.icontains(words, autoescape=True) for column in columns),
        exists().where(same_issue, cases.c.title.icontains(words, autoescape=True)),
    )


def _read_cursor(cursor: str) -> tuple[datetime, str] | None:
    time, _, job_id = cursor.partition("~")
    try:
        at = datetime.fromisoformat(time)
        return (at.astimezone(UTC), job_id) if at.tzinfo else None
    except (ValueError, OverflowError):  # A time near the first or last year cannot be converted.
        return None


async def fetch_page(
    connection: AsyncConnection, scope: VisibleJobs, wanted: PageFilter, now: datetime, size: int = PAGE
) -> JobPage:
    """The jobs of a page, newest first."""
    # The first query reads only ids, from an index that covers the filters. The second one reads these few jobs.
    order = (jobs.c.created_at.desc(), jobs.c.id.desc())
    chosen = select(jobs.c.id).where(*choose(scope, wanted)).order_by(*order).limit(size + 1)
    ids = [row.id for row in await connection.execute(chosen)]
    readings = {f"meter_{name}": column for name, column in meters.c.items()}
    query = (
        select(
            *(jobs.c[name] for name in _SHOWN),
            cases.c.title,
            pulls.c.number.label("pull_number"),
            func.substr(reports.c.body, 1, OUTCOME_READ).label("report"),
            *(c.label(name) for name, c in readings.items()),
        )
        .outerjoin(meters, meters.c.job_id == jobs.c.id)
        .outerjoin(reports, reports.c.job_id == jobs.c.id)
        .outerjoin(pulls, pulls.c.job_id == jobs.c.id)
        .outerjoin(cases, and_(cases.c.repository == jobs.c.repository, cases.c.issue_number == jobs.c.thread))
        .where(jobs.c.id.in_(ids[:size]))
        .order_by(*order)
    )
    rows = [dict(row._mapping) for row in await connection.execute(query)]
    hidden = await job_rows.fetch_withheld_among(connection, ids[:size])
    cursor = f"{rows[-1]['created_at'].isoformat()}~{rows[-1]['id']}" if len(ids) > size else ""
    marked, hidden = (hidden, set[str]()) if scope.everything else (set[str](), hidden)
    verified = [row["id"] for row in rows if row["kind"] == JobKind.VERIFY and row["state"] in FINAL]
    checks = await fetch_checks_of(connection, [job_id for job_id in verified if job_id not in hidden])
    listed = [
        _list(row, now, checks.get(row["id"]), is_hidden=row["id"] in hidden, is_marked=row["id"] in marked)
        for row in rows
    ]
    return JobPage(tuple(listed), cursor)


def _read_meter(row: Mapping[str, Any]) -> Meter | None:
    reading = {name.removeprefix("meter_"): value for name, value in row.items() if name.startswith("meter_")}
    return job_rows.read_meter(reading) if reading["job_id"] else None


def name_state(state: str, *, is_hidden: bool) -> str:
    """The state that a reader may see. `is_hidden` means that the reader may not see the job's result. Pure."""
    return ENDED if is_hidden and state in FINAL else state


def name_worker(kind: JobKind, agent: str) -> str:
    """Who works on a job of this kind. Every job has an agent's name, but not every job has an agent. Pure."""
    return agent if KINDS[kind].has_agent else "a person" if KINDS[kind].by_hand else "ptq-bot itself"


def _list(
    row: Mapping[str, Any], now: datetime, checks: Sequence[Check] | None, *, is_hidden: bool, is_marked: bool
) -> ListedJob:
    """A job as the reader may see it. Of a withheld job, people learn only that it has ended.

    `checks` are the checks of an ended job that only checks. With `is_marked`, the list tells an operator that other
    people may not see the job's result.
    """
    state, repository, thread = str(row["state"]), row["repository"], row["thread"]
    outcome = read_outcome(row["report"]) if row["report"] and not is_hidden else None
    if checks is not None:
        outcome = str(find_outcome(JobState(state), checks))
    took = (row["ended_at"] or now) - row["started_at"] if row["started_at"] else None
    meter = _read_meter(row)
    shows_cost = meter is not None and meter.usage.cost_usd is not None and not is_hidden
    return ListedJob(
        id=row["id"],
        repository=repository,
        case_key=f"{repository}~{row['name']}" if thread is None else f"{repository}#{thread}",
        title=row["title"] or "",
        attempt=row["attempt"],
        preset=row["preset"],
        agent=name_worker(JobKind(row["kind"]), row["agent"]),
        machine=row["machine"],
        requested_by=row["requested_by"],
        state=name_state(state, is_hidden=is_hidden),
        created_at=row["created_at"],
        trouble=row["trouble"],
        outcome=mark_confidential(outcome, is_confidential=is_marked),
        pull_number=None if is_hidden else row["pull_number"],
        took=render_duration(took) if took is not None and not is_hidden else "",
        cost=describe_cost(meter) if meter and shows_cost else "",
    )


def list_states() -> list[str]:
    """The choices of the state filter. Pure."""
    return [ACTIVE_ONES, *map(str, JobState)]
