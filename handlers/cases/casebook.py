"""Rows of cases, their labels, replies and pull requests. Every function takes its caller's transaction.

A reply's row has the text that should be on GitHub, and the text that is there. `handlers.effects.outbox` makes the
second equal to the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, and_, bindparam, case, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases.case import LABELS, Case, CaseState
from handlers.cases.withheld import fetch_withheld
from handlers.ports import WritePriority
from runner.db.schema import (
    NOT_AS_WANTED,
    TO_MINIMIZE,
    case_labels,
    cases,
    jobs,
    known_repositories,
    outdated_comments,
    pulls,
    replies,
    reports,
)
from runner.db.sql import insert_new, upsert
from runner.model.job import FINAL, Job, JobKind, JobState, Posts, Report, Topic
from runner.rows import job_rows
from runner.rows.effect_rows import EffectRow


@dataclass(frozen=True, slots=True)
class Reply(EffectRow):
    """One comment of the bot: the wanted text, and its state on GitHub."""

    id: str
    kind: str
    """`status`, `report` or `reply`, as in the comment's marker."""
    repository: str
    issue_number: int
    body: str
    created_at: datetime
    job_id: str | None = None
    posted_body: str | None = None
    comment_id: int | None = None
    comment_url: str | None = None
    commented_at: datetime | None = None
    final: bool = False
    changed_at: datetime | None = None
    """When `body` last changed. None if it never did."""
    quiet_since: datetime | None = None
    """Since when no replica sends the reply. Some time later, an unanswered attempt is over. None means that this is
    unknown, because the sender may have crashed."""
    stranger: str | None = None
    """The login in lower case, if the reply answers a person without rights."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether an attempt to post the reply got no answer, not even a refusal."""
        return self.comment_id is None and self.attempts > self.refusals

    @property
    def is_new_report(self) -> bool:
        """Whether the reply is a report that was never posted."""
        return self.kind == "report" and self.comment_id is None

    @property
    def is_being_restored(self) -> bool:
        """Whether the reply is written again, because GitHub did not show it as posted (`outbox.write_again`)."""
        return self.posted_body == "" and self.abandoned is None

    @property
    def marker(self) -> str:
        """The hidden line with which the service finds the comment again after a lost answer."""
        name = "job" if self.kind == "status" else self.kind
        return f"<!-- ptq:{name}={self.id} -->"

    def log_context(self) -> dict[str, object]:
        """The ids in every log line about this comment."""
        case = f"{self.repository}#{self.issue_number}"
        where = {"repository": self.repository, "issue": self.issue_number, "case": case, "job": self.job_id}
        return {**where, "reply": self.id, "kind": self.kind}

    @property
    def priority(self) -> WritePriority:
        """The priority of writing the reply to GitHub now."""
        return find_priority(self.kind, is_posted=self.comment_id is not None, final=self.final)


def find_priority(kind: str, *, is_posted: bool, final: bool) -> WritePriority:
    """The priority of a comment's next text. `is_posted` says that the comment exists."""
    if kind == "status" and is_posted:
        return WritePriority.STATUS if final else WritePriority.LIVE
    return WritePriority.REPLY if kind == "reply" else WritePriority.REPORT


@dataclass(frozen=True, slots=True)
class Pull(EffectRow):
    """A draft pull request to open for an approved report."""

    job_id: str
    digest: str
    note: str
    approver: str
    note_url: str
    branch: str
    created_at: datetime
    title: str | None = None
    """The approver's title. None means the title of the report."""
    approver_id: int | None = None
    """GitHub's id of the approver's account, if they wrote the note on a page. None for a note in a comment."""
    base_branch: str | None = None
    """The branch that the pull request goes to. None means the base branch of its job. They differ if a task began on
    another branch."""
    commit_sha: str | None = None
    drops_edits: bool = False
    """Whether people's text in the earlier body is left out, because it could not be told from the bot's text."""
    number: int | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class CaseLabel(EffectRow):
    """The state of a case's label on GitHub."""

    key: str
    standing: str | None = None
    """The bot's label that is on the issue, or may be on it, because a label is stored before it is added."""
    settled: bool = True
    """Whether GitHub has confirmed the label."""


@dataclass(frozen=True, slots=True)
class OutdatedComment(EffectRow):
    """A comment of the bot that a newer report has made outdated."""

    reply_id: str
    minimized: bool = False
    """Whether GitHub has confirmed that it is folded."""


async def fetch_case(connection: AsyncConnection, key: str) -> Case | None:
    """The case of an issue, `owner/name#number`."""
    row = (await connection.execute(select(cases).where(cases.c.key == key))).one_or_none()
    return _case(row) if row else None


async def fetch_awaiting_note(connection: AsyncConnection, job: Job) -> Report | None:
    """The report of a job, if a note would approve its diff now. Otherwise None.

    A case forgets a diff that is in a pull request. A series has no case, so a diff that is in its newest pull request
    does not count.
    """
    if await fetch_standing_id(connection, job.topic) != job.id or await fetch_withheld(connection, job.id):
        return None
    report = await job_rows.fetch_report(connection, job.id)
    if report is None or report.digest is None:
        return None
    if job.thread is None and await fetch_same_pull(connection, job, report.digest):
        return None
    return report


async def fetch_confidential(connection: AsyncConnection, repository: str, issue_number: int) -> list[Case]:
    """The confidential cases of an issue: one for each name under which its repository has been known."""
    number = select(known_repositories.c.number).where(known_repositories.c.name == repository.lower())
    names = select(known_repositories.c.name).where(known_repositories.c.number.in_(number))
    is_same = or_(cases.c.repository == repository, func.lower(cases.c.repository).in_(names))
    found = select(cases).where(cases.c.confidential, cases.c.issue_number == issue_number, is_same)
    return [_case(row) for row in await connection.execute(found)]


def _case(row: Row[Any]) -> Case:
    return Case(**{**row._mapping, "state": CaseState(row.state)})


async def fetch_case_of_pull(connection: AsyncConnection, repository: str, number: int) -> Case | None:
    """The case of a pull request that the bot opened."""
    of_pull = select(pulls.c.job_id).where(pulls.c.number == number)
    issue = select(jobs.c.thread).where(jobs.c.repository == repository, jobs.c.id.in_(of_pull)).limit(1)
    found = (await connection.execute(issue)).scalar_one_or_none()
    return await fetch_case(connection, f"{repository}#{found}") if found else None


async def fetch_queued_job(connection: AsyncConnection, key: str) -> Job | None:
    """The queued job of a case."""
    case = await fetch_case(connection, key)
    job = await job_rows.fetch_job(connection, case.active_job_id) if case and case.active_job_id else None
    return job if job and job.state is JobState.QUEUED else None


async def save_case(connection: AsyncConnection, case: Case) -> None:
    """Store a case."""
    await upsert(connection, cases, asdict(case), keep=["created_at"])


def derive_reply_id(what: str) -> str:
    """The id of the reply to `what`. A repeated request has the same id."""
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def draft_reply(reply_id: str, kind: str, job: Job, body: str, now: datetime) -> Reply:
    """A job's status comment or report, not stored yet."""
    return Reply(reply_id, kind, job.repository, job.issue_number, body, now, next_attempt_at=now, job_id=job.id)


async def insert_reply(connection: AsyncConnection, reply: Reply) -> bool:
    """Store a reply to post. False if its id exists already."""
    return await insert_new(connection, replies, asdict(reply))


def read_reply(row: Row[Any]) -> Reply:
    """The reply in a row."""
    return Reply(**row._mapping)


async def fetch_job_reply(connection: AsyncConnection, job_id: str, kind: str) -> Reply | None:
    """The status comment or the report of a job."""
    query = select(replies).where(replies.c.job_id == job_id, replies.c.kind == kind)
    row = (await connection.execute(query)).one_or_none()
    return read_reply(row) if row else None


async def fetch_reports_of(connection: AsyncConnection, repository: str, issue_number: int) -> list[Reply]:
    """The posted reports of an issue, newest first by GitHub's clock."""
    query = (
        select(replies)
        .where(
            replies.c.repository == repository,
            replies.c.issue_number == issue_number,
            replies.c.kind == "report",
            replies.c.commented_at.is_not(None),
        )
        .order_by(replies.c.commented_at.desc(), replies.c.comment_id.desc())
    )
    return [read_reply(row) for row in await connection.execute(query)]


async def fetch_replies_of_job(connection: AsyncConnection, job_id: str) -> list[Reply]:
    """The status comment and the report of a job, if they exist."""
    query = select(replies).where(replies.c.job_id == job_id).order_by(replies.c.kind.desc())
    return [read_reply(row) for row in await connection.execute(query)]


async def fetch_answers_with(connection: AsyncConnection, repository: str, issue_number: int, text: str) -> list[Reply]:
    """The answers with this text, such as a report that was posted again, on an issue and all its pull requests."""
    of_issue = select(jobs.c.id).where(jobs.c.repository == repository, jobs.c.thread == issue_number)
    numbers = select(pulls.c.number).where(pulls.c.job_id.in_(of_issue), pulls.c.number.is_not(None))
    query = select(replies).where(
        replies.c.repository == repository,
        or_(replies.c.issue_number == issue_number, replies.c.issue_number.in_(numbers)),
        replies.c.kind == "reply",
        replies.c.body.contains(text, autoescape=True),
    )
    return [read_reply(row) for row in await connection.execute(query)]


async def fetch_unposted(connection: AsyncConnection) -> list[tuple[str, str | None, str | None, int]]:
    """The number of replies that are not on GitHub as wanted, by repository, `trouble` and `abandoned`.

    Each item has these three values and the number.
    """
    kinds = (replies.c.repository, replies.c.trouble, replies.c.abandoned)
    query = select(*kinds, func.count()).where(NOT_AS_WANTED).group_by(*kinds)
    return [(row[0], row[1], row[2], row[3]) for row in await connection.execute(query)]


async def change_reply(connection: AsyncConnection, reply: Reply, **changes: Any) -> Reply:
    """Change a reply's row, and return it."""
    await connection.execute(update(replies).where(replies.c.id == reply.id).values(**changes))
    return replace(reply, **changes)


def _find_mislabelled() -> Select[Any]:
    shown = case({str(state): label for state, label in LABELS.items()}, value=cases.c.state, else_="")
    wanted = case((cases.c.repository.in_(bindparam("showing", expanding=True)), shown), else_="")
    differs = func.coalesce(case_labels.c.standing, "") != wanted
    is_due = or_(case_labels.c.key.is_(None), case_labels.c.next_attempt_at <= bindparam("now"))
    return (
        select(cases)
        .outerjoin(case_labels, case_labels.c.key == cases.c.key)
        .outerjoin(jobs, jobs.c.id == cases.c.active_job_id)
        .where(or_(jobs.c.posts.is_(None), jobs.c.posts == Posts.ALL))
        .where(cases.c.repository.in_(bindparam("all", expanding=True)), or_(differs, case_labels.c.settled.is_(False)))
        .where(case_labels.c.abandoned.is_(None), is_due)
        .order_by(cases.c.changed_at)
    )


_MISLABELLED = _find_mislabelled()


async def fetch_mislabelled_cases(
    connection: AsyncConnection, showing: Collection[str], hiding: Collection[str], now: datetime
) -> list[Case]:
    """The cases whose label is wrong and due.

    In `showing` repositories, the label should show the state of the case. In `hiding` ones, it should be removed.

    An active job that posts nothing in the thread does not change the label.
    """
    asked = {"showing": [*showing], "all": [*showing, *hiding], "now": now}
    return [_case(row) for row in await connection.execute(_MISLABELLED, asked)]


async def fetch_case_label(connection: AsyncConnection, key: str) -> CaseLabel | None:
    """The label of a case. None if the case never had one."""
    row = (await connection.execute(select(case_labels).where(case_labels.c.key == key))).one_or_none()
    return CaseLabel(**row._mapping) if row else None


async def change_case_label(connection: AsyncConnection, label: CaseLabel, **changes: Any) -> None:
    """Change the row of a case's label, or insert `label` with the changes."""
    values = asdict(label)
    await upsert(connection, case_labels, values | changes, keep=values.keys() - changes.keys())


async def mark_outdated(connection: AsyncConnection, report: Reply, now: datetime) -> None:
    """Store which comments are outdated, now that this report is on GitHub.

    If the job of the report has succeeded, these are the status and report of each earlier attempt that the job
    followed, or that had the same preset. A report that a note can still approve without a digest, or that has a pull
    request, is not outdated. A withheld report changes no comment, because that would show how its job has ended.
    """
    newer = await job_rows.fetch_job(connection, report.job_id or "")
    if newer is None or newer.state is not JobState.SUCCEEDED or await fetch_withheld(connection, newer.id):
        return
    is_replaced = and_(jobs.c.preset == newer.preset, jobs.c.kind == newer.kind)
    if newer.follows and newer.kind is not JobKind.VERIFY:
        is_replaced = or_(is_replaced, jobs.c.id == newer.follows)
    case = await fetch_case(connection, newer.case_key)
    with_pull = select(pulls.c.job_id).where(pulls.c.abandoned.is_(None))
    earlier = select(jobs.c.id).where(
        jobs.c.repository == newer.repository,
        jobs.c.thread == newer.thread,
        jobs.c.attempt < newer.attempt,
        jobs.c.id != (case.standing_job_id or "" if case else ""),
        jobs.c.id.not_in(with_pull),
        is_replaced,
    )
    shown = select(replies.c.id).where(replies.c.job_id.in_(earlier), replies.c.comment_id.is_not(None))
    for reply_id in (await connection.execute(shown)).scalars().all():
        await insert_new(connection, outdated_comments, asdict(OutdatedComment(reply_id, next_attempt_at=now)))


_OUTDATED = (
    select(outdated_comments)
    .where(TO_MINIMIZE, outdated_comments.c.next_attempt_at <= bindparam("now"))
    .where(outdated_comments.c.reply_id.not_in(bindparam("tried", expanding=True)))
    .order_by(outdated_comments.c.next_attempt_at)
    .limit(1)
)


async def fetch_next_outdated(
    connection: AsyncConnection, now: datetime, tried: Collection[str]
) -> tuple[OutdatedComment, Reply] | None:
    """The next outdated comment that GitHub still shows, except for those `tried`."""
    row = (await connection.execute(_OUTDATED, {"now": now, "tried": [*tried]})).one_or_none()
    if row is None:
        return None
    reply = (await connection.execute(select(replies).where(replies.c.id == row.reply_id))).one()
    return OutdatedComment(**row._mapping), read_reply(reply)


async def change_outdated(connection: AsyncConnection, outdated: OutdatedComment, **changes: Any) -> None:
    """Change the row of an outdated comment."""
    own = outdated_comments.c.reply_id == outdated.reply_id
    await connection.execute(update(outdated_comments).where(own).values(**changes))


_REPORTED = select(replies.c.job_id).where(replies.c.kind == "report", replies.c.job_id.is_not(None))
_REPLACED = select(jobs.c.replaces).where(jobs.c.replaces.is_not(None))
_UNREPORTED = (
    select(jobs.c.id)
    .where(jobs.c.state.in_([str(state) for state in FINAL]), jobs.c.thread.is_not(None))
    .where(jobs.c.id.not_in(_REPORTED), jobs.c.id.not_in(_REPLACED))
    .where(or_(jobs.c.posts == Posts.ALL, jobs.c.id.in_(select(cases.c.active_job_id))))
)


async def fetch_unreported_job_ids(connection: AsyncConnection) -> list[str]:
    """Ended jobs of issues without a report comment, and without a replacement that will have one.

    Jobs without any report count only while their case still has them as the active job.
    """
    return list((await connection.execute(_UNREPORTED)).scalars())


_OPEN_STATUSES = select(replies).where(replies.c.kind == "status", replies.c.final.is_(False))


async def fetch_open_statuses(connection: AsyncConnection) -> list[Reply]:
    """Status comments that are still updated."""
    return [read_reply(row) for row in await connection.execute(_OPEN_STATUSES)]


async def save_pull(connection: AsyncConnection, pull: Pull) -> None:
    """Store a pull request to open. It replaces an abandoned one."""
    await upsert(connection, pulls, asdict(pull))


async def fetch_pull(connection: AsyncConnection, job_id: str) -> Pull | None:
    """The pull request of a job's report."""
    return await _fetch_one_pull(connection, select(pulls).where(pulls.c.job_id == job_id))


async def _fetch_one_pull(connection: AsyncConnection, query: Select[Any]) -> Pull | None:
    row = (await connection.execute(query)).one_or_none()
    return Pull(**row._mapping) if row else None


async def is_accepted(connection: AsyncConnection, note_url: str) -> bool:
    """Whether the comment at this address was accepted as a note before."""
    found = await connection.execute(select(pulls.c.job_id).where(pulls.c.note_url == note_url).limit(1))
    return found.one_or_none() is not None


async def fetch_standing_id(connection: AsyncConnection, topic: Topic) -> str | None:
    """The attempt whose diff a note approves now.

    The case of an issue says which attempt it is. A series has no case. There it is the newest attempt with a diff that
    may be proposed.
    """
    if topic.thread is not None:
        case = await fetch_case(connection, f"{topic.repository}#{topic.thread}")
        return case.standing_job_id if case else None
    has_diff = select(reports.c.job_id).where(reports.c.digest.is_not(None), ~reports.c.withheld)
    which = (job_rows.belong_to(topic), jobs.c.state == JobState.SUCCEEDED, jobs.c.id.in_(has_diff))
    query = select(jobs.c.id).where(*which).order_by(jobs.c.attempt.desc()).limit(1)
    return (await connection.execute(query)).scalar_one_or_none()


def _pulls_of(topic: Topic) -> Select[Any]:
    """The pull requests of a topic that were not abandoned, newest first."""
    attempts = select(jobs.c.id).where(job_rows.belong_to(topic))
    standing = (pulls.c.job_id.in_(attempts), pulls.c.abandoned.is_(None))
    return select(pulls).where(*standing).order_by(pulls.c.created_at.desc()).limit(1)


async def fetch_newest_pull(connection: AsyncConnection, topic: Topic) -> Pull | None:
    """The newest pull request of a topic, open or still to be opened."""
    return await _fetch_one_pull(connection, _pulls_of(topic))


async def fetch_brought_pull(connection: AsyncConnection, topic: Topic) -> Pull | None:
    """The newest pull request of a topic that was opened or updated on GitHub."""
    return await _fetch_one_pull(connection, _pulls_of(topic).where(pulls.c.number.is_not(None)))


async def fetch_updatable(connection: AsyncConnection, job: Job) -> tuple[Pull, Job] | None:
    """The pull request that a note on this job's diff updates while it is open, and the job whose diff it has.

    A pull request for another branch is left alone. The branch of a task has to be that of its pull request
    (`handlers.jobs.history.settle_base_branch`).
    """
    pull = await fetch_brought_pull(connection, job.topic)
    made_of = await job_rows.fetch_job(connection, pull.job_id) if pull else None
    return (pull, made_of) if pull and made_of and _goes_to(pull, made_of) == job.base_branch else None


def _goes_to(pull: Pull, made_of: Job) -> str:
    return pull.base_branch or made_of.base_branch


async def fetch_same_pull(connection: AsyncConnection, job: Job, digest: str) -> Pull | None:
    """The newest pull request of a job's topic, if it has this diff and is for the same branch."""
    newest = await fetch_newest_pull(connection, job.topic)
    if newest is None or newest.digest != digest:
        return None
    if newest.job_id == job.id:
        return newest
    # A rebase onto another branch may leave a diff as it was.
    made_of = await job_rows.fetch_job(connection, newest.job_id)
    return newest if made_of and job.base_branch in (made_of.base_branch, _goes_to(newest, made_of)) else None


_UNOPENED = (
    select(pulls, jobs.c.repository, jobs.c.thread, jobs.c.series)
    .join(jobs, jobs.c.id == pulls.c.job_id)
    .where(pulls.c.number.is_(None), pulls.c.abandoned.is_(None))
    .order_by(pulls.c.created_at)
)


async def fetch_due_pulls(connection: AsyncConnection, now: datetime) -> list[Pull]:
    """Approved pull requests that are not on GitHub yet, oldest first, and only the first of each topic."""
    firsts: dict[Topic, Pull] = {}
    for row in await connection.execute(_UNOPENED):
        *values, repository, thread, series = row
        pull = Pull(**dict(zip(pulls.c.keys(), values, strict=True)))
        firsts.setdefault(Topic(repository, thread, series), pull)
    return [pull for pull in firsts.values() if pull.next_attempt_at <= now]


async def change_pull(connection: AsyncConnection, pull: Pull, **changes: Any) -> Pull:
    """Change a pull request's row, and return it."""
    await connection.execute(update(pulls).where(pulls.c.job_id == pull.job_id).values(**changes))
    return replace(pull, **changes)
