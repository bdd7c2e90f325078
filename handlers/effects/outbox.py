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

import structlog
from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.casebook import CaseLabel, Pull, Reply
from handlers.context import Context
from handlers.effects.rate_limit import Waiting, take_turns
from handlers.effects.retry_policy import MAX_COUNTED, describe_trouble, is_about_the_text, judge
from handlers.ports import Comment, GitHubError, GitHubUnavailable, OverBudget, Worth
from handlers.words import replies
from runner.db.database import Database
from runner.db.schema import replies as reply_rows
from runner.model.job import Job
from runner.rows.claims import ClaimLost

log = structlog.get_logger()

BUDGET_WAIT = timedelta(minutes=1)
"""How soon at the latest a turn to write is asked for again: that is no question to GitHub."""

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
    fresh = {"attempts": 0, "refusals": 0, "trouble": None, "abandoned": None, "quiet_since": None}
    await casebook.change_reply(connection, reply, posted_body="", next_attempt_at=context.now(), **changes, **fresh)


async def post_replies(context: Context, settles: timedelta = SETTLES) -> None:
    """Bring every reply that is due to GitHub, the worthiest first. One that fails waits; the others go on."""
    tried: set[str] = set()
    while True:
        # Looked up anew each time: writes are slow by GitHub's own rules, and a report may have come meanwhile.
        async with context.db.read() as connection:
            reply = await fetch_next_reply(connection, context.now(), tried)
        if reply is None:
            return
        tried.add(reply.id)
        with structlog.contextvars.bound_contextvars(**reply.log_context()):
            await _post(context, reply, settles)


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


class _StillMissing(Exception):  # noqa: N818 - what is the case
    """An earlier attempt may still get through, so nothing was sent."""


async def _post(context: Context, reply: Reply, settles: timedelta) -> None:
    attempt = await _change(context, reply, attempts=min(reply.attempts + 1, MAX_COUNTED))
    try:
        found = await _find(context, reply, settles) if reply.is_in_doubt else None
        comment = await _bring(context, attempt, found)
    except _StillMissing:
        since = reply.quiet_since or context.now()
        await _change(context, attempt, attempts=reply.attempts, quiet_since=since, next_attempt_at=since + settles)
    except OverBudget as error:
        await _await_turn(context, attempt, reply.attempts, error)
    except ClaimLost:
        raise
    except Exception as error:
        await _put_off(context, attempt, error, settles)
    else:
        await _change(
            context,
            attempt,
            posted_body=reply.body,
            comment_id=comment.id,
            comment_url=comment.url,
            commented_at=comment.created_at,
            attempts=0,
            refusals=0,
            trouble=None,
        )
        log.info("reply.posted", reply=reply.id, kind=reply.kind, comment=comment.id)
        context.ring()


async def _await_turn(context: Context, reply: Reply, attempts: int, error: OverBudget) -> None:
    """Nothing was sent, so this was no attempt. A live edit is dropped: what is said in a minute will be newer."""
    trouble = None if reply.worth is Worth.LIVE else describe_trouble(error)
    at = context.now() + min(timedelta(seconds=error.retry_after_s), BUDGET_WAIT)
    since = reply.quiet_since
    await _change(context, reply, attempts=attempts, trouble=trouble, next_attempt_at=at, quiet_since=since)
    log.info("reply.waits_for_turn", reply=reply.id, kind=reply.kind, wait_s=round(error.retry_after_s))


async def _put_off(context: Context, reply: Reply, error: Exception, settles: timedelta) -> None:
    """Try again later, or in a short form where the text is at fault; or never, where GitHub keeps saying no."""
    verdict = judge(error, attempts=reply.attempts, refusals=reply.refusals, editing=reply.comment_id is not None)
    names = {"reply": reply.id, "kind": reply.kind, "reason": str(error)}
    if isinstance(error, GitHubError) and is_about_the_text(error):
        short = replies.render_shortened(context.public_url, reply.job_id)
        if reply.body != short:
            log.warning("reply.shortened", **names)
            changes = {"body": short, "final": True, "trouble": verdict.trouble, "refusals": verdict.refusals}
            await _change(context, reply, **changes)
            context.ring()
            return
        verdict = replace(verdict, wait_s=None)
    if verdict.wait_s is None:
        log.error("reply.abandoned", **names)
        await _change(context, reply, abandoned=verdict.trouble, trouble=None, final=True)
        context.ring()
        return
    is_ours = not isinstance(error, (GitHubError, GitHubUnavailable))
    log.warning("reply.waits_for_github", **names, wait_s=verdict.wait_s, exc_info=is_ours)
    now, wait = context.now(), timedelta(seconds=verdict.wait_s)
    if reply.comment_id is None and not isinstance(error, GitHubError):
        wait = max(wait, settles)
    changes = {"refusals": verdict.refusals, "trouble": verdict.trouble}
    await _change(context, reply, **changes, next_attempt_at=now + wait, quiet_since=now)


async def _bring(context: Context, reply: Reply, found: Comment | None) -> Comment:
    text = _render(reply, reply.body)
    if found and found.body == text:
        return found
    if comment_id := found.id if found else reply.comment_id:
        return await context.github.update_comment(reply.repository, comment_id, text, reply.worth)
    if reply.quiet_since:  # This attempt may get lost like the last one.
        await _change(context, reply, quiet_since=None)
    return await context.github.create_comment(reply.repository, reply.issue_number, text, reply.worth)


def _render(reply: Reply, body: str) -> str:
    """The comment as GitHub gets it."""
    return f"{reply.marker}\n{body}"


async def _find(context: Context, reply: Reply, settles: timedelta) -> Comment | None:
    """The comment that an earlier attempt left, if it got through. Raises `_StillMissing` while it still may."""
    since = reply.created_at - CLOCK_SKEW
    comments = await context.github.list_comments(reply.repository, reply.issue_number, since=since)
    login = await context.github.own_login()
    ours = (comment for comment in comments if comment.author == login and comment.body.startswith(reply.marker))
    found = next(ours, None)
    if found is None and (reply.quiet_since is None or context.now() < reply.quiet_since + settles):
        raise _StillMissing
    return found


async def _change(context: Context, reply: Reply, **changes: object) -> Reply:
    async with context.db.write() as connection:
        return await casebook.change_reply(connection, reply, **changes)


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
