"""Whose turn it is to be written on GitHub, over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from handlers.cases import casebook
from handlers.cases.casebook import Reply
from handlers.effects import outbox
from handlers.ports import WritePriority
from runner.db.database import Database
from runner.rows import job_rows
from tests.support.jobs import NOON, make_job, open_database


def draft(number: int, kind: str, created_s: int, **changes: object) -> Reply:
    """A reply about the issue of this number. `created_s` is in seconds after noon."""
    job = make_job(id=f"{number:010}", thread=number)
    reply = casebook.draft_reply(f"{kind}-{number}", kind, job, "news", NOON + timedelta(seconds=created_s))
    return replace(reply, **changes)  # type: ignore[arg-type]


async def list_in_turn(database: Database, replies: Sequence[Reply]) -> list[str]:
    async with database.write() as connection:
        for number in sorted({reply.issue_number for reply in replies}):
            await job_rows.insert_job(connection, make_job(id=f"{number:010}", thread=number))
        for reply in replies:
            await casebook.insert_reply(connection, reply)
    found: list[str] = []
    async with database.read() as connection:
        while following := await outbox.fetch_next_reply(connection, NOON + timedelta(hours=1), found):
            found.append(following.id)
    return found


async def test_first_words_and_reports_do_not_queue_behind_edits(database_url: str) -> None:
    posted = {"comment_id": 1, "posted_body": "old"}
    replies = [
        *(draft(number, "status", number, **posted) for number in range(1, 4)),
        draft(4, "status", 4, final=True, **posted),
        draft(5, "reply", 5, job_id=None),
        draft(6, "report", 6),
        draft(7, "status", 7),
    ]
    async with open_database(database_url) as database:
        order = await list_in_turn(database, replies)
    assert order == ["report-6", "status-7", "reply-5", "status-4", "status-1", "status-2", "status-3"]


async def test_what_is_not_due_has_no_turn(database_url: str) -> None:
    later = NOON + timedelta(hours=2)
    replies = [
        draft(1, "report", 1, next_attempt_at=later),
        draft(2, "report", 2, abandoned="GitHub refused it"),
        draft(3, "report", 3, comment_id=1, posted_body="news"),
    ]
    async with open_database(database_url) as database:
        assert await list_in_turn(database, replies) == []


def test_the_first_word_on_a_job_is_worth_as_much_as_its_report() -> None:
    assert draft(1, "status", 0).priority is draft(1, "report", 0).priority is WritePriority.REPORT
    assert draft(1, "status", 0, comment_id=1).priority is WritePriority.LIVE
    assert draft(1, "status", 0, comment_id=1, final=True).priority is WritePriority.STATUS
    assert draft(1, "reply", 0).priority is WritePriority.REPLY
