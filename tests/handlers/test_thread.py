"""Everything that we say in a thread, as people read it: `thread.md` is the reviewed snapshot."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from github_standin.pages.markdown import render_markdown
from handlers.commands.table import parse_commands, render_help
from handlers.holds import hold_replies
from handlers.pulls.note import NoteText, find_note_fault, find_option_fault
from handlers.rules import PRESETS, REBASE, VERIFY, Offer, RepositoryRules, Role
from handlers.words import replies, status_comment, tellings
from handlers.words.report_comment import EndedJob, draft_report
from runner.changes.rebase import refuse_unresolved
from runner.model.caps import CapUse, Scope
from runner.model.job import OPERATOR as OPERATOR_OF_APP
from runner.model.job import FileChange, JobKind, JobState, Posts
from runner.rows.holds import Hold
from runner.rows.pauses import OPERATOR, Pause
from tests.handlers.test_report_comment import done, make_context, result
from tests.support.jobs import NOON, make_job, make_telling
from tests.support.meters import make_meter

THREAD = Path(__file__).with_name("thread.md")
URL, REPOSITORY = "https://ptq.example", "octo/widgets"
WORKLOG = "## Read the test\n\n## Run it ten times\n\nIt fails.\n\n## Bisect the last ten commits\n\n## Ask @octocat\n"
TOLD = [
    make_telling(words="Look at `chunks.py` first.", given_at=NOON + timedelta(minutes=2)),
    make_telling(number=2, words="Stop at the cause.", told_by=OPERATOR_OF_APP),
]
LEFT = result(changes=(FileChange("a.py", "100644", b"<<<<<<< onto\none\n", "100644"),))
UNRESOLVED = done(
    preset=REBASE, attempt=4, state=JobState.FAILED, failure="unresolved conflicts in 1 file", conflicts=("a.py",)
)
METER = make_meter(turns=12, tool_calls=34, input_tokens=110_000, output_tokens=10_000, cost_usd=0.42)
RUNNING = make_job(state=JobState.RUNNING, machine="gpu-1")
QUEUED, DONE, LOST = make_job(), done(), done(state=JobState.LOST, failure="machine gpu-1 can no longer be reached")
SWEPT = done(preset=VERIFY, posts=Posts.FINDING, base_commit="b" * 40)
RULES = RepositoryRules(REPOSITORY, agent="mine")
OFFERS = {"claude": Offer(("opus", "sonnet"), ("low", "high")), "mine": Offer()}
PAUSE = Pause(REPOSITORY, 12, "maintainer", datetime(2026, 1, 2, tzinfo=UTC))
DIGEST = "0123456789ab"
HOLD = Hold(RUNNING.id, "maintainer", "ssh-ed25519 AAAA", NOON, NOON + timedelta(hours=8))
OPUS = make_context(url=URL, model="opus")
REBUILT = make_job(kind=JobKind.WORKTREE, series=1, name=DONE.id)


def report(**changes: Any) -> str:
    job = replace(DONE, started_at=NOON, ended_at=NOON + timedelta(seconds=754), **changes)
    return draft_report(OPUS, EndedJob(job, result(), METER)).finish()


SAYINGS: dict[Callable[..., object], list[str]] = {
    draft_report: [
        report(),
        report(state=JobState.CANCELLED, failure="cancelled by @maintainer"),
        draft_report(OPUS, EndedJob(DONE, result(), METER, tellings=TOLD)).finish(),
        draft_report(make_context(url=URL), EndedJob(SWEPT)).finish(),
        draft_report(make_context(url=URL), EndedJob(LOST)).finish(),
        draft_report(OPUS, EndedJob(UNRESOLVED, refuse_unresolved(UNRESOLVED, LEFT), METER)).finish(),
    ],
    render_help: [render_help(RULES)],
    status_comment.render_status: [
        status_comment.render_status(QUEUED, URL, 2),
        status_comment.render_status(
            replace(RUNNING, state=JobState.PREPARING, trouble="its base is being made"), URL, 0
        ),
        status_comment.render_status(RUNNING, URL, 0, replace(METER, last_tool="Bash")),
        status_comment.render_status(RUNNING, URL, 0, METER, worklog=WORKLOG),
        status_comment.render_status(replace(RUNNING, cancel_requested_at=NOON, cancelled_by="maintainer"), URL, 0),
    ],
    status_comment.render_reporting: [status_comment.render_reporting(DONE, URL)],
    status_comment.render_tried_again: [
        status_comment.render_tried_again(make_job(preset="rebase", attempt=2), make_job(attempt=3), URL)
    ],
    status_comment.render_finished_status: [
        status_comment.render_finished_status(DONE, URL, "https://github.com/octo/widgets/issues/1#issuecomment-5"),
        status_comment.render_finished_status(DONE, URL, None),
    ],
    replies.render_confidential: [replies.render_confidential()],
    replies.render_started_again: [replies.render_started_again(make_job(attempt=2), URL)],
    replies.render_lost_twice: [replies.render_lost_twice(LOST)],
    replies.render_not_again: [replies.render_not_again("another job on this issue is running")],
    replies.render_unrenderable: [replies.render_unrenderable(DONE, URL)],
    replies.render_shortened: [replies.render_shortened(URL, "0123456789"), replies.render_shortened(URL, None)],
    replies.render_busy: [replies.render_busy(URL, "1"), replies.render_busy(URL, "1", ending=True)],
    replies.render_option_refused: [replies.render_option_refused("`--model` needs a name", OFFERS, ["gpu-1"])],
    replies.render_unfit_option: [
        replies.render_unfit_option("`--max-turns` needs a whole number, such as `20`"),
    ],
    replies.render_nothing_to_retry: [replies.render_nothing_to_retry()],
    replies.render_preset_for_retry: [replies.render_preset_for_retry("/ptq fix")],
    replies.render_not_a_retry: [replies.render_not_a_retry("/ptq verify")],
    replies.render_not_fresh: [replies.render_not_fresh("/ptq retry")],
    replies.render_retry_refused: [replies.render_retry_refused()],
    replies.render_capped: [
        replies.render_capped(CapUse(Scope.REPOSITORY_DAY, "jobs", 20, 20), "maintainer", is_quota=False),
        replies.render_capped(CapUse(Scope.ISSUE, "jobs", 5, 5), "maintainer", is_quota=True),
    ],
    replies.render_no_permission: [
        replies.render_no_permission("drive-by", REPOSITORY, Role.WRITE, command="/ptq fix"),
        replies.render_no_permission("helper", REPOSITORY, Role.WRITE, helps=True),
    ],
    replies.render_not_configured: [replies.render_not_configured("maintainer", REPOSITORY)],
    replies.render_pull_request_thread: [replies.render_pull_request_thread()],
    replies.render_private_before: [replies.render_private_before()],
    replies.render_withdrawn: [replies.render_withdrawn()],
    replies.render_edited: [replies.render_edited()],
    replies.render_quoted_mail: [replies.render_quoted_mail()],
    replies.render_no_advice: [replies.render_no_advice("ad-hoc")],
    replies.render_presets: [replies.render_presets(PRESETS.values())],
    replies.render_nothing_to_carry_on: [replies.render_nothing_to_carry_on("/ptq simplify")],
    replies.render_nothing_to_rebase: [replies.render_nothing_to_rebase()],
    replies.render_onto_missing: [replies.render_onto_missing("v1.0")],
    replies.render_onto_refused: [replies.render_onto_refused("main")],
    replies.render_up_to_date: [replies.render_up_to_date("main", "b" * 40)],
    replies.render_nothing_to_verify: [replies.render_nothing_to_verify()],
    replies.render_spoken_against: [
        replies.render_spoken_against(["this issue is closed"], "/ptq fix"),
        replies.render_spoken_against(
            ["this issue is assigned to `alice`", "an open pull request would close it (#7)"], "/ptq run slow"
        ),
    ],
    replies.render_issue_changed: [replies.render_issue_changed(12)],
    replies.render_issue_gone: [replies.render_issue_gone(12)],
    replies.render_label_too_late: [replies.render_label_too_late()],
    replies.render_broken_rules: [replies.render_broken_rules("line 3, quotas.issue: Input should be an integer")],
    replies.render_paused: [
        replies.render_paused(PAUSE),
        replies.render_paused(replace(PAUSE, issue_number=OPERATOR)),
    ],
    replies.render_pause_begun: [replies.render_pause_begun("maintainer", "ptq:pause")],
    replies.render_pause_ended: [replies.render_pause_ended("maintainer")],
    replies.render_pause_kept: [
        replies.render_pause_kept("triager", "ptq:pause", Role.WRITE, put_back=True),
        replies.render_pause_kept("tidy[bot]", "ptq:pause", Role.WRITE, put_back=False),
    ],
    replies.render_no_results: [replies.render_no_results()],
    replies.render_again: [replies.render_again("(the report)")],
    replies.render_unknown_command: [
        replies.render_unknown_command("fxi", "fix"),
        replies.render_unknown_command("merge", None),
    ],
    replies.render_idle: [replies.render_idle(URL, None), replies.render_idle(URL, DONE)],
    replies.render_nothing_to_cancel: [replies.render_nothing_to_cancel()],
    replies.render_cancelling: [
        replies.render_cancelling(RUNNING, URL),
        replies.render_cancelling(replace(RUNNING, posts=Posts.NOTHING), URL),
    ],
    tellings.render_told: [tellings.render_told(RUNNING, URL), tellings.render_told(QUEUED, URL)],
    tellings.say_told: [tellings.say_told(make_job(preset=REBASE, kind=JobKind.REBASE))],
    tellings.say_no_words: [tellings.say_no_words()],
    tellings.say_too_long: [tellings.say_too_long(10_000)],
    tellings.say_too_many: [tellings.say_too_many(20)],
    tellings.say_ended: [tellings.say_ended()],
    tellings.say_ending: [tellings.say_ending()],
    tellings.say_at_result: [tellings.say_at_result()],
    tellings.say_no_agent: [tellings.say_no_agent()],
    hold_replies.render_taken_over: [
        hold_replies.render_taken_over(RUNNING, RUNNING, HOLD, 1, None, URL),
        hold_replies.render_taken_over(DONE, REBUILT, HOLD, 2, None, URL),
        hold_replies.render_taken_over(DONE, DONE, HOLD, 1, "colleague", URL),
        hold_replies.render_taken_over(DONE, REBUILT, HOLD, 1, None, URL, signs_in=True),
    ],
    hold_replies.render_only_dropped: [hold_replies.render_only_dropped()],
    hold_replies.render_no_longer_allowed: [
        hold_replies.render_no_longer_allowed(HOLD),
        hold_replies.render_no_longer_allowed(replace(HOLD, waits_for_report=True)),
    ],
    hold_replies.render_held: [
        hold_replies.render_held(HOLD, ()),
        hold_replies.render_held(replace(HOLD, admitted_at=NOON), ()),
        hold_replies.render_held(
            replace(HOLD, trouble="this SSH key already gives access to the machine's account; use another key"), ()
        ),
    ],
    hold_replies.render_not_made: [
        hold_replies.render_not_made(replace(REBUILT, failure="setup failed with exit status 1: false"), ())
    ],
    hold_replies.render_too_late: [hold_replies.render_too_late()],
    hold_replies.render_nothing_to_take_over: [hold_replies.render_nothing_to_take_over()],
    hold_replies.render_takeover_off: [hold_replies.render_takeover_off(REPOSITORY)],
    hold_replies.render_takeover_refused: [hold_replies.render_takeover_refused()],
    hold_replies.render_no_keys: [hold_replies.render_no_keys("maintainer")],
    hold_replies.render_not_taken_over: [
        hold_replies.render_not_taken_over("the job has no environment yet; wait until its agent runs", ())
    ],
    hold_replies.render_nothing_held: [hold_replies.render_nothing_held()],
    hold_replies.render_release_unclear: [hold_replies.render_release_unclear()],
    hold_replies.render_not_released: [
        hold_replies.render_not_released("the job has not ended yet. Try again when its result is stored", ())
    ],
    hold_replies.render_released: [
        hold_replies.render_released("maintainer", replace(DONE, attempt=2), URL),
        hold_replies.render_released("maintainer", None, URL),
    ],
    replies.render_no_diff: [replies.render_no_diff()],
    replies.render_stale_digest: [replies.render_stale_digest("ba9876543210", DIGEST)],
    replies.render_report_changed: [
        replies.render_report_changed(is_absent=False),
        replies.render_report_changed(is_absent=True),
    ],
    replies.render_newer_report: [replies.render_newer_report(DIGEST)],
    replies.render_unshown_diff: [replies.render_unshown_diff()],
    replies.render_pull_opened: [
        replies.render_pull_opened(13, "maintainer"),
        replies.render_pull_opened(13, "maintainer", updated=True),
        replies.render_pull_opened(13, "maintainer", updated=True, drops_edits=True),
    ],
    replies.render_pull_exists: [replies.render_pull_exists(13), replies.render_pull_exists(None)],
    replies.render_pull_failed: [replies.render_pull_failed("GitHub answered 422: no commits between main and x")],
    find_option_fault: [
        find_option_fault(NoteText(None, "", ""), DIGEST) or "",
        find_option_fault(NoteText(None, "", unknown="--titel"), DIGEST) or "",
    ],
    find_note_fault: [fault.reply for note in ("", "ok", "> quoted") if (fault := find_note_fault(note, [], DIGEST))],
}
"""What each function says, by the function."""


def test_the_thread_is_the_reviewed_one() -> None:
    said = [f"## {say.__name__}\n\n" + "\n\n---\n\n".join(bodies) for say, bodies in SAYINGS.items()]
    whole = "\n\n".join(said) + "\n"
    if os.environ.get("PTQ_REWRITE_THREAD"):
        THREAD.write_text(whole)
    assert THREAD.read_text() == whole, (
        "read it, and rewrite it: PTQ_REWRITE_THREAD=1 pytest tests/handlers/test_thread.py"
    )


def test_nothing_that_we_say_is_missing() -> None:
    sayings = {
        function
        for module in (hold_replies, replies, status_comment, tellings)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name.startswith(("render_", "say_")) and function.__module__ == module.__name__
    }
    assert sayings - SAYINGS.keys() == set()


def test_nothing_that_we_say_commands_us_or_shows_its_markup() -> None:
    for bodies in SAYINGS.values():
        for body in bodies:
            assert parse_commands(body) == []
            shown = str(render_markdown(body))
            assert "&lt;details" not in shown
            assert "**" not in shown.replace("<pre>", "")
            assert "None" not in body.removeprefix("Restarted automatically")
