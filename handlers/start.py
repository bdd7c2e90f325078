"""The only place that creates a job: freezes the issue, writes the brief, and commits case, job and first reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from secrets import token_hex

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers import casebook, replies
from handlers.brief import render_brief
from handlers.case import Case, CaseState, begin_job
from handlers.context import Context
from handlers.events import Issue, Repository
from handlers.outbox import write_reply
from handlers.ports import Comment
from handlers.rules import PRESETS, RepositoryRules
from handlers.snapshot import Snapshot, freeze_issue
from runner import store
from runner.job import Job, JobState, derive_job_id

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What somebody with permission asked for."""

    repository: Repository
    issue: Issue
    preset: str
    requested_by: str
    triggered_at: datetime
    trigger: str
    """What asked for it, in words that no other request shares: a redelivery derives the same job from it."""
    steering: str = ""
    comment_id: int | None = None
    """The comment that asked, when a comment did."""


async def start_job(context: Context, rules: RepositoryRules, request: StartRequest) -> None:
    """Create the job that was asked for, once; an issue with an active job gets a reply that says so instead."""
    comments = await context.github.list_comments(rules.name, request.issue.number)
    snapshot = _freeze(rules, request, comments, await context.github.own_login())
    prompt = render_brief(request.preset, snapshot, rules, request.steering, nonce=token_hex(8))
    async with context.db.write() as connection:
        job = await _draft_job(connection, context, rules, request, prompt)
        created = await _open(connection, context, job, request)
    if created:
        log.info("job.queued", **job.log_context(), preset=job.preset, by=job.requested_by)
    await _react(context, rules.name, request)
    context.ring()


async def _open(connection: AsyncConnection, context: Context, job: Job, request: StartRequest) -> bool:
    """Insert the job with its case and its status comment; False when there is none to be made."""
    if await store.fetch_job(connection, job.id):
        return False
    case = await casebook.fetch_case(connection, job.case_key) or Case(
        job.case_key, job.repository, job.issue_number, "", CaseState.IDLE, job.created_at, job.created_at
    )
    if case.active_job_id:
        active = await store.fetch_job(connection, case.active_job_id)
        ending = bool(active and active.cancel_requested_at)
        body = replies.render_busy(replies.job_url(context.public_url, case.active_job_id), ending=ending)
        occasion = f"#{job.issue_number} busy {request.trigger}"
        await write_reply(connection, context, job.repository, job.issue_number, occasion, body)
        return False
    await store.insert_job(connection, job)
    await casebook.save_case(connection, begin_job(replace(case, title=request.issue.title), job.id, job.created_at))
    queued_before = await store.count_queued_before(connection, job)
    body = replies.render_status(job, context.public_url, queued_before)
    await casebook.insert_reply(connection, casebook.draft_reply(job.id, "status", job, body, job.created_at))
    return True


def _freeze(rules: RepositoryRules, request: StartRequest, comments: Sequence[Comment], own_login: str) -> Snapshot:
    issue = request.issue
    return freeze_issue(
        repository=rules.name,
        issue_number=issue.number,
        title=issue.title,
        author=issue.user.login if issue.user else "ghost",
        body=issue.body or "",
        labels=[label.name for label in issue.labels],
        created_at=issue.created_at,
        comments=comments,
        frozen_at=request.triggered_at,
        own_login=own_login,
        trigger_comment_id=request.comment_id,
        import_names=rules.import_names,
    )


async def _draft_job(
    connection: AsyncConnection, context: Context, rules: RepositoryRules, request: StartRequest, prompt: str
) -> Job:
    number, now = request.issue.number, context.now()
    return Job(
        id=derive_job_id(f"{rules.name}#{number} {request.trigger}", context.db.secret),
        repository=rules.name,
        private=request.repository.private,
        issue_number=number,
        attempt=await store.count_attempts(connection, rules.name, number) + 1,
        preset=request.preset,
        may_change=PRESETS[request.preset].may_change,
        agent=rules.agent,
        requested_by=request.requested_by,
        clone_url=rules.clone_url or request.repository.clone_url,
        base_branch=rules.base_branch or request.repository.default_branch,
        prompt=prompt,
        state=JobState.QUEUED,
        created_at=now,
        changed_at=now,
    )


async def _react(context: Context, name: str, request: StartRequest) -> None:
    if request.comment_id is None:
        await context.github.react_to_issue(name, request.issue.number, "eyes")
    else:
        await context.github.react_to_comment(name, request.comment_id, "eyes")
