"""A note, and the report that it approves, count as they are on GitHub while the note is carried out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from handlers.cases import casebook
from handlers.effects.drain import drain
from handlers.effects.outbox import Comments, write_reply
from handlers.effects.retry_policy import MAX_ABSENCES
from handlers.ports import Comment
from handlers.pulls.pulls import Pulls
from runner.db.schema import jobs
from runner.model.job import JobState
from runner.rows import job_rows
from tests.handlers.test_notes_again import DIGEST, ISSUE, NAME, NOTE, Thread, open_thread
from tests.support.jobs import NOON, make_job

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
    assert (await answer(thread, thread.note())).startswith("Draft pull request #")


async def test_a_copy_of_the_report_that_others_changed_is_restored_and_the_next_note_counts(thread: Thread) -> None:
    await thread.work(thread.github.say(ISSUE, "boss", "/ptq results"))
    await drain(Comments(thread.context))
    thread.clock.forward(60)
    (copy,) = [one for one in thread.github.threads[ISSUE] if "The last report again" in one.body]
    thread.github._edit(copy.id, copy.body.replace("```diff", "```diff\n+harmless = True"))
    assert (await answer(thread, thread.note())).startswith("The report comment was changed on GitHub after ptq-bot")
    assert thread.github.opened == []
    assert copy in thread.github.threads[ISSUE]
    thread.github.delete(copy)
    assert (await answer(thread, thread.note())).startswith("Draft pull request #")


async def test_a_copy_that_others_changed_counts_in_the_thread_of_an_older_pull_request_too(thread: Thread) -> None:
    numbers = {"00000000a1": 101, "00000000a2": 102}
    async with thread.db.write() as connection:
        for attempt, (job_id, number) in enumerate(numbers.items(), 2):
            await job_rows.insert_job(
                connection, make_job(id=job_id, attempt=attempt, thread=ISSUE, state=JobState.SUCCEEDED)
            )
            at = NOON + timedelta(seconds=attempt)
            pull = casebook.Pull(
                job_id, "1" * 64, "note", "boss", "https://x", "b", at, next_attempt_at=at, number=number
            )
            await casebook.save_pull(connection, pull)
        await write_reply(connection, thread.context, NAME, 101, "results", f"The last report again: {DIGEST[:12]}")
    await drain(Comments(thread.context))
    thread.clock.forward(60)
    (copy,) = thread.github.threads[101]
    thread.github._edit(copy.id, copy.body.replace("The last", "The harmless"))
    assert (await answer(thread, thread.note())).startswith("The report comment was changed on GitHub after ptq-bot")


async def test_a_report_of_a_private_repository_is_not_posted_in_a_public_one_of_its_name(thread: Thread) -> None:
    async with thread.db.write() as connection:
        await connection.execute(update(jobs).values(private=True))
    for command in ("results", "retry"):
        await thread.work(thread.github.say(ISSUE, "boss", f"/ptq {command}"))
        await drain(Comments(thread.context))
        said = thread.github.threads[ISSUE][-1].body
        assert "while this repository was private" in said
        assert "```diff" not in said


async def restore(thread: Thread) -> None:
    """The outbox tries the report until the longest row of absences is over."""
    for _ in range(MAX_ABSENCES + 1):
        thread.clock.forward(300)
        await drain(Comments(thread.context))


async def test_a_report_that_was_deleted_is_posted_again_and_the_next_note_counts(thread: Thread) -> None:
    report = find_report(thread)
    thread.github.delete(report)
    assert (await answer(thread, thread.note())).startswith("GitHub did not find the report comment, so")
    assert thread.github.opened == []
    await restore(thread)
    again = find_report(thread)
    assert (again.id > report.id, again.body) == (True, report.body)
    assert (await answer(thread, thread.note())).startswith("Draft pull request #")


async def test_a_report_that_github_does_not_find_for_a_moment_is_not_posted_twice(thread: Thread) -> None:
    report = find_report(thread)
    thread.github.absent.add(report.id)
    assert (await answer(thread, thread.note())).startswith("GitHub did not find the report comment")
    thread.github.absent.clear()
    await restore(thread)
    assert find_report(thread) == report, "there is one, and it is the one that was there"
    assert (await answer(thread, thread.note())).startswith("Draft pull request #")


async def test_a_report_that_github_does_not_find_for_long_is_looked_for_before_it_is_posted(thread: Thread) -> None:
    report = find_report(thread)
    thread.github.absent.add(report.id)
    await answer(thread, thread.note())
    for _ in range(MAX_ABSENCES - 1):
        thread.clock.forward(300)
        await drain(Comments(thread.context))
    thread.github.absent.clear()
    await restore(thread)
    assert find_report(thread) == report


async def test_a_report_that_github_does_not_find_is_posted_again_however_often_a_note_comes(thread: Thread) -> None:
    thread.github.delete(find_report(thread))
    for _ in range(MAX_ABSENCES + 2):
        assert (await answer(thread, thread.note())).startswith("GitHub did not find the report comment")
        thread.clock.forward(300)
    assert find_report(thread)
    assert (await answer(thread, thread.note())).startswith("Draft pull request #")


async def test_a_report_is_not_posted_again_on_an_issue_that_is_gone(thread: Thread) -> None:
    thread.github.delete(find_report(thread))
    await answer(thread, thread.note())
    thread.github.moved.add(ISSUE)
    for _ in range(2):
        await restore(thread)
    async with thread.db.read() as connection:
        (reply,) = await casebook.fetch_replies_of_job(connection, JOB)
    assert (reply.comment_id, reply.abandoned) == (None, "the issue was deleted, moved, or converted to a discussion")


async def test_what_an_editor_does_to_line_ends_is_no_change(thread: Thread) -> None:
    report = find_report(thread)
    thread.github._edit(report.id, report.body.replace("\n", "\r\n") + "\r\n")
    assert (await answer(thread, thread.note())).startswith("Draft pull request #")


async def test_a_report_that_we_are_changing_ourselves_counts_before_and_after(thread: Thread) -> None:
    report = find_report(thread)
    async with thread.db.write() as connection:
        (reply,) = await casebook.fetch_reports_of(connection, "octo/widgets", ISSUE)
        await casebook.change_reply(connection, reply, body="Shorter.")
    thread.github._edit(report.id, f"{reply.marker}\nShorter.")  # Its answer is still on its way.
    assert (await answer(thread, thread.note())).startswith("Draft pull request #")


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
    assert "the comment with the note was edited later" in await answer(thread, note)
    assert thread.github.opened == []


@pytest.mark.parametrize("text", [NOTE.replace("\n", "\r\n"), f"Thank you!\n\n{NOTE}", f"{NOTE}\n\n/ptq status"])
async def test_an_edit_that_leaves_the_note_as_it_was_changes_nothing(thread: Thread, text: str) -> None:
    note = thread.note()
    await thread.work(note)
    thread.github._edit(note.id, text)
    assert (await answer(thread, note)).startswith("Draft pull request #")
