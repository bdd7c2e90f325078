"""Everything that asks GitHub, on the stand-in, under a clock that jumps to whatever is due next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import aiohttp
from gidgethub.routing import Router
from gidgethub.sansio import Event
from sqlalchemy import func, select

from bot.config.manifest import load_manifest
from bot.github import AppGitHub
from github_standin import StandIn
from handlers.cases import casebook
from handlers.cases.case import Case, CaseState
from handlers.cases.casebook import Pull, Reply
from handlers.commands.permissions import admit
from handlers.commands.rights import Operation
from handlers.context import Context
from handlers.effects.drain import drain
from handlers.effects.outbox import Comments
from handlers.effects.rate_limit import SharedBudget
from handlers.events import Repository, User
from handlers.inbox.inbox import Inbox
from handlers.pulls.pulls import Pulls
from handlers.rules import RepositoryRules
from runner.db.database import Database
from runner.db.schema import deliveries, pulls, replies
from runner.model.job import FileChange, Job, JobState, Report, digest_of
from runner.rows import job_rows
from tests.support.clock import Clock
from tests.support.jobs import make_job, open_database, store_report
from tests.support.patches import render_patch
from tests.support.repository import copy_repository
from tests.support.scripted_github import FAST, app_key_pem, app_public_pem

NAME = "octo/widgets"
URL = "https://ptq.example"
UNHURRIED_S = 30.0
"""Longer than any answer takes on a busy machine: a time-out that nobody ordered is a second mishap."""


@dataclass
class Counter:
    """Where a job's words and its pull request are brought to GitHub."""

    github: StandIn
    db: Database
    clock: Clock
    context: Context
    session: aiohttp.ClientSession
    base: str
    admitted: list[bool] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    async def add_job(self) -> Job:
        job = make_job(thread=1, state=JobState.SUCCEEDED, base_commit=self.base, created_at=self.clock())
        changes = (FileChange("new.py", "100644", b"new = 1\n"),)
        patch, digest = render_patch(changes), digest_of(self.base, changes, b"secret")
        report = Report(job.id, "fix staged\n\n## Summary\nFixed.\n", "", "Fix it", "", patch, changes, digest)
        case = Case(job.case_key, NAME, 1, "Broken", CaseState.AWAITING_NOTE, self.clock(), self.clock())
        async with self.db.write() as connection:
            await job_rows.insert_job(connection, job)
            await store_report(connection, report)
            await casebook.save_case(connection, replace(case, standing_job_id=job.id))
        return job

    async def add_reply(self, job: Job, kind: str = "report", body: str = "Here it is.") -> str:
        reply = casebook.draft_reply(f"{kind}-of-{job.id}", kind, job, body, self.clock())
        async with self.db.write() as connection:
            await casebook.insert_reply(connection, reply)
        return reply.id

    async def edit_reply(self, reply_id: str, body: str) -> None:
        async with self.db.write() as connection:
            await casebook.change_reply(connection, await self.reply(reply_id), body=body)

    async def add_pull(self, job: Job) -> None:
        async with self.db.write() as connection:
            report = await job_rows.fetch_report(connection, job.id)
            assert report
            note, now = "The loop ended early, and now it does not.", self.clock()
            pull = Pull(
                job.id, report.digest or "", note, "alice", "https://note", "ptq/issue-1-x", now, next_attempt_at=now
            )
            await casebook.save_pull(connection, pull)

    async def reply(self, reply_id: str) -> Reply:
        async with self.db.read() as connection:
            row = (await connection.execute(select(replies).where(replies.c.id == reply_id))).one()
        return Reply(**row._mapping)

    async def pull(self, job: Job) -> Pull:
        async with self.db.read() as connection:
            pull = await casebook.fetch_pull(connection, job.id)
        assert pull
        return pull

    def comments(self) -> list[str]:
        """What we have posted on the issue, without the markers."""
        return [comment.body.partition("\n")[2] for comment in self.github.issue(self.name, 1).comments]

    name = NAME

    async def post(self, passes: int = 40, rest_s: float = 0.0) -> None:
        """Let the outbox work until nothing is due any more, or so many times."""
        unposted = (replies.c.comment_id.is_(None)) | (replies.c.posted_body != replies.c.body)
        due = select(func.min(replies.c.next_attempt_at)).where(unposted, replies.c.abandoned.is_(None))
        await self._work(lambda: drain(Comments(self.context)), due, passes, rest_s)

    async def open(self, passes: int = 40, rest_s: float = 0.0) -> None:
        """The same for pull requests."""
        open_ones = (pulls.c.number.is_(None), pulls.c.abandoned.is_(None))
        due = select(func.min(pulls.c.next_attempt_at)).where(*open_ones)
        await self._work(lambda: drain(Pulls(self.context)), due, passes, rest_s)

    async def admit(self, passes: int = 40, rest_s: float = 0.0) -> str:
        """Ask for alice's permission as the inbox does; returns the delivery's state."""
        router, inbox_id = Router(), "guid"

        async def on_ping(event: Event, context: Context) -> None:
            where = Repository(full_name=NAME, private=False, default_branch="main", clone_url="")
            asked = {Operation.START: "/ptq fix"}
            self.admitted.append(await admit(context, where, 1, User(login="alice"), asked) is not None)

        router.add(on_ping, "ping")
        inbox = Inbox(self.db, router, self.clock)
        await inbox.receive(inbox_id, "ping", f"{NAME}#1", b"{}")

        async def step() -> None:
            await inbox.step(self.context)
            await inbox.stop()

        due = select(func.min(deliveries.c.next_attempt_at)).where(deliveries.c.state == "pending")
        await self._work(step, due, passes, rest_s)
        async with self.db.read() as connection:
            return str((await connection.execute(select(deliveries.c.state))).scalar_one())

    async def _work(self, step: Callable[[], Awaitable[None]], due: object, passes: int, rest_s: float) -> None:
        for _ in range(passes):
            await step()
            await asyncio.sleep(rest_s)
            async with self.db.read() as connection:
                at: datetime | None = (await connection.execute(due)).scalar_one()  # type: ignore[call-overload]
            if at is None:
                return
            # What is due at once is another text, and no repeat.
            if at > self.clock():
                self.waits_s.append((at - self.clock()).total_seconds())
                self.clock.forward(self.waits_s[-1])


@asynccontextmanager
async def open_counter(folder: Path, timeout_s: float = UNHURRIED_S) -> AsyncIterator[Counter]:
    """`timeout_s` is how long GitHub may take for an answer."""
    clock, manifest = Clock(), load_manifest()
    timings = replace(FAST, timeout_s=timeout_s, max_wait_s=0.5)
    github = StandIn(
        app_id="12345",
        app_slug="ptq-bot",
        app_public_key=app_public_pem(),
        webhook_secret="secret",
        app_permissions=manifest.permissions,
        app_events=manifest.events,
        clock=clock,
    )
    base = copy_repository(folder / "widgets.git")
    github.add_repository(NAME, folder / "widgets.git")
    github.add_repository("octo/elsewhere", folder / "widgets.git", installed=False)
    github.add_user("alice")
    github.set_permission(NAME, "alice", "write")
    await github.open_issue(NAME, "Broken", "It is broken.", by="alice")
    await github.start()
    async with open_database(folder) as db, aiohttp.ClientSession() as session:
        client = AppGitHub(
            session,
            api_url=github.api_url,
            app_id="12345",
            private_key=app_key_pem(),
            timings=timings,
            now=clock,
            budget=SharedBudget(db, timings.budget(), clock),
        )
        rules = {NAME: RepositoryRules(NAME, "mine")}
        context = Context(client, db, rules, {}, URL, (), clock, lambda: None)
        try:
            yield Counter(github, db, clock, context, session, base)
        finally:
            await session.close()
            await github.stop()
    assert github.complaints == []
