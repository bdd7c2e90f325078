"""The details of a job's page besides the job's result: attempts, hold, the reader's actions, and the job's states."""

from __future__ import annotations

import hmac
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.operations.holds import describe_way_in
from bot.web.auth.sessions import Visitor
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.forms import new_request_key
from bot.web.dashboard.listing import name_state
from handlers.cases import casebook
from handlers.cases.case import Case
from handlers.cases.casebook import Pull
from handlers.commands.rights import Operation, Person, Surface
from handlers.holds.by_comment import would_take_over
from handlers.jobs.tell import find_objection
from handlers.words.form_errors import strip_marks
from handlers.words.report_comment import render_duration
from runner.db.schema import jobs
from runner.model.job import Job, JobState
from runner.model.machines import Machine
from runner.rows import job_rows
from runner.rows.holds import Hold, fetch_hold
from runner.rows.tellings import fetch_tellings

MAX_ATTEMPTS = 50
"""The most attempts that are linked. If there are more, the newest ones are linked."""


Moves = Sequence[tuple[datetime, JobState]]
"""The states of a job in order, each with the time when the job reached it."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A past or current state of a job."""

    state: str
    began_at: datetime
    lasted: timedelta

    @property
    def words(self) -> str:
        """The duration, for people."""
        return render_duration(self.lasted)


@dataclass(frozen=True, slots=True)
class JobDetails:
    """The details of a job's page."""

    attempts: Sequence[Job]
    """The attempts that the reader may see, newest first."""
    newest: str
    """The id of the newest attempt, even if the reader may not see it."""
    hidden: Collection[str]
    """The ids of the attempts whose result the reader may not see."""
    case: Case | None
    base_branch: str
    """The branch that a pull request of the job goes to."""
    updates: int | None
    """The number of the pull request that a note updates while it is open."""
    standing: str | None
    """The id of the attempt whose diff a note approves now."""
    accepted: Pull | None
    """The pull request with the diff of a job without an issue, even if it is still to be opened."""
    refused: str
    """Why the pull request of the last note on a job without an issue was given up. Empty if it was not given up."""
    hold: Hold | None
    ssh_command: str
    """The reader's SSH command for the environment. Empty if the reader cannot enter the environment."""
    may_start: bool
    may_open: bool
    may_take_over: bool
    """Whether the reader's `/ptq takeover` would be accepted."""
    waiting: int
    """The number of messages that the agent has not got yet."""
    request_key: str
    """The key that makes repeated forms of this page harmless."""

    def name_state(self, attempt: Job) -> str:
        """The state of an attempt, as the reader may see it."""
        return name_state(attempt.state, is_hidden=attempt.id in self.hidden)

    def may_tell(self, job: Job) -> bool:
        """Whether the reader may tell the job's agent something now."""
        return self.may_start and find_objection(job, "words", 0) is None

    def is_newest(self, job: Job) -> bool:
        """Whether this is the newest attempt, which a follow-up continues."""
        return self.newest == job.id

    def is_settled(self, job: Job) -> bool:
        """Whether the case has recorded the job's end. It does so a moment after the end."""
        return self.case is None or self.case.active_job_id != job.id

    def stands(self, job: Job) -> bool:
        """Whether a note would approve the job's diff. Without an issue, only one note can be accepted for a diff."""
        return self.standing == job.id and (job.thread is not None or self.accepted is None)


async def fetch_details(deps: DashboardDeps, visitor: Visitor, job: Job) -> JobDetails:
    """The details for this visitor. Permissions are checked again before any action."""
    may_start, may_open = await _find_rights(deps, visitor, job)
    aimed = await deps.aim(job) if may_open and not job.active else job
    async with deps.context.db.read() as connection:
        hold = await fetch_hold(connection, job.id)
        told = await fetch_tellings(connection, job.id)
        every = await _fetch_attempts(connection, job)
        ids = [] if visitor.is_operator else [one.id for one in every]
        hidden = await job_rows.fetch_withheld_among(connection, ids)
        case = await casebook.fetch_case(connection, job.case_key) if job.thread is not None else None
        updatable = await casebook.fetch_updatable(connection, aimed)
        standing = await casebook.fetch_standing_id(connection, job.topic)
        accepted = await _fetch_accepted(connection, job)
        last = await casebook.fetch_pull(connection, job.id) if job.thread is None else None
        rules = deps.context.rules_for(job.repository) if may_open and job.thread is not None else None
        may_take_over = rules is not None and await would_take_over(connection, deps.context, rules, job)
    machine = deps.context.machines.get(job.machine or "")
    return JobDetails(
        attempts=[one for one in every if one.id == job.id or await deps.visibility.sees(visitor, one)],
        newest=every[0].id if every else job.id,
        hidden=hidden,
        case=case,
        base_branch=aimed.base_branch,
        updates=updatable[0].number if updatable else None,
        standing=standing,
        accepted=accepted,
        refused=strip_marks((last and last.abandoned) or ""),
        hold=hold,
        ssh_command=find_ssh_command(hold, machine, visitor) if may_open or visitor.is_operator else "",
        may_start=may_start,
        may_open=may_open,
        may_take_over=may_take_over,
        waiting=sum(telling.given_at is None for telling in told),
        request_key=new_request_key(),
    )


async def _find_rights(deps: DashboardDeps, visitor: Visitor, job: Job) -> tuple[bool, bool]:
    rules = deps.context.rules_for(job.repository)
    if rules is None or visitor.login is None:
        return False, False
    person = Person(visitor.login, Surface.PAGE, rules, await deps.visibility.find_role(visitor.login, job.repository))
    return person.may(Operation.START), person.may(Operation.OPEN_PULL)


async def _fetch_attempts(connection: AsyncConnection, job: Job) -> list[Job]:
    """All attempts at the same topic, newest first."""
    found = await job_rows.fetch_recent_jobs(connection, MAX_ATTEMPTS, job_rows.belong_to(job.topic))
    return sorted(found, key=lambda one: one.attempt, reverse=True)


async def _fetch_accepted(connection: AsyncConnection, job: Job) -> Pull | None:
    """The pull request of a job without an issue: the job's own, or that of another attempt with the same diff."""
    if job.thread is not None:
        return None
    pull = await casebook.fetch_pull(connection, job.id)
    if pull and not pull.abandoned:
        return pull
    report = await job_rows.fetch_report_head(connection, job.id)
    return await casebook.fetch_same_pull(connection, job, report.digest) if report and report.digest else None


async def fetch_offer_mark(connection: AsyncConnection, job: Job, secret: bytes) -> str:
    """A text that changes when the actions on a job's page may change.

    They depend on the attempts, the pull request, the hold and the cancellation. Everybody who sees the job gets the
    text. It reveals none of these, because nobody can guess its content without the secret.
    """
    query = select(jobs.c.id, jobs.c.state).where(job_rows.belong_to(job.topic)).order_by(jobs.c.id)
    rows = (await connection.execute(query)).all()
    hidden = await job_rows.fetch_withheld_among(connection, [row.id for row in rows])
    attempts = [(row.id, name_state(row.state, is_hidden=row.id in hidden)) for row in rows]
    case = await casebook.fetch_case(connection, job.case_key) if job.thread is not None else None
    held, accepted = await fetch_hold(connection, job.id), await _fetch_accepted(connection, job)
    offered = (attempts, case, held, job.cancel_requested_at, accepted and accepted.number)
    return hmac.new(secret, f"standing\0{offered!r}".encode(), "sha256").hexdigest()[:16]


def find_ssh_command(hold: Hold | None, machine: Machine | None, visitor: Visitor) -> str:
    """The SSH command, for the holder and for operators, once access is granted. Empty for anyone else. Pure."""
    if hold is None or machine is None or hold.admitted_at is None or visitor.login is None:
        return ""
    is_theirs = hold.person.casefold() == visitor.login.casefold()
    return shlex.join(describe_way_in(machine)) if is_theirs or visitor.is_operator else ""


def list_phases(moves: Moves, until: datetime, *, active: bool) -> list[Phase]:
    """The states that a job was in, without the final one. Pure."""
    ends = [*(at for at, _ in moves[1:]), until]
    phases = [Phase(state, at, max(end - at, timedelta())) for (at, state), end in zip(moves, ends, strict=True)]
    return phases if active else phases[:-1]
