from __future__ import annotations

from handlers.jobs.previous_attempts import MAX_FAILURE, MAX_REPORT, MAX_REPRO, MAX_WORKLOG, recall
from runner.model.job import FileChange, JobState, Report
from tests.support.jobs import make_job

SECRET = "hunter2-of-the-operator"
JOB = make_job(state=JobState.FAILED, failure=f"it said {SECRET}")


def make_report(*paths: str, body: str = "", worklog: str = "", repro: str = "") -> Report:
    changes = tuple(FileChange(path, "100644", b"x") for path in paths)
    return Report(JOB.id, body, worklog, "", repro, "", changes, None)


def test_of_a_long_worklog_the_newest_end_is_kept_and_of_a_long_report_the_start() -> None:
    text = "first " + "x" * 100_000 + " last"
    earlier = recall(make_job(failure=text), make_report(body=text, worklog=text, repro=text), ())
    for kept, limit in (
        (earlier.failure, MAX_FAILURE),
        (earlier.report, MAX_REPORT),
        (earlier.worklog, MAX_WORKLOG),
        (earlier.repro, MAX_REPRO),
    ):
        assert len(kept) == limit
        assert "the original has 100011 characters" in kept
    assert earlier.report.startswith("first")
    assert earlier.failure.startswith("first")
    assert earlier.worklog.endswith("last")


def test_what_fits_is_kept_as_it_is() -> None:
    earlier = recall(make_job(), make_report(body="b" * MAX_REPORT, worklog="w" * MAX_WORKLOG), ())
    assert (earlier.failure, earlier.report, earlier.worklog) == ("", "b" * MAX_REPORT, "w" * MAX_WORKLOG)


def test_no_secret_goes_on_to_another_agent_and_nothing_invisible_does() -> None:
    text = f"key {SECRET} \u202e"
    earlier = recall(JOB, make_report(body=text, worklog=text, repro=text), (SECRET,))
    assert SECRET not in earlier.failure + earlier.report + earlier.worklog + earlier.repro
    assert earlier.report == earlier.worklog == earlier.repro == "key [redacted] ⟨U+202E⟩"


def test_edits_and_configuration_of_agents_are_told_apart() -> None:
    found = {
        paths: (earlier.edited, earlier.configured)
        for paths in ((), ("a.py",), ("AGENTS.md",), ("a.py", "docs/.claude/settings.json"))
        for earlier in (recall(JOB, make_report(*paths), ()),)
    }
    assert list(found.values()) == [(False, False), (True, False), (False, True), (True, True)]


def test_a_job_that_left_nothing_is_recalled_too() -> None:
    earlier = recall(JOB, None, ())
    assert (earlier.report, earlier.worklog, earlier.edited, earlier.configured) == ("", "", False, False)
