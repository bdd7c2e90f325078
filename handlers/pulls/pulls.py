"""From a human note to a draft pull request.

`ask_for_pull` checks a note in a comment, and stores the pull request that the note approves. `approve_on_page` does
the same for a note on the page of a job without an issue. The effect `Pulls` then creates the pull request
(`pull_steps`). It tries again until the pull request exists, or can never exist.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.addresses import job_url
from handlers.cases import casebook
from handlers.cases.case import open_pull
from handlers.cases.casebook import Pull, Reply
from handlers.commands.rights import NotPermitted, Operation, Person, Surface
from handlers.commands.table import Command
from handlers.context import Context
from handlers.effects.drain import FRESH, Due, Effect
from handlers.effects.outbox import is_as_posted, write_again, write_reply
from handlers.effects.retry_policy import MAX_WAIT_S, Verdict, judge
from handlers.events import IssueComment
from handlers.ports import NotFound
from handlers.pulls.note import (
    NoteFault,
    NoteText,
    find_digest_fault,
    find_note_fault,
    find_option_fault,
    matches_digest,
    parse_note,
)
from handlers.pulls.pull_steps import Brought, bring, name_branch
from handlers.words import replies
from handlers.words.form_errors import strip_marks
from handlers.words.report_comment import approvable, shows_diff
from runner.aside import run_aside
from runner.model.job import DIGEST_SHOWN, Job, Report, Topic
from runner.rows import job_rows

log = structlog.get_logger()

MAX_COMPARED = 300_000
"""A note is compared with at most this many characters of each of an agent's texts."""

MAX_REFUSALS = 3
"""How often GitHub may refuse a step before the pull request is given up."""

OUTDATED = (
    "Another diff has replaced the one that this form showed. Read the diff on this page and, if you agree with it, "
    "send your note again."
)
"""Why a form with another digest is not accepted."""


# The note


class NotApproved(Exception):  # noqa: N818
    """A note approves nothing. `reply` says why in a thread, and the exception's text on a page."""

    def __init__(self, reply: str, on_page: str = "", field: str = "") -> None:
        """`field` is the form's field that the message is about."""
        super().__init__(on_page or strip_marks(reply))
        self.reply, self.field = reply, field


async def ask_for_pull(
    context: Context, person: Person, issue_number: int, comment: IssueComment, command: Command
) -> None:
    """Accept a maintainer's note in a comment, and store the pull request that it approves.

    Raises `NotPermitted` and `NotApproved`, and what `handlers.ports.GitHub` raises.
    """
    _check_person(person)
    note = parse_note(command)
    async with context.db.read() as connection:
        if await casebook.is_accepted(connection, comment.html_url):
            return
        issue = Topic(person.rules.name, issue_number)
        reports = await casebook.fetch_reports_of(connection, issue.repository, issue_number)
        newest = await casebook.fetch_newest_pull(connection, issue)
        job_id = await casebook.fetch_standing_id(connection, issue)
        report = await job_rows.fetch_report(connection, job_id) if job_id else None
        job = await job_rows.fetch_job(connection, job_id) if job_id else None
        posted = await casebook.fetch_replies_of_job(connection, job_id) if job_id else []
        shown = ((report and report.digest) or "")[:DIGEST_SHOWN]
        copies = await casebook.fetch_answers_with(connection, issue.repository, issue_number, shown) if shown else []
    if job is None or report is None or report.digest is None:
        number = newest.number if newest else None
        raise NotApproved(replies.render_pull_exists(number) if number else replies.render_no_diff())
    await _check_approves(context, job, report, note, [reply for reply in reports if _existed_before(reply, comment)])
    if not context.find_page_root(job) and not _is_diff_posted(context, report, posted):
        raise NotApproved(replies.render_unshown_diff())
    for reply in (*posted, *copies):
        if reply.kind != "status":
            await _check_report(context, reply)
    login = comment.user.login if comment.user else "ghost"
    await _store_pull(context, job, report, note, approver=login, note_url=comment.html_url)


async def approve_on_page(context: Context, person: Person, account_id: int, job: Job, note: NoteText) -> None:
    """Accept a note on the page of a job without an issue, and store the pull request that it approves.

    The note for a job on an issue is a comment there. `account_id` is GitHub's id of the person's account. GitHub has
    just confirmed both the id and the person's role. So nobody at a terminal can write a note. Raises `NotPermitted`
    and `NotApproved`, and what `handlers.ports.GitHub` raises.
    """
    if person.surface is not Surface.PAGE or job.thread is not None:
        raise NotPermitted(Operation.OPEN_PULL, person.rules)
    _check_person(person, job.repository)
    async with context.db.read() as connection:
        report = await job_rows.fetch_report(connection, job.id)
    if report is None or not await run_aside(report.size, approvable, job, report, context.secrets):
        raise NotApproved("There's no diff of this job to open a pull request from.")
    await _check_approves(context, job, report, note, [])
    page = job_url(context.public_url, job.id)
    await _store_pull(context, job, report, note, approver=person.name, approver_id=account_id, note_url=page)


def _check_person(person: Person, repository: str | None = None) -> None:
    """Check that a person may open pull requests, and that the repository's own rules are valid."""
    person.require(Operation.OPEN_PULL, repository)
    if person.rules.fault:
        raise NotApproved(replies.render_broken_rules(person.rules.fault))


async def _check_approves(context: Context, job: Job, report: Report, note: NoteText, stood: list[Reply]) -> None:
    """Check that a note approves the report's diff, and that the diff does not come from a private repository that is
    public now. `stood` is as in `find_fault`.
    """
    if job.private and not (await context.github.fetch_repository(job.repository)).private:
        on_page = "This job ran while the repository was private, so its diff cannot be proposed."
        raise NotApproved(replies.render_private_before(), on_page)
    if fault := await run_aside(report.size, find_fault, note, report, stood):
        raise NotApproved(fault.reply, fault.on_page, "note")


def _is_diff_posted(context: Context, report: Report, posted: Collection[Reply]) -> bool:
    """Whether the report is in the thread with the whole diff. If GitHub rejected it, only a short text is there."""
    return any(
        reply.kind == "report" and reply.comment_id is not None and shows_diff(reply.body, report, context.secrets)
        for reply in posted
    )


async def _check_report(context: Context, reply: Reply) -> None:
    """Check that our comment on the issue still shows what we reported.

    If it does not, make the outbox write the comment again, and raise `NotApproved`. A note approves what its author
    read, perhaps in a copy of the report (`/ptq results`). A deleted copy does no harm. A report that could never be
    posted was read on the job's page. GitHub may for a moment not find a comment that exists, so the outbox decides
    whether the comment was deleted.
    """
    try:
        if await is_as_posted(context, reply):
            return
        is_absent = False
    except NotFound:
        if reply.kind != "report":
            return
        is_absent = True
    # Another note must not restart the count of absences.
    if not (is_absent and reply.is_being_restored):
        async with context.db.write() as connection:
            await write_again(connection, context, reply)
        context.notify()
    log.warning("note.report_changed", job=reply.job_id, comment=reply.comment_id, deleted=is_absent)
    raise NotApproved(replies.render_report_changed(is_absent=is_absent))


def _existed_before(reply: Reply, comment: IssueComment) -> bool:
    """Whether a report was on GitHub before a comment was written.

    GitHub's times are whole seconds. Within one second, the ids decide, because they only grow.
    """
    if reply.commented_at is None or reply.comment_id is None:
        return False
    return (reply.commented_at, reply.comment_id) < (comment.created_at, comment.id)


def find_fault(note: NoteText, report: Report, stood: list[Reply]) -> NoteFault | None:
    """Why a note does not approve the report's diff. None if it does.

    `stood` are the reports that existed when the note was written, newest first. A note without a digest approves the
    newest of them. Each word of the note that may be a digest has to match the digest of this report.
    """
    digest = report.digest or ""
    shown = digest[:DIGEST_SHOWN]
    named = [note.digest] if note.digest is not None else note.perhaps
    for name in named:
        if not matches_digest(name, digest):
            stale = replies.render_stale_digest(name[:DIGEST_SHOWN], shown)
            return NoteFault(find_digest_fault(name) or stale, OUTDATED)
    if not named and (not stood or stood[0].job_id != report.job_id):
        return NoteFault(replies.render_newer_report(shown), OUTDATED)
    if option := find_option_fault(note, shown):
        return NoteFault(option, option)
    texts = [text[:MAX_COMPARED] for _, text in (*report.texts(), ("Title", report.pr_title))]
    return find_note_fault(note.text, texts, shown)


async def _store_pull(
    context: Context,
    job: Job,
    report: Report,
    note: NoteText,
    *,
    approver: str,
    note_url: str,
    approver_id: int | None = None,
) -> None:
    """Store the pull request that a note approves. Does nothing if this note was accepted before.

    Raises `NotApproved` if another diff is the current one by now, or if another note has approved the same diff.
    """
    now = context.now()
    pull = Pull(
        job_id=job.id,
        digest=report.digest or "",
        note=note.text,
        title=note.title,
        approver=approver,
        approver_id=approver_id,
        note_url=note_url,
        branch=name_branch(job),
        created_at=now,
        next_attempt_at=now,
    )
    async with context.db.write() as connection:
        # Read again, inside the transaction that decides: a newer report may be the current one by now.
        if await casebook.fetch_standing_id(connection, job.topic) != job.id:
            raise NotApproved(replies.render_no_diff(), OUTDATED)
        # Another attempt may have found the same diff. One pull request is enough for both.
        before = await casebook.fetch_same_pull(connection, job, pull.digest)
        if before is None:
            # The branch may exist already, with the commit of an abandoned try. A commit names its note's author.
            given_up = await casebook.fetch_pull(connection, pull.job_id)
            if given_up and _has_same_commit(given_up, pull):
                pull = replace(pull, branch=given_up.branch, commit_sha=given_up.commit_sha)
            await casebook.save_pull(connection, pull)
    context.notify()
    if before is None:
        log.info("note.accepted", job=pull.job_id, by=pull.approver, digest=pull.digest[:DIGEST_SHOWN])
    elif (before.note_url, before.approver_id, before.note) != (pull.note_url, pull.approver_id, pull.note):
        raise NotApproved(replies.render_pull_exists(before.number))


def _has_same_commit(one: Pull, other: Pull) -> bool:
    """Whether the commits for two notes on a diff have the same message and author."""
    return (one.approver, one.approver_id, one.title) == (other.approver, other.approver_id, other.title)


# The pull request


@dataclass(frozen=True, slots=True)
class DuePull(Due[Pull]):
    """A pull request that a note has approved, with the job whose diff it has."""

    job: Job


class Pulls(Effect[DuePull]):
    """Approved pull requests that are not on GitHub yet."""

    waits = "pull.waits"
    waits_for_turn = "pull.waits_for_turn"
    store = staticmethod(casebook.change_pull)

    async def fetch_next(self, connection: AsyncConnection, now: datetime, tried: Collection[str]) -> DuePull | None:
        """See `Effect`."""
        waiting = await casebook.fetch_due_pulls(connection, now)
        pull = next((pull for pull in waiting if pull.job_id not in tried), None)
        job = await job_rows.fetch_job(connection, pull.job_id) if pull else None
        return DuePull(job.id, pull, job.log_context(), job) if pull and job else None

    async def carry_out(self, due: DuePull) -> None:
        """See `Effect`."""
        pull, job = due.row, due.job
        async with self.context.db.read() as connection:
            report = await job_rows.fetch_report(connection, job.id)
        if report is None:
            raise LookupError(f"the report that pull request {job.id} approves is gone")
        brought = await bring(self.context, pull, job, report)
        await self.context.github.assign(job.repository, brought.request.number, pull.approver)
        await self._record(due, brought)

    async def _record(self, due: DuePull, brought: Brought) -> None:
        now, pull, job, found = self.context.now(), due.row, due.job, brought.request
        async with self.context.db.write() as connection:
            base_branch = found.base_branch if job.thread is None else None
            facts = {"number": found.number, "url": found.url, "base_branch": base_branch}
            await self.store(connection, due.row, **facts, **FRESH)
            await job_rows.add_event(
                connection, job.id, now, f"draft pull request #{found.number} by @{pull.approver}'s note"
            )
            if job.thread is not None:
                await self._answer(connection, due, brought, job.thread)
        log.info("pull.opened", number=found.number, branch=pull.branch, by=pull.approver)
        self.context.notify()

    async def _answer(self, connection: AsyncConnection, due: DuePull, brought: Brought, issue_number: int) -> None:
        """Move the case, and say on the issue where the pull request is. The page of a task shows it."""
        job, number = due.job, brought.request.number
        case = await casebook.fetch_case(connection, job.case_key)
        if case:
            await casebook.save_case(connection, open_pull(case, job.id, number, self.context.now()))
        body = replies.render_pull_opened(
            number, due.row.approver, updated=brought.updated, drops_edits=brought.drops_edits
        )
        await write_reply(connection, self.context, job.repository, issue_number, f"pull of {job.id}", body)

    def judge(self, due: DuePull, error: Exception) -> Verdict:
        """See `Effect`. The wait for a turn to write is not cut at a minute, because each attempt reads much first."""
        return judge(error, due.row, patience=MAX_REFUSALS, turn_wait_s=MAX_WAIT_S)

    async def give_up(self, connection: AsyncConnection, due: DuePull, verdict: Verdict, error: Exception) -> None:
        """Store that the pull request is given up, and say it on the issue with the full reason.

        The page of the job says it, too.
        """
        reason, job = str(error), due.job
        await self.store(connection, due.row, abandoned=reason, trouble=None)
        log.error("pull.abandoned", **due.log_context, reason=reason)
        if job.thread is not None:
            body, occasion = replies.render_pull_failed(reason), f"pull of {job.id} failed, {due.row.note_url}"
            await write_reply(connection, self.context, job.repository, job.thread, occasion, body)
