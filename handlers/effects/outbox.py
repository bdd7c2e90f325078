"""Posts our replies on GitHub, and edits them when their text changes.

A comment is posted at most once. The attempt is committed before the request is sent. If the answer is lost, our own
comments are searched for the marker before anything is posted again. The process that sent the request may have crashed
while GitHub still worked on it, so a comment counts as missing only if it is not there `SETTLES` later.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.casebook import CaseLabel, Pull, Reply
from handlers.context import Context
from handlers.effects.drain import FRESH, Due, Effect, NotSent
from handlers.effects.rate_limit import Waiting, take_turns
from handlers.effects.retry_policy import Verdict, judge
from handlers.ports import Comment, GitHubError, NotFound
from handlers.words import replies
from runner.db.database import Database
from runner.db.schema import NOT_AS_WANTED
from runner.db.schema import replies as reply_rows
from runner.model.job import Job
from runner.rows import job_rows

log = structlog.get_logger()

CLOCK_SKEW = timedelta(minutes=10)
"""The most clock skew with GitHub that a search for one of our comments allows for."""


SETTLES = timedelta(seconds=15)
"""The time after which GitHub has either worked on a request or never will. It ends each request after 10 seconds:
https://docs.github.com/en/rest/using-the-rest-api/troubleshooting-the-rest-api#timeouts"""


async def write_reply(
    connection: AsyncConnection,
    context: Context,
    repository: str,
    issue_number: int,
    occasion: str,
    body: str,
    stranger: str | None = None,
) -> None:
    """Store a reply to post. The same occasion in the same repository is answered only once."""
    now = context.now()
    reply_id = casebook.derive_reply_id(f"{repository} {occasion}")
    reply = Reply(
        reply_id,
        "reply",
        repository,
        issue_number,
        body,
        created_at=now,
        next_attempt_at=now,
        final=True,
        stranger=stranger,
    )
    await casebook.insert_reply(connection, reply)


async def was_answered(connection: AsyncConnection, repository: str, occasion: str) -> bool:
    """Whether there is a reply to this occasion."""
    reply_id = casebook.derive_reply_id(f"{repository} {occasion}")
    found = await connection.execute(select(reply_rows.c.id).where(reply_rows.c.id == reply_id))
    return found.one_or_none() is not None


async def reply_once(context: Context, repository: str, issue_number: int, occasion: str, body: str) -> None:
    """`write_reply` in its own transaction."""
    async with context.db.write() as connection:
        await write_reply(connection, context, repository, issue_number, occasion, body)
    context.notify()


async def is_as_posted(context: Context, reply: Reply) -> bool:
    """Whether our comment on GitHub is unchanged. Everybody with write access can edit it.

    Raises `NotFound` if GitHub does not find the comment, which may have been deleted.
    """
    if reply.comment_id is None:
        if reply.is_being_restored:
            raise NotFound(404, "the comment was deleted, and is about to be posted again")
        return True
    shown = (await context.github.fetch_comment(reply.repository, reply.comment_id)).body
    # Our own edit may be in progress.
    texts = {reply.body, reply.posted_body or reply.body}
    return _even_out(shown) in {_even_out(_render(reply, text)) for text in texts}


def _even_out(text: str) -> str:
    """Remove differences that editors and GitHub make: line ends, and whitespace at both ends."""
    return text.replace("\r\n", "\n").strip()


async def write_again(connection: AsyncConnection, context: Context, reply: Reply) -> None:
    """Make the outbox write a comment again, because GitHub does not show it as we posted it.

    A deleted comment is posted again when GitHub has not found it often enough in a row (`retry_policy`).
    """
    fresh = {**FRESH, "abandoned": None, "quiet_since": None}
    await casebook.change_reply(connection, reply, posted_body="", next_attempt_at=context.now(), **fresh)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Replies that are not on GitHub as wanted."""

    waiting: int
    abandoned: int
    reasons: Mapping[str, Mapping[str, int]]
    """The number of replies for each reason, by account."""


async def count_backlog(db: Database) -> Backlog:
    """Count the replies that wait or were given up, and why. Repositories are not named, because some are private."""
    async with db.read() as connection:
        rows = await casebook.fetch_unposted(connection)
    reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for repository, trouble, abandoned, count in rows:
        if why := abandoned or trouble:
            reasons[repository.partition("/")[0]][why] += count
    given_up = sum(count for _, _, abandoned, count in rows if abandoned)
    waiting = sum(count for *_, count in rows) - given_up
    return Backlog(waiting, given_up, {account: dict(counted) for account, counted in reasons.items()})


async def list_troubles(connection: AsyncConnection, job: Job) -> list[str]:
    """Which of a job's comments, pull request and label are not on GitHub, and why, as sentences."""
    names = {"status": "Its status comment", "report": "Its report"}
    things: list[tuple[str, Reply | Pull | CaseLabel]] = [
        (names[reply.kind], reply) for reply in await casebook.fetch_replies_of_job(connection, job.id)
    ]
    if pull := await casebook.fetch_pull(connection, job.id):
        things.append(("Its pull request", pull))
    if label := await casebook.fetch_case_label(connection, job.case_key):
        things.append(("The label of its issue", label))
    given_up = [f"{name} was given up: {thing.abandoned}." for name, thing in things if thing.abandoned]
    return given_up + [f"{name} waits: {thing.trouble}." for name, thing in things if thing.trouble]


class Comments(Effect[Due[Reply]]):
    """Replies that are not on GitHub as wanted, by priority."""

    waits = "reply.waits_for_github"
    waits_for_turn = "reply.waits_for_turn"
    store = staticmethod(casebook.change_reply)
    has_quiet_since = True

    def __init__(self, context: Context, settles: timedelta = SETTLES) -> None:
        super().__init__(context)
        self._settles = settles

    async def fetch_next(self, connection: AsyncConnection, now: datetime, tried: Collection[str]) -> Due[Reply] | None:
        """See `Effect`."""
        reply = await fetch_next_reply(connection, now, tried)
        return Due(reply.id, reply, reply.log_context()) if reply else None

    async def carry_out(self, due: Due[Reply]) -> None:
        """See `Effect`."""
        reply = due.row
        comment = await self._post(reply, await self._find(reply) if reply.is_in_doubt else None)
        shown = {"comment_id": comment.id, "comment_url": comment.url, "commented_at": comment.created_at}
        async with self.context.db.write() as connection:
            await self.store(connection, reply, posted_body=reply.body, **shown, **FRESH)
            if reply.is_new_report:
                await casebook.mark_outdated(connection, reply, self.context.now())
        log.info("reply.posted", reply=reply.id, kind=reply.kind, comment=comment.id)
        self.context.notify()

    async def _find(self, reply: Reply) -> Comment | None:
        """The comment of an earlier attempt, if that attempt worked. Raises `NotSent` while it may still work."""
        github, now = self.context.github, self.context.now()
        login = await github.own_login()
        comments = github.list_comments(reply.repository, reply.issue_number, since=reply.created_at - CLOCK_SKEW)
        ours = [one async for one in comments if one.author == login and one.body.startswith(reply.marker)]
        found = next(iter(ours), None)
        since = reply.quiet_since or now
        if found is None and now < since + self._settles:
            raise NotSent(quiet_since=since, next_attempt_at=since + self._settles)
        return found

    async def _post(self, reply: Reply, found: Comment | None) -> Comment:
        """Create the comment, or edit the existing one. Nothing is sent if the text is there already."""
        github, text = self.context.github, _render(reply, reply.body)
        if found and found.body == text:
            return found
        if comment_id := found.id if found else reply.comment_id:
            return await github.update_comment(reply.repository, comment_id, text, reply.priority)
        return await github.create_comment(reply.repository, reply.issue_number, text, reply.priority)

    def judge(self, due: Due[Reply], error: Exception) -> Verdict:
        """See `Effect`."""
        reply, is_edit = due.row, due.row.comment_id is not None
        verdict = judge(error, reply, priority=reply.priority, has_text=True, is_edit=is_edit)
        if is_edit or not verdict.was_sent or verdict.wait_s is None or isinstance(error, GitHubError):
            return verdict
        # It may have been posted: wait until that is certain.
        return replace(verdict, wait_s=max(verdict.wait_s, self._settles.total_seconds()))

    async def replace_text(self, connection: AsyncConnection, due: Due[Reply], verdict: Verdict) -> bool:
        """Store a short text with a link, unless this was already that text."""
        job = await job_rows.fetch_job(connection, due.row.job_id) if due.row.job_id else None
        root = self.context.find_page_root(job) if job else self.context.public_url
        short = replies.render_shortened(root, due.row.job_id)
        if due.row.body == short:
            return False
        await self.store(connection, due.row, body=short, final=True, **verdict.columns)
        log.warning("reply.shortened", **due.log_context, reason=verdict.trouble)
        return True

    async def give_up(self, connection: AsyncConnection, due: Due[Reply], verdict: Verdict, error: Exception) -> None:
        """See `Effect`. A comment that is being restored, and was deleted, is posted again."""
        if due.row.is_being_restored and due.row.comment_id and isinstance(error, NotFound):
            gone: dict[str, object] = {"comment_id": None, "comment_url": None, "commented_at": None}
            at_once = {"next_attempt_at": self.context.now(), "quiet_since": None}
            # One attempt counts as unanswered, so that the issue is searched for the comment before it is posted.
            await self.store(connection, due.row, **gone, **at_once, **{**FRESH, "attempts": 1})
            log.info("reply.posted_again", **due.log_context)
            return
        await self.store(connection, due.row, abandoned=verdict.trouble, trouble=None, final=True)
        log.error("reply.abandoned", **due.log_context, reason=str(error))


def _render(reply: Reply, body: str) -> str:
    """The comment with its marker, as posted."""
    return f"{reply.marker}\n{body}"


_WAITING = select(
    *(reply_rows.c[name] for name in ("id", "kind", "repository", "issue_number", "comment_id", "final", "created_at"))
).where(NOT_AS_WANTED, reply_rows.c.abandoned.is_(None), reply_rows.c.next_attempt_at <= bindparam("now"))


async def fetch_next_reply(connection: AsyncConnection, now: datetime, tried: Collection[str]) -> Reply | None:
    """The next reply that is not on GitHub as wanted and was not `tried`.

    Only this reply is read completely. The function is called after every write, and reports are long.
    """
    found = await connection.execute(_WAITING, {"now": now})
    waiting = [
        Waiting(
            row.id,
            f"{row.repository}#{row.issue_number}",
            casebook.find_priority(row.kind, is_posted=row.comment_id is not None, final=row.final),
            row.created_at,
        )
        for row in found
        if row.id not in tried
    ]
    if not waiting:
        return None
    first = select(reply_rows).where(reply_rows.c.id == take_turns(waiting)[0].id)
    return casebook.read_reply((await connection.execute(first)).one())
