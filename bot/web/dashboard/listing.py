"""Which jobs a list shows: filters, search and pages as conditions of one query. The database chooses, not we.

A page ends with a cursor, the place of its last job: what comes meanwhile moves nothing, and the ten thousandth page
costs as much as the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.web.auth.visibility import VisibleJobs
from handlers.text.report import is_withheld
from handlers.words.costs import describe_cost
from runner.characters import make_storable
from runner.db.schema import cases, jobs, meters
from runner.model.job import ACTIVE, FINAL, JobState
from runner.model.meter import Meter
from runner.rows import job_rows

PAGE = 50

ACTIVE_ONES = "active"
"""In place of a state: any in which a job may still move."""

ENDED = "ended"
"""In place of the state of a job whose end is not shown."""

MAX_TYPED = 200
"""Characters of a filter that are looked at."""

_IN_CONFIDENTIAL = "ecurity"
"""In every report that names a concern, without the letter that Unicode has twice."""

_SHOWN = (
    *("id", "repository", "thread", "attempt", "preset", "agent", "machine", "requested_by", "state"),
    *("created_at", "trouble", "name"),
)
"""What a list needs of a job: not its brief, which is long."""


@dataclass(frozen=True, slots=True)
class PageFilter:
    """What somebody asked for. Empty: all."""

    repository: str = ""
    state: str = ""
    preset: str = ""
    agent: str = ""
    machine: str = ""
    who: str = ""
    search: str = ""
    before: str = ""
    """The cursor."""

    def query(self, **changes: str) -> str:
        """It as the query of an address, perhaps changed."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | changes
        return urlencode({name: value for name, value in values.items() if value})


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job as a list shows it."""

    id: str
    case_key: str
    title: str
    attempt: int
    preset: str
    agent: str
    machine: str | None
    requested_by: str
    state: str
    created_at: datetime
    trouble: str | None
    cost: str


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of a list."""

    jobs: tuple[ListedJob, ...]
    cursor: str
    """Of the next page; empty on the last."""


def read_filter(query: Mapping[str, str]) -> PageFilter:
    """The filter of an address. Whatever it says, it is one. Pure."""
    given = {field.name: make_storable(query.get(field.name, "").strip()[:MAX_TYPED]) for field in fields(PageFilter)}
    return PageFilter(**given)


def choose(scope: VisibleJobs, wanted: PageFilter) -> list[ColumnElement[bool]]:
    """What holds for the jobs of a list. Pure."""
    conditions = [_show(scope)]
    if wanted.repository:
        conditions.append(func.lower(jobs.c.repository) == wanted.repository.lower())
    if wanted.who:
        conditions.append(func.lower(jobs.c.requested_by) == wanted.who.removeprefix("@").lower())
    if wanted.state == ACTIVE_ONES:
        conditions.append(jobs.c.state.in_(sorted(map(str, ACTIVE))))
    elif wanted.state:
        conditions.append(jobs.c.state == wanted.state)
    conditions += [jobs.c[name] == value for name in ("preset", "agent", "machine") if (value := getattr(wanted, name))]
    if wanted.search:
        conditions.append(_search(wanted.search))
    if place := _read_cursor(wanted.before):
        at, job_id = place
        conditions += [jobs.c.created_at <= at, or_(jobs.c.created_at < at, jobs.c.id < job_id)]
    return conditions


def _show(scope: VisibleJobs) -> ColumnElement[bool]:
    has_thread, name = jobs.c.thread.is_not(None), func.lower(jobs.c.repository)
    return or_(
        jobs.c.id == "" if not scope.everything else jobs.c.id != "",
        *([and_(~jobs.c.private, has_thread)] if scope.public else []),
        *([and_(name.in_(sorted(scope.read)), has_thread)] if scope.read else []),
        *([name.in_(sorted(scope.start))] if scope.start else []),
    )


def _search(words: str) -> ColumnElement[bool]:
    """Jobs whose issue's title, repository, name, person or id has these words in it; or whose issue has the number."""
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
    except (ValueError, OverflowError):  # Near the ends of the calendar a time has no UTC form.
        return None


async def fetch_page(connection: AsyncConnection, scope: VisibleJobs, wanted: PageFilter) -> JobPage:
    """The jobs of a page, the newest first."""
    # First their ids, out of an index that has all that is asked for, and then what is shown of those few.
    order = (jobs.c.created_at.desc(), jobs.c.id.desc())
    chosen = select(jobs.c.id).where(*choose(scope, wanted)).order_by(*order).limit(PAGE + 1)
    ids = [row.id for row in await connection.execute(chosen)]
    readings = {f"meter_{name}": column for name, column in meters.c.items()}
    query = (
        select(*(jobs.c[name] for name in _SHOWN), cases.c.title, *(c.label(name) for name, c in readings.items()))
        .outerjoin(meters, meters.c.job_id == jobs.c.id)
        .outerjoin(cases, and_(cases.c.repository == jobs.c.repository, cases.c.issue_number == jobs.c.thread))
        .where(jobs.c.id.in_(ids[:PAGE]))
        .order_by(*order)
    )
    rows = [dict(row._mapping) for row in await connection.execute(query)]
    hidden = await fetch_hidden(connection, ids[:PAGE])
    cursor = f"{rows[-1]['created_at'].isoformat()}~{rows[-1]['id']}" if len(ids) > PAGE else ""
    listed = [_list(row, is_hidden=row["id"] in hidden, is_operator=scope.everything) for row in rows]
    # Who asks for one end is not to learn it of a run whose end is not shown.
    return JobPage(tuple(job for job in listed if wanted.state in ("", ACTIVE_ONES, job.state)), cursor)


def _read_meter(values: dict[str, object]) -> Meter | None:
    """Take the meter out of a row, where there is one."""
    reading = {name.removeprefix("meter_"): values.pop(name) for name in [*values] if name.startswith("meter_")}
    return job_rows.read_meter(reading) if reading["job_id"] else None


async def fetch_hidden(connection: AsyncConnection, job_ids: Collection[str]) -> set[str]:
    """The jobs among these whose result is for operators alone."""
    texts = await job_rows.fetch_texts(connection, job_ids, _IN_CONFIDENTIAL)
    return {job_id for job_id, report in texts.items() if is_withheld(report)}


def name_state(state: str, *, is_hidden: bool) -> str:
    """The state of a job as its reader may see it; `is_hidden` says that they may not see its result. Pure."""
    return ENDED if is_hidden and state in FINAL else state


def _list(row: Mapping[str, object], *, is_hidden: bool, is_operator: bool) -> ListedJob:
    """A job as its reader may see it: of a run that is withheld, people hear that it has ended, and not how."""
    values = dict(row)
    meter = _read_meter(values)
    values["state"] = name_state(str(values["state"]), is_hidden=is_hidden and not is_operator)
    thread, repository, name = values.pop("thread"), values.pop("repository"), values.pop("name")
    shows_cost = meter is not None and meter.usage.cost_usd is not None and not is_hidden
    cost = describe_cost(meter) if meter and shows_cost else ""
    key = f"{repository}~{name}" if thread is None else f"{repository}#{thread}"
    title = values.pop("title") or ""
    return ListedJob(case_key=key, title=str(title), cost=cost, **values)  # type: ignore[arg-type]


def list_states() -> list[str]:
    """What the filter of states offers. Pure."""
    return [ACTIVE_ONES, *map(str, JobState)]
