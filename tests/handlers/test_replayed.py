"""Events that come late, twice, from a bot, or with less in them than GitHub sends: what they may do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from gidgethub import sansio
from sqlalchemy import select

from handlers.commands.own_rules import PATH
from handlers.commands.rights import Person, Surface
from handlers.commands.table import COMMANDS
from handlers.context import Context
from handlers.events import Issue, User
from handlers.jobs.outcomes import report_jobs
from handlers.jobs.start import CLOCK_SKEW, StartRequest
from handlers.ports import GitHub, Labelling
from handlers.rules import RepositoryRules, Role
from handlers.triggers.comments import ACTIONS
from handlers.triggers.router import ROUTER
from runner.agents import AgentSpec
from runner.db.schema import replies
from runner.model.job import Job, JobState
from runner.rows import job_rows
from runner.rows.holds import Hold, fetch_hold, save_hold
from runner.rows.pauses import fetch_pauses
from tests.handlers.asked import NAME, render_commented, render_payload
from tests.support.clock import Clock
from tests.support.jobs import NOON, make_job, open_database
from tests.support.model_github import OURS, ModelGitHub

RULES = RepositoryRules(NAME, "mine", labels={"ptq": "fix"})
ISSUE = 1


class TimelineGitHub(ModelGitHub):
    """It also tells who took a label off, as a test says."""

    remover: User | None = None
    issues_asked = 0

    async def fetch_issue(self, repository: str, issue_number: int) -> Issue:
        self.issues_asked += 1
        return await super().fetch_issue(repository, issue_number)

    async def find_remover(self, repository: str, issue_number: int, label: str) -> User | None:
        return self.remover


class Thread:
    """An issue whose events a test delivers by hand."""

    def __init__(self, context: Context, github: TimelineGitHub, clock: Clock) -> None:
        self.context, self.github, self.clock = context, github, clock
        self.delivered = 0

    async def deliver(self, event: str, payload: dict[str, Any]) -> None:
        self.delivered += 1
        await ROUTER.dispatch(sansio.Event(payload, event=event, delivery_id=f"id-{self.delivered}"), self.context)

    async def comment(self, body: str, at: datetime, **changes: Any) -> None:
        comment = replace(self.github.say(ISSUE, "boss", body), created_at=at, updated_at=at)
        await self.deliver("issue_comment", render_commented(ISSUE, comment) | changes)

    async def tell(self, action: str, label: str = "ptq", by: str = "boss", kind: str = "User") -> None:
        """A delivery about a label, whatever is true."""
        payload = render_payload(ISSUE, by, self.clock(), action=action, label={"name": label})
        await self.deliver("issues", payload | {"sender": {"login": by, "type": kind}})

    async def label(self, label: str = "ptq", by: str = "boss") -> None:
        self.github.labels.setdefault(ISSUE, set()).add(label)
        self.github.labellings.setdefault(ISSUE, []).append(Labelling(User(login=by), self.clock()))
        await self.tell("labeled", label, by)

    async def unlabel(self, label: str = "ptq", by: str = "boss", kind: str = "User") -> None:
        self.github.labels[ISSUE].discard(label)
        await self.tell("unlabeled", label, by, kind)

    async def jobs(self) -> list[Job]:
        async with self.context.db.read() as connection:
            return await job_rows.fetch_recent_jobs(connection, 10)

    async def is_cancelled(self) -> bool:
        (job,) = await self.jobs()
        return job.cancel_requested_at is not None

    async def replies(self) -> list[str]:
        async with self.context.db.read() as connection:
            rows = await connection.execute(select(replies.c.body).where(replies.c.kind == "reply"))
        return [row.body for row in rows]

    async def is_paused(self) -> bool:
        async with self.context.db.read() as connection:
            return bool(await fetch_pauses(connection))


@pytest.fixture
async def thread(tmp_path: Path) -> AsyncIterator[Thread]:
    async with open_database(tmp_path) as database:
        clock = Clock()
        github = TimelineGitHub(clock)
        github.writers.add("boss")
        agents = {"mine": AgentSpec("mine", "command", ("true",))}
        context = Context(cast(GitHub, github), database, {NAME: RULES}, agents, "https://ptq", (), clock, lambda: None)
        yield Thread(context, github, clock)


@pytest.mark.parametrize(("written_s", "ends"), [(-3600, False), (-1, False), (0, True), (1, True)])
async def test_a_cancel_ends_only_a_job_that_was_requested_before_it_was_written(
    thread: Thread, written_s: int, ends: bool
) -> None:
    await thread.label()
    await thread.comment("/ptq cancel", NOON + timedelta(seconds=written_s))
    assert await thread.is_cancelled() is ends
    (reply,) = await thread.replies()
    assert ("Cancelling" in reply) is ends
    assert ("No job is running" in reply) is not ends


async def test_a_job_that_takes_the_place_of_a_lost_one_was_requested_with_it(thread: Thread) -> None:
    await thread.label()
    (first,) = await thread.jobs()
    thread.clock.forward(3600)
    async with thread.context.db.write() as connection:
        lost = await job_rows.move_job(connection, first, JobState.PREPARING, thread.clock(), machine="gpu-1")
        await job_rows.move_job(connection, lost, JobState.LOST, thread.clock())
    await report_jobs(thread.context)
    (again,) = [job for job in await thread.jobs() if job.replaces]
    assert again.requested_at == first.requested_at == NOON
    await thread.comment("/ptq cancel", NOON + timedelta(seconds=1))
    assert next(job for job in await thread.jobs() if job.id == again.id).cancel_requested_at


def test_a_request_by_our_own_clock_counts_as_early_as_githubs_can_have_been() -> None:
    issue = Issue(number=ISSUE, title="It breaks", created_at=NOON, updated_at=NOON)
    request = StartRequest(Person("boss", Surface.PAGE), cast(Any, None), issue, "fix", NOON, "a form")
    assert request.requested_at == NOON
    assert replace(request, by_our_clock=True).requested_at == NOON - CLOCK_SKEW


async def test_an_old_word_that_a_label_was_taken_off_cancels_nothing_while_it_is_on(thread: Thread) -> None:
    await thread.label()
    await thread.tell("unlabeled")
    assert not await thread.is_cancelled()
    await thread.unlabel()
    assert await thread.is_cancelled()


@pytest.mark.parametrize(("said_s", "is_closed", "ends"), [(-60, True, False), (60, False, False), (60, True, True)])
async def test_a_close_takes_back_only_what_was_asked_for_before_it_and_while_the_issue_is_closed(
    thread: Thread, said_s: int, is_closed: bool, ends: bool
) -> None:
    await thread.label()
    thread.github.closed = {ISSUE} if is_closed else set()
    at = thread.clock() + timedelta(seconds=said_s)
    await thread.deliver("issues", render_payload(ISSUE, "boss", at, action="closed"))
    assert await thread.is_cancelled() == ends


async def test_a_closed_issue_without_a_job_is_no_question_to_github(thread: Thread) -> None:
    await thread.deliver("issues", render_payload(ISSUE, "stranger", thread.clock(), action="closed"))
    assert thread.github.issues_asked == 0
    await thread.label()
    asked = thread.github.issues_asked
    await thread.deliver("issues", render_payload(ISSUE, "stranger", thread.clock(), action="closed"))
    assert thread.github.issues_asked == asked + 1


@pytest.mark.parametrize(("now_says", "starts"), [("/ptq fix", True), ("Never mind.", False), (None, False)])
async def test_a_command_that_arrives_late_starts_nothing_if_it_was_withdrawn(
    thread: Thread, now_says: str | None, starts: bool
) -> None:
    comment = thread.github.say(ISSUE, "boss", "/ptq fix")
    thread.clock.forward(2 * 24 * 3600)
    thread.github.delete(comment)
    if now_says:
        thread.github.threads[ISSUE] = [replace(comment, body=now_says)]
    await thread.deliver("issue_comment", render_commented(ISSUE, comment))
    assert bool(await thread.jobs()) is starts
    assert len(await thread.replies()) == 1 - starts


@pytest.mark.parametrize("now_says", ["/ptq cancel", "Let it run.", None])
async def test_a_cancel_that_arrives_late_ends_nothing_if_it_was_withdrawn(
    thread: Thread, now_says: str | None
) -> None:
    await thread.label()
    comment = thread.github.say(ISSUE, "boss", "/ptq cancel")
    thread.clock.forward(20 * 60)
    thread.github.threads[ISSUE] = [replace(comment, body=now_says)] if now_says else []
    await thread.deliver("issue_comment", render_commented(ISSUE, comment))
    assert await thread.is_cancelled() is (now_says == "/ptq cancel")


@pytest.mark.parametrize("is_withdrawn", [False, True])
async def test_a_release_that_arrives_late_discards_nothing_if_it_was_withdrawn(
    thread: Thread, is_withdrawn: bool
) -> None:
    job = make_job(thread=ISSUE, state=JobState.CANCELLED, machine="gpu-1")
    hold = Hold(job.id, "casey", "ssh-ed25519 AAAA", NOON, NOON + timedelta(hours=8), admitted_at=NOON)
    async with thread.context.db.write() as connection:
        await job_rows.insert_job(connection, job)
        await save_hold(connection, hold)
    thread.clock.forward(60)
    comment = thread.github.say(ISSUE, "boss", "/ptq release drop")
    thread.clock.forward(20 * 60)
    if is_withdrawn:
        thread.github.delete(comment)
    await thread.deliver("issue_comment", render_commented(ISSUE, comment))
    async with thread.context.db.read() as connection:
        found = await fetch_hold(connection, job.id)
    assert found is not None
    assert (found.expires_at == hold.expires_at) is is_withdrawn


async def test_a_label_that_was_taken_off_earlier_ends_nothing_that_was_asked_for_since(thread: Thread) -> None:
    await thread.comment("/ptq fix", thread.clock())
    payload = render_payload(
        ISSUE, "boss", thread.clock() - timedelta(hours=1), action="unlabeled", label={"name": "ptq"}
    )
    await thread.deliver("issues", payload)
    assert not await thread.is_cancelled()


async def test_a_comment_needs_the_right_to_each_of_its_commands(thread: Thread) -> None:
    rules = replace(RULES, who_may_start=Role.ADMIN, who_may_open=Role.WRITE)
    thread.context = replace(thread.context, repositories={NAME: rules})
    await thread.comment("/ptq fix\n\n/ptq release", thread.clock())
    assert await thread.jobs() == []
    assert "admin access" in (await thread.replies())[0]


async def test_a_repositorys_own_rules_are_read_where_its_default_branch_is_now(thread: Thread) -> None:
    thread.github.files[PATH] = b'who_may_start = "admin"\n'
    await thread.comment("/ptq fix", thread.clock())
    assert await thread.jobs() == []
    assert "admin access" in (await thread.replies())[0]


async def test_an_old_word_that_a_label_was_put_on_starts_nothing_once_it_is_off(thread: Thread) -> None:
    await thread.tell("labeled")
    await thread.tell("labeled", "ptq:pause")
    assert await thread.jobs() == []
    assert not await thread.is_paused()


async def test_nothing_is_done_for_labels_of_an_issue_that_is_gone(thread: Thread) -> None:
    await thread.label()
    thread.github.moved.add(ISSUE)
    await thread.tell("labeled", "ptq:pause")
    await thread.tell("unlabeled")
    assert not await thread.is_paused()
    assert not await thread.is_cancelled()


async def test_only_people_who_may_pause_end_a_pause_and_others_find_the_label_back(thread: Thread) -> None:
    await thread.label("ptq:pause")
    for _ in range(2):
        await thread.unlabel("ptq:pause", by="triager")
        assert await thread.is_paused()
        assert thread.github.labels[ISSUE] == {"ptq:pause"}
        thread.clock.forward(15 * 60)
    begun, kept = await thread.replies()
    assert "Paused by" in begun
    assert "@triager, new jobs are still paused: only people with write access can end a pause." in kept
    await thread.tell("unlabeled", "ptq:pause")
    assert await thread.is_paused(), "a copy of an old delivery: the label is on"
    await thread.unlabel("ptq:pause")
    assert not await thread.is_paused()
    assert (await thread.replies())[-1] == "Resumed by @boss. New jobs can start again."


async def test_a_pause_label_that_is_removed_again_and_again_is_added_again_four_times_an_hour(thread: Thread) -> None:
    await thread.label("ptq:pause")
    restored = 0
    for _ in range(60):
        await thread.unlabel("ptq:pause", by="triager")
        restored += thread.github.labels[ISSUE] == {"ptq:pause"}
        thread.clock.forward(60)
    assert restored == 4
    assert await thread.is_paused()


async def test_a_bot_ends_no_pause_and_is_not_fought_over_the_label(thread: Thread) -> None:
    await thread.label("ptq:pause")
    await thread.unlabel("ptq:pause", by="tidy[bot]", kind="Bot")
    assert await thread.is_paused()
    assert thread.github.labels[ISSUE] == set()


async def test_a_label_that_pauses_nothing_is_taken_off_by_anyone_and_nothing_is_said(thread: Thread) -> None:
    thread.github.labels[ISSUE] = {"ptq:pause"}
    await thread.unlabel("ptq:pause", by="triager")
    assert await thread.replies() == []
    assert thread.github.labels[ISSUE] == set()


@pytest.mark.parametrize(
    ("event", "action"),
    [("issue_comment", "created"), ("issue_comment", "edited"), ("issues", "labeled"), ("issues", "unlabeled")],
)
async def test_what_a_bot_does_is_not_even_checked(thread: Thread, event: str, action: str) -> None:
    await thread.deliver(event, {"action": action, "sender": {"login": OURS, "type": "Bot"}})


@pytest.mark.parametrize("changes", [{}, {"changes": None}, {"changes": {}}, {"changes": {"body": None}}])
async def test_an_edit_that_does_not_say_what_was_changed_is_no_failure(thread: Thread, changes: Any) -> None:
    await thread.comment("/ptq fix", NOON, action="edited", **changes)
    assert await thread.jobs() == []
    assert await thread.replies() == []


def test_every_command_does_something() -> None:
    assert set(ACTIONS) == {spec.operation for spec in COMMANDS.values()}
