"""A note, and the report that it approves, count as they are on GitHub while the note is carried out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from handlers.cases import casebook
from handlers.effects.drain import drain
from handlers.effects.outbox import Comments
from handlers.ports import Comment
from handlers.pulls.pulls import Pulls
from runner.rows import job_rows
from tests.handlers.test_notes_again import DIGEST, ISSUE, NOTE, Thread, open_thread

JOB = "0000000001"
REPORT = "The diff:\n\n```diff\n+whole = True\n```\n\nThat is all."


@pytest.fixture
async def thread(tmp_path: Path) -> AsyncIterator[Thread]:
    """A report that waits for a note."""
    async with open_thread(tmp_path) as thread:
        await thread.stand(JOB, 1)
        async with thread.db.write() as connection:
            job = await job_rows.fetch_job(connection, JOB)
            assert job
            reply = casebook.draft_reply("report", "report", job, REPORT, thread.clock())
            await casebook.insert_reply(connection, reply)
        await drain(Comments(thread.context))
        thread.clock.forward(60)
        yield thread


def find_report(thread: Thread) -> Comment:
    (report,) = [comment for comment in thread.github.threads[ISSUE] if "ptq:report=" in comment.body]
    return report


async def answer(thread: Thread, note: Comment) -> str:
    """What the thread hears of a note."""
    await thread.work(note)
    await drain(Pulls(thread.context))
    before = {comment.id for comment in thread.github.threads[ISSUE]}
    await drain(Comments(thread.context))
    thread.clock.forward(60)
    (said,) = [one for one in thread.github.threads[ISSUE] if one.id not in before and "ptq:reply=" in one.body]
    return said.body.partition("\n")[2]


async def test_a_report_that_others_changed_is_restored_and_the_next_note_counts(thread: Thread) -> None:
    report = find_report(thread)
    thread.github._edit(report.id, report.body.replace("+whole = True", "+whole = False"))
    assert (await answer(thread, thread.note())).startswith("The report comment was changed on GitHub after ptq-bot")
    assert thread.github.opened == []
    assert find_report(thread) == report
    assert (await answer(thread, thread.note())).startswith("draft pull request #")


async def test_a_report_that_was_deleted_is_posted_again_and_the_next_note_counts(thread: Thread) -> None:
    report = find_report(thread)
    thread.github.delete(report)
    assert (await answer(thread, thread.note())).startswith("The report comment was deleted on GitHub, so")
    assert thread.github.opened == []
    again = find_report(thread)
    assert (again.id > report.id, again.body) == (True, report.body)
    assert (await answer(thread, thread.note())).startswith("draft pull request #")


async def test_what_an_editor_does_to_line_ends_is_no_change(thread: Thread) -> None:
    report = find_report(thread)
    thread.github._edit(report.id, report.body.replace("\n", "\r\n") + "\r\n")
    assert (await answer(thread, thread.note())).startswith("draft pull request #")


async def test_a_report_that_we_are_changing_ourselves_counts_before_and_after(thread: Thread) -> None:
    report = find_report(thread)
    async with thread.db.write() as connection:
        (reply,) = await casebook.fetch_reports_of(connection, "octo/widgets", ISSUE)
        await casebook.change_reply(connection, reply, body="Shorter.")
    thread.github._edit(report.id, f"{reply.marker}\nShorter.")  # Its answer is still on its way.
    assert (await answer(thread, thread.note())).startswith("draft pull request #")


async def test_a_note_costs_one_question_about_the_report_and_one_about_itself(thread: Thread) -> None:
    await answer(thread, thread.note())
    assert len(thread.github.fetched_comments) == 2


async def test_a_note_that_was_deleted_before_it_was_carried_out_opens_nothing(thread: Thread) -> None:
    note = thread.note()
    await thread.work(note)
    thread.github.delete(note)
    assert "the comment with the note was deleted" in await answer(thread, note)
    assert thread.github.opened == []
    assert list(thread.github._branches) == ["main"]


@pytest.mark.parametrize(
    "text",
    [
        "Sorry, I was wrong.",
        NOTE.replace("was indeed left out", "was not left out at all"),
        NOTE.replace("\n\n", ' --title "Another one"\n\n', 1),
        NOTE.replace(DIGEST[:12], "0" * 12),
        f"> {NOTE}",
    ],
)
async def test_a_note_that_was_edited_before_it_was_carried_out_opens_nothing(thread: Thread, text: str) -> None:
    note = thread.note()
    await thread.work(note)
    thread.github._edit(note.id, text)
    assert "the comment with the note was edited after it was read" in await answer(thread, note)
    assert thread.github.opened == []


@pytest.mark.parametrize("text", [NOTE.replace("\n", "\r\n"), f"Thank you!\n\n{NOTE}", f"{NOTE}\n\n/ptq status"])
async def test_an_edit_that_leaves_the_note_as_it_was_changes_nothing(thread: Thread, text: str) -> None:
    note = thread.note()
    await thread.work(note)
    thread.github._edit(note.id, text)
    assert (await answer(thread, note)).startswith("draft pull request #")
