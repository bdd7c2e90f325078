"""`ptq-bot sweep`: checks which issues of a backlog still reproduce. The service runs their scripts, without an agent.

The command reads the issues from GitHub, and starts only a few jobs at a time, so that other jobs need not wait.
Its state is in the database: the ids of its jobs are derived from the sweep's name and the issues. So the same command
continues an interrupted sweep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.settings import Settings
from bot.operations.context import ask_about, find_operator, open_context
from bot.operations.sweep_summary import LEFT_OUT, NO_SCRIPT, NOT_BEGUN, UNDER_WAY, WANTED, Row, Summary
from handlers.cases import casebook
from handlers.commands.rights import Person
from handlers.context import Context
from handlers.events import Issue, Repository
from handlers.jobs.preconditions import (
    Busy,
    NothingStarts,
    NothingToVerify,
    NotStarted,
    check_caps,
    check_free,
    check_not_paused,
    find_proven_repro,
)
from handlers.jobs.start import StartRequest, freeze, list_scripts, name_job, start_unheard
from handlers.jobs.tasks import Refused
from handlers.ports import GitHubError, GitHubUnavailable
from handlers.rules import VERIFY, RepositoryRules
from handlers.text.sanitize import redact
from handlers.words.verified import explain_outcome, find_outcome
from runner.characters import show_for_terminal
from runner.model.job import Job, JobState, Posts, Topic
from runner.rows import job_rows
from runner.rows.check_rows import fetch_checks
from runner.rows.pauses import fetch_pauses, find_pause

LOOK_EVERY_S = 1.0

EVER = datetime(1970, 1, 1, tzinfo=UTC)
"""The lower limit for the last update of a listed issue. It includes all issues."""

ANOTHER = "another job on it is under way"


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The options of a sweep."""

    repository: str
    label: str
    limit: int
    """The most issues; the oldest come first."""
    at_once: int
    """The most jobs of the sweep that are active at the same time."""
    name: str
    """The name of the sweep. Sweeps with the same name check each issue only once."""
    comments: bool
    """Whether the report is posted in the issue, if it says whether the issue still reproduces."""

    @property
    def posts(self) -> Posts:
        """What the jobs post in their issues."""
        return Posts.FINDING if self.comments else Posts.NOTHING


def name_sweep(label: str) -> str:
    """The default name of a sweep: its label and the date (UTC)."""
    return f"{label} {datetime.now(UTC):%Y-%m-%d}"


async def sweep(
    settings: Settings,
    request: SweepRequest,
    show: Callable[[str], None],
    *,
    dry: bool = False,
    look_every_s: float = LOOK_EVERY_S,
) -> Summary:
    """Verify issues, and `show` a line when each is done. With `dry`, only find out what a sweep would do.

    If this is cancelled, active jobs continue. Raises `Refused`, `UnknownRepository`, `GitHubError`,
    `GitHubUnavailable` and `DatabaseError`.
    """
    async with open_context(settings) as context:
        person, repository = await ask_about(context, settings, find_operator(), request.repository)
        rules = person.rules
        _require_verifiable(settings, rules)
        listed = context.github.list_labelled_issues(rules.name, request.label, EVER)
        issues = sorted([one async for one in listed if one.pull_request is None], key=lambda issue: issue.number)
        swept = _Sweep(context, person, repository, issues[: request.limit], request, show)
        return await (swept.foresee() if dry else swept.run(look_every_s))


def _require_verifiable(settings: Settings, rules: RepositoryRules) -> None:
    if rules.presets is not None and VERIFY not in rules.presets:
        raise Refused(f"the .github/ptq.toml of {rules.name} does not allow {VERIFY}")
    if not settings.repos[rules.name].verify.runs:
        raise Refused(f"verify.runs of {rules.name} is 0, so the service runs no scripts there")


class _Sweep:
    """One run of the command. It polls the database for the state of each issue's job."""

    def __init__(
        self,
        context: Context,
        person: Person,
        repository: Repository,
        issues: Sequence[Issue],
        request: SweepRequest,
        show: Callable[[str], None],
    ) -> None:
        self._context, self._person, self._repository = context, person, repository
        self._rules = rules = person.rules
        self._issues, self._request, self._show = issues, request, show
        self._trigger = f"sweep {request.name}"
        self._names = {issue.number: name_job(context, rules.name, issue.number, self._trigger) for issue in issues}
        self._done: dict[int, Row] = {}
        self._under_way: dict[int, Job] = {}
        self._stopped: str | None = None

    async def run(self, look_every_s: float) -> Summary:
        """Start the missing jobs, a few at a time, and return when all have ended.

        If a pause, a used-up cap or GitHub stops the sweep, return as soon as its active jobs are only queued ones.
        """
        self._say(f"Sweep {self._request.name!r} of {self._rules.name}: {len(self._issues)} open issue(s)\n")
        while True:
            await self._look()
            await self._begin_more()
            if not self._goes_on():
                return self._sum_up()
            await asyncio.sleep(look_every_s)

    async def foresee(self) -> Summary:
        """What a run would do. This starts no jobs."""
        await self._look()
        try:
            async with self._context.db.read() as connection:
                await self._check_all(connection)
        except NotStarted as refused:
            self._stop(refused)
        rows = [await self._foresee(issue) for issue in self._list_waiting()]
        return self._sum_up({row.issue: row for row in rows})

    async def _look(self) -> None:
        """Read from the database which jobs have ended, which are active, and whether a pause stops the sweep."""
        context, left = self._context, [number for number in self._names if number not in self._done]
        under_way = {}
        with context.db.explaining():
            async with context.db.read() as connection:
                jobs = await job_rows.fetch_with_successors(connection, [self._names[number] for number in left])
                known = [(number, jobs[name]) for number in left if (name := self._names[number]) in jobs]
                for number, job in known:
                    if await self._has_ended(connection, job):
                        self._settle(await self._read(connection, job))
                    else:
                        under_way[number] = job
                pause = find_pause(await fetch_pauses(connection), self._rules.name)
        self._under_way = under_way
        waits = any(job.state is JobState.QUEUED for job in under_way.values())
        if pause and (waits or any(self._list_waiting())):
            self._stopped = f"{pause.describe()}; ptq-bot resume takes that back."

    async def _has_ended(self, connection: AsyncConnection, job: Job) -> bool:
        """Whether a job has ended and its case is updated, too. Until then, a lost job may still be restarted."""
        case = None if job.active else await casebook.fetch_case(connection, job.case_key)
        return not job.active and (case is None or case.active_job_id != job.id)

    async def _begin_more(self) -> None:
        for issue in self._list_waiting():
            if self._stopped or len(self._under_way) >= self._request.at_once:
                return
            try:
                self._under_way[issue.number] = await start_unheard(self._context, self._ask(issue))
            except (NothingStarts, GitHubUnavailable) as error:
                self._stop(error)
            except (NotStarted, GitHubError) as error:
                self._settle(_leave_out(issue, error))

    def _stop(self, error: NotStarted | GitHubUnavailable) -> None:
        self._stopped = str(error).removeprefix("No job was started: ")

    def _goes_on(self) -> bool:
        """Whether to wait for any job. After a stop, queued jobs do not count."""
        if not self._stopped:
            return bool(self._under_way)
        return any(job.state is not JobState.QUEUED for job in self._under_way.values())

    async def _check_all(self, connection: AsyncConnection) -> None:
        """Raise `NotStarted` if a pause, or a cap of the repository or the person, blocks all jobs."""
        await check_not_paused(connection, self._rules.name)
        await check_caps(connection, self._context, self._rules, Topic(self._rules.name, None), self._person.name)

    async def _foresee(self, issue: Issue) -> Row:
        context, name = self._context, self._rules.name
        try:
            snapshot = await freeze(context, self._ask(issue))
            async with context.db.read() as connection:
                await check_free(connection, context, name, issue.number, self._request.posts)
                earlier = await find_proven_repro(connection, name, issue.number, private=self._repository.private)
        except (NotStarted, GitHubError) as error:
            return _leave_out(issue, error)
        scripts = list_scripts(snapshot, earlier)
        return Row(issue.number, issue.title, WANTED if scripts else NO_SCRIPT, scripts=len(scripts))

    def _ask(self, issue: Issue) -> StartRequest:
        return StartRequest(
            person=self._person,
            repository=self._repository,
            issue=issue,
            preset=VERIFY,
            triggered_at=self._context.now(),
            by_our_clock=True,
            trigger=self._trigger,
            posts=self._request.posts,
        )

    async def _read(self, connection: AsyncConnection, job: Job) -> Row:
        """The result of an ended job for its issue."""
        title = next(issue.title for issue in self._issues if issue.number == job.thread)
        checks, page = await fetch_checks(connection, job.id), self._context.find_page(job)
        why = explain_outcome(job, checks, self._context.secrets)
        return Row(job.issue_number, title, find_outcome(job.state, checks), why, job.base_commit, job.id, page)

    def _list_waiting(self) -> list[Issue]:
        """The issues without a result and without an active job."""
        return [issue for issue in self._issues if issue.number not in {**self._done, **self._under_way}]

    def _settle(self, row: Row) -> None:
        self._done[row.issue] = row
        self._say(row.describe())

    def _say(self, line: str) -> None:
        self._show(show_for_terminal(redact(line, self._context.secrets)))

    def _sum_up(self, foreseen: dict[int, Row] | None = None) -> Summary:
        rows = [*self._list_rows(foreseen or {})]
        return Summary(self._request.name, self._rules.name, self._request.label, rows, self._stopped)

    def _list_rows(self, foreseen: dict[int, Row]) -> Iterator[Row]:
        known = {**foreseen, **self._done}
        for issue in self._issues:
            if row := known.get(issue.number):
                yield row
            elif job := self._under_way.get(issue.number):
                page = self._context.find_page(job)
                yield Row(issue.number, issue.title, UNDER_WAY, job.trouble or "", job.base_commit, job.id, page)
            else:
                yield Row(issue.number, issue.title, NOT_BEGUN)


def _leave_out(issue: Issue, error: NotStarted | GitHubError) -> Row:
    if isinstance(error, NothingToVerify):
        return Row(issue.number, issue.title, NO_SCRIPT)
    return Row(issue.number, issue.title, LEFT_OUT, ANOTHER if isinstance(error, Busy) else str(error))
