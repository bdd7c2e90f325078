"""Puts our replies on GitHub and keeps them as they should stand: looks before it posts, then only edits.

A comment is posted at most once however often this runs: the attempt is committed before the request, and after a
lost answer our own marker is looked for (and honoured only in a comment of ours) before anything is posted again. The
process that sent a request may have died, or given up, while GitHub was still at it, so a comment is missing only when
`SETTLES` after that it is not there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar

import structlog
from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.casebook import CaseLabel, Pull, Reply
from handlers.context import Context
from handlers.effects.drain import FRESH, Due, Effect, NotSent
from handlers.effects.rate_limit import Waiting, take_turns
from handlers.effects.retry_policy import Verdict, judge
from handlers.ports import Comment, GitHubError
from handlers.words import replies
from runner.db.database import Database
from runner.db.schema import replies as reply_rows
from runner.model.job import Job

log = structlog.get_logger()

CLOCK_SKEW = timedelta(minutes=10)
"""How far our clock and GitHub's may be apart when we look for a comment of ours."""


SETTLES = timedelta(seconds=15)
"""Until GitHub has certainly stored what it was sent, or never will. It ends each request after 10 seconds:
https://docs.github.com/en/rest/using-the-rest-api/troubleshooting-the-rest-api#timeouts"""


async def write_reply(
    connection: AsyncConnection, context: Context, repository: str, issue_number: int, occasion: str, body: str
) -> None:
    """Write down a reply to be posted. The same occasion in the same repository is answered once, ever."""
    now = context.now()
    reply_id = casebook.derive_reply_id(f"{repository} {occasion}")
    reply = Reply(reply_id, "reply", repository, issue_number, body, now, now, final=True)
    await casebook.insert_reply(connection, reply)


async def was_answered(connection: AsyncConnection, repository: str, occasion: str) -> bool:
    """Whether a reply to this occasion was written down before."""
    return await casebook.has_reply(connection, casebook.derive_reply_id(f"{repository} {occasion}"))


async def reply_once(context: Context, repository: str, issue_number: int, occasion: str, body: str) -> None:
    """`write_reply` in a transaction of its own."""
    async with context.db.write() as connection:
        await write_reply(connection, context, repository, issue_number, occasion, body)
    context.ring()


async def is_as_posted(context: Context, reply: Reply) -> bool:
    """Whether GitHub shows our comment as we last posted it. Everybody who may write there can edit it.

    Raises `NotFound` where it was deleted.
    """
    if reply.comment_id is None:
        return True
    shown = (await context.github.fetch_comment(reply.repository, reply.comment_id)).body
    # An edit of ours may be on its way.
    texts = {reply.body, reply.posted_body or reply.body}
    return _even_out(shown) in {_even_out(_render(reply, text)) for text in texts}


def _even_out(text: str) -> str:
    """The text without what editors and GitHub change by themselves: line ends, and blanks at both ends."""
    return text.replace("\r\n", "\n").strip()


async def write_again(connection: AsyncConnection, context: Context, reply: Reply, *, is_gone: bool) -> None:
    """Have a comment written once more that others changed, or posted once more that they deleted (`is_gone`)."""
    changes: dict[str, object] = {"comment_id": None, "comment_url": None, "commented_at": None} if is_gone else {}
    fresh = {**FRESH, "abandoned": None, "quiet_since": None}
    await casebook.change_reply(connection, reply, posted_body="", next_attempt_at=context.now(), **changes, **fresh)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Replies that GitHub does not show as they should stand."""

    waiting: int
    abandoned: int
    reasons: Mapping[str, Mapping[str, int]]
    """By account, and by reason: how many."""


async def count_backlog(db: Database) -> Backlog:
    """How many replies wait or were given up, and why. No repository is named: some are private."""
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
    """What of a job's comments, its pull request and its issue's label did not reach GitHub, and why, in sentences."""
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
    """Replies that GitHub does not show as they should be. The worthiest goes first."""

    waits = "reply.waits_for_github"
    waits_for_turn = "reply.waits_for_turn"
    store = staticmethod(casebook.change_reply)
    marks: ClassVar[Mapping[str, object]] = {"quiet_since": None}  # This attempt may get lost like the last one.

    def __init__(self, context: Context, settles: timedelta = SETTLES) -> None:
        super().__init__(context)
        self._settles = settles

    async def fetch_next(self, connection: AsyncConnection, now: datetime, tried: Collection[str]) -> Due[Reply] | None:
        """See `Effect`."""
        reply = await fetch_next_reply(connection, now, tried)
        return Due(reply.id, reply, {**reply.log_context(), "reply": reply.id, "kind": reply.kind}) if reply else None

    async def carry_out(self, due: Due[Reply]) -> None:
        """See `Effect`."""
        reply = due.row
        comment = await self._bring(reply, await self._find(reply) if reply.is_in_doubt else None)
        shown = {"comment_id": comment.id, "comment_url": comment.url, "commented_at": comment.created_at}
        await self.save(due, posted_body=reply.body, **shown, **FRESH)
        log.info("reply.posted", reply=reply.id, kind=reply.kind, comment=comment.id)
        self.context.ring()

    async def _find(self, reply: Reply) -> Comment | None:
        """The comment that an earlier attempt left, if it got through. Raises `NotSent` while it still may."""
        github, now = self.context.github, self.context.now()
        comments = await github.list_comments(reply.repository, reply.issue_number, since=reply.created_at - CLOCK_SKEW)
        login = await github.own_login()
        ours = (comment for comment in comments if comment.author == login and comment.body.startswith(reply.marker))
        found = next(ours, None)
        since = reply.quiet_since or now
        if found is None and now < since + self._settles:
            raise NotSent(quiet_since=since, next_attempt_at=since + self._settles)
        return found

    async def _bring(self, reply: Reply, found: Comment | None) -> Comment:
        github, text = self.context.github, _render(reply, reply.body)
        if found and found.body == text:
            return found
        if comment_id := found.id if found else reply.comment_id:
            return await github.update_comment(reply.repository, comment_id, text, reply.worth)
        return await github.create_comment(reply.repository, reply.issue_number, text, reply.worth)

    def judge(self, due: Due[Reply], attempts: int, error: Exception) -> Verdict:
        """See `Effect`."""
        reply, is_edit = due.row, due.row.comment_id is not None
        verdict = judge(
            error, attempts=attempts, refusals=reply.refusals, worth=reply.worth, has_text=True, is_edit=is_edit
        )
        if is_edit or not verdict.was_sent or verdict.wait_s is None or isinstance(error, GitHubError):
            return verdict
        # It may have been posted: nobody looks before that is settled.
        return replace(verdict, wait_s=max(verdict.wait_s, self._settles.total_seconds()))

    def after_failure(self) -> Mapping[str, object]:
        """See `Effect`."""
        return {"quiet_since": self.context.now()}

    async def replace_text(self, connection: AsyncConnection, due: Due[Reply], verdict: Verdict) -> bool:
        """A short text with a link, unless this was it."""
        short = replies.render_shortened(self.context.public_url, due.row.job_id)
        if due.row.body == short:
            return False
        tries = {"trouble": verdict.trouble, "refusals": verdict.refusals}
        await self.store(connection, due.row, body=short, final=True, **tries)
        log.warning("reply.shortened", **due.log_context, reason=verdict.trouble)
        return True

    async def give_up(self, connection: AsyncConnection, due: Due[Reply], verdict: Verdict, error: Exception) -> None:
        """See `Effect`."""
        await self.store(connection, due.row, abandoned=verdict.trouble, trouble=None, final=True)
        log.error("reply.abandoned", **due.log_context, reason=str(error))


def _render(reply: Reply, body: str) -> str:
    """The comment as GitHub gets it."""
    return f"{reply.marker}\n{body}"


async def fetch_next_reply(connection: AsyncConnection, now: datetime, tried: Collection[str]) -> Reply | None:
    """The reply whose turn it is, of those that GitHub does not show as they should stand; those `tried` are left out.

    Only the one is read whole: this is asked again after every write, and reports are long.
    """
    unposted = or_(reply_rows.c.comment_id.is_(None), reply_rows.c.posted_body != reply_rows.c.body)
    is_due = (unposted, reply_rows.c.abandoned.is_(None), reply_rows.c.next_attempt_at <= now)
    heads = (reply_rows.c[name] for name in ("id", "kind", "repository", "issue_number", "comment_id", "final"))
    found = await connection.execute(select(*heads, reply_rows.c.created_at).where(*is_due))
    waiting = [
        Waiting(
            row.id,
            f"{row.repository}#{row.issue_number}",
            casebook.find_worth(row.kind, is_posted=row.comment_id is not None, final=row.final),
            row.created_at,
        )
        for row in found
        if row.id not in tried
    ]
    if not waiting:
        return None
    first = select(reply_rows).where(reply_rows.c.id == take_turns(waiting)[0].id)
    return casebook.read_reply((await connection.execute(first)).one())
