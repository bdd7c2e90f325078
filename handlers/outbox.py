"""Puts our replies on GitHub and keeps them as they should stand: looks before it posts, then only edits.

A comment is posted at most once however often this runs: the attempt is committed before the request, and after a
lost answer our own marker is looked for (and honoured only in a comment of ours) before anything is posted again.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers import casebook
from handlers.casebook import Reply
from handlers.context import Context
from handlers.ports import Comment, GitHubError, GitHubUnavailable

log = structlog.get_logger()

GONE = 410
"""The issue was deleted: asking again changes nothing."""

MAX_REFUSALS = 16
"""Other refusals (a suspended installation, a locked thread, "submitted too quickly") may end: hours of tries."""

CLOCK_SKEW = timedelta(minutes=10)
"""How far our clock and GitHub's may be apart when we look for a comment of ours."""


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


async def post_replies(context: Context) -> None:
    """Bring every reply that is due to GitHub, the worthiest first. One that fails waits; the others go on."""
    tried: set[str] = set()
    while True:
        # Looked up anew each time: writes are slow by GitHub's own rules, and a report may have come meanwhile.
        async with context.db.read() as connection:
            due = await casebook.fetch_due_replies(connection, context.now())
        reply = next((reply for reply in due if reply.id not in tried), None)
        if reply is None:
            return
        tried.add(reply.id)
        with structlog.contextvars.bound_contextvars(repository=reply.repository, issue=reply.issue_number):
            try:
                await _post(context, reply)
            except Exception:
                log.exception("reply.failed", reply=reply.id, kind=reply.kind)


async def _post(context: Context, reply: Reply) -> None:
    attempt = await _change(context, reply, attempts=reply.attempts + 1)
    try:
        comment = await _bring(context, attempt, seen_before=reply.attempts > 0)
    except (GitHubUnavailable, GitHubError) as error:
        await _put_off(context, attempt, error)
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
        )
        log.info("reply.posted", reply=reply.id, kind=reply.kind, comment=comment.id)
        context.ring()


async def _put_off(context: Context, reply: Reply, error: GitHubUnavailable | GitHubError) -> None:
    """Try again later; or never, where the issue is gone, or GitHub keeps saying no."""
    if isinstance(error, GitHubUnavailable):
        refusals = reply.refusals
        wait_s = max(error.retry_after_s, min(2.0 ** min(reply.attempts, 20), 300.0))
    else:
        refusals = reply.refusals + 1
        wait_s = min(5.0 * 2.0**refusals, 3600.0)
        if error.status == GONE or refusals >= MAX_REFUSALS:
            log.error("reply.abandoned", reply=reply.id, kind=reply.kind, reason=str(error))
            await _change(context, reply, abandoned=str(error), final=True)
            return
    log.warning("reply.waits_for_github", reply=reply.id, kind=reply.kind, reason=str(error), wait_s=wait_s)
    at = context.now() + timedelta(seconds=wait_s)
    await _change(context, reply, refusals=refusals, next_attempt_at=at)


async def _bring(context: Context, reply: Reply, *, seen_before: bool) -> Comment:
    text = f"{reply.marker}\n{reply.body}"
    if reply.comment_id is None and seen_before and (found := await _find(context, reply)):
        if found.body == text:
            return found
        return await context.github.update_comment(reply.repository, found.id, text)
    if reply.comment_id is None:
        return await context.github.create_comment(reply.repository, reply.issue_number, text)
    return await context.github.update_comment(reply.repository, reply.comment_id, text)


async def _find(context: Context, reply: Reply) -> Comment | None:
    """The comment that an earlier attempt left, if it got through."""
    since = reply.created_at - CLOCK_SKEW
    comments = await context.github.list_comments(reply.repository, reply.issue_number, since=since)
    login = await context.github.own_login()
    ours = (comment for comment in comments if comment.author == login and comment.body.startswith(reply.marker))
    return next(ours, None)


async def _change(context: Context, reply: Reply, **changes: object) -> Reply:
    async with context.db.write() as connection:
        return await casebook.change_reply(connection, reply, **changes)
