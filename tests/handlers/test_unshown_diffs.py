"""A job of a private repository without a page: only a diff that is in a comment can become a pull request."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest

from handlers.cases import casebook
from handlers.effects.drain import drain
from handlers.effects.outbox import Comments
from handlers.pulls.pulls import Pulls
from handlers.text.sanitize import fence
from handlers.text.shown_patch import show_patch
from handlers.words.report_comment import MAX_DIFF_WITHOUT_PAGE, EndedJob, draft_report, shows_diff
from runner.checks.verification import Check, CheckKind, CheckRun, Side
from runner.model.job import FileChange, JobState, Report
from runner.rows import job_rows
from tests.handlers.test_notes_again import ISSUE, Thread, open_thread
from tests.handlers.test_report_comment import done, make_context, result
from tests.support.jobs import NOON, make_job
from tests.support.model_machine import CHANGE
from tests.support.patches import render_patch

JOB = "0000000001"
DIFF = fence(show_patch(render_patch([CHANGE]), ()).text, "diff")


async def report(thread: Thread, body: str) -> None:
    async with thread.db.write() as connection:
        job = await job_rows.fetch_job(connection, JOB)
        assert job
        await casebook.insert_reply(connection, casebook.draft_reply("report", "report", job, body, thread.clock()))
    await drain(Comments(thread.context))
    thread.clock.forward(60)


@pytest.mark.parametrize(("body", "opened"), [(f"The diff:\n\n{DIFF}", 1), ("GitHub rejected this text.", 0)])
async def test_a_note_counts_only_if_the_posted_report_has_the_diff(tmp_path: Path, body: str, opened: int) -> None:
    async with open_thread(tmp_path) as thread:
        thread.github.is_private = True
        await thread.stand(JOB, 1, private=True)
        await report(thread, body)
        await thread.work(thread.note())
        await drain(Pulls(thread.context))
        assert len(thread.github.opened) == opened
        refused = [answer for answer in await thread.answers() if "nobody could read all of it" in answer]
        assert len(refused) == 1 - opened


async def test_a_report_that_github_rejects_links_no_page_that_does_not_exist(tmp_path: Path) -> None:
    async with open_thread(tmp_path) as thread:
        thread.github.is_private = True
        await thread.stand(JOB, 1, private=True)
        thread.github.rejects = "```diff"
        await report(thread, f"The diff:\n\n{DIFF}")
        thread.clock.forward(60)
        await drain(Comments(thread.context))
        (said,) = thread.github.threads[ISSUE]
        assert "The operator of this App can read it." in said.body
        assert "https://ptq" not in said.body


LONG = ("word " * 12 + "\n") * 70


def make_checks() -> Iterable[Check]:
    """As long as they can be."""
    for number in range(40):
        runs = {
            side: [CheckRun(1, timed_out=False, words=f"{side}Error: " + "x" * 290)] * 3
            for side in (Side.BASE, Side.CHANGED, Side.TEXT)
        }
        yield Check(JOB, number, CheckKind.ISSUE, "comment by " + "s" * 39, "import x", runs, "t" * 250)


def test_without_a_page_a_diff_that_fits_nowhere_takes_no_room_from_the_report() -> None:
    told = result(patch="+x\n" * 40_000, body="fix staged\n\n## Summary\nFixed.\n\n## Other\nIt was the loop.\n")
    text = draft_report(make_context(url=""), EndedJob(done(), told)).finish()
    assert not shows_diff(text, told, ())
    assert "It was the loop." in text
    assert "looked, found" in text


@pytest.mark.slow
def test_without_a_page_the_diff_has_priority_or_the_report_asks_for_no_note() -> None:
    job = make_job(id=JOB, state=JobState.SUCCEEDED, private=True, started_at=NOON, ended_at=NOON + timedelta(hours=1))
    for size, fits in ((14_000, True), (29_000, False)):
        lines = size // 101
        patch = (
            "diff --git a/new.py b/new.py\nnew file mode 100644\nindex 0000000..1111111\n--- /dev/null\n+++ b/new.py\n"
            f"@@ -0,0 +1,{lines} @@\n" + ("+" + "c" * 99 + "\n") * lines
        )
        assert len(patch) < MAX_DIFF_WITHOUT_PAGE
        body = f"fix staged\n\n## Summary\n{LONG}\n\n## Root cause\n{LONG}\n\n## Other\n{LONG * 10}"
        warnings = tuple(f"`{'f' * 100}{number}` has something odd" for number in range(50))
        change = FileChange("new.py", "100644", b"x")
        told = Report(JOB, body, LONG * 10, "t" * 120, "", patch, (change,), "ab" * 32, warnings=warnings)
        text = draft_report(make_context(), EndedJob(job, told, checks=[*make_checks()])).finish()
        assert (shows_diff(text, told, ()), "/ptq pr" in text, "/ptq retry" in text) == (fits, fits, not fits)
