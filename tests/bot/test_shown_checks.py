"""The service's own checks as the table of a page."""

from __future__ import annotations

from bot.web.dashboard.checks import show_checks
from runner.checks.verification import Check, CheckKind, CheckRun, Side
from tests.support.jobs import make_job
from tests.support.site import make_report

FAILS = CheckRun(1, False, "Traceback (most recent call last):\n  File 'a', line 1\nAssertionError: 3\n")
PASSES = CheckRun(0, False, "")


def test_a_check_is_a_row_with_what_happened_before_and_after() -> None:
    runs = {Side.BASE: (FAILS,) * 3, Side.CHANGED: (PASSES,) * 3}
    good = Check("1", 1, CheckKind.ISSUE, "comment by alice", "x", runs)
    bad = Check("1", 2, CheckKind.TESTS, "tests/test_a.py", "test_b", {**runs, Side.CHANGED: (PASSES, FAILS)})
    waiting = Check("1", 3, CheckKind.AGENT, "", "x")
    rows = show_checks(make_job(), [good, bad, waiting], make_report())
    assert [(row.name, row.before, row.after, row.verdict, row.doubt) for row in rows] == [
        ("The issue's script, comment by alice", "fails 3 of 3", "passes 3 of 3", "verified", ""),
        (
            "Tests in tests/test_a.py",
            "fails 3 of 3",
            "passes 1 of 2",
            "not verified",
            "after the change, it still fails",
        ),
        ("The agent's repro.py", "", "", "not run yet", ""),
    ]


def test_a_kept_repro_that_no_longer_fails_speaks_for_nothing() -> None:
    runs = {Side.BASE: (PASSES,) * 3, Side.CHANGED: (PASSES,) * 3}
    gone = Check("1", 1, CheckKind.KEPT, "attempt 2", "x", runs)
    broken = Check("1", 2, CheckKind.KEPT, "attempt 2", "x", {**runs, Side.CHANGED: (FAILS,) * 3})
    not_run = Check("1", 3, CheckKind.KEPT, "attempt 2", "x", trouble="the disk is full")
    rows = show_checks(make_job(), [gone, broken, not_run], make_report())
    assert {row.name for row in rows} == {"The repro.py of attempt 2"}
    assert [(row.verdict, row.style) for row in rows] == [
        ("no longer reproduces", "pending"),
        ("not verified", "failed"),
        ("not verified", "pending"),
    ]


def test_a_bug_that_still_reproduces_is_not_shown_as_a_success() -> None:
    check = Check("1", 1, CheckKind.ISSUE, "", "x", {Side.BASE: (FAILS,) * 3})
    (row,) = show_checks(make_job(), [check], None)
    assert (row.verdict, row.style, row.before, row.after) == ("reproduces", "failed", "fails 3 of 3", "")


def test_a_script_that_could_not_run_is_open_and_says_what_to_do() -> None:
    missing = CheckRun(1, False, "ModuleNotFoundError: No module named 'widgets'\n")
    (row,) = show_checks(make_job(), [Check("1", 1, CheckKind.ISSUE, "", "x", {Side.BASE: (missing,) * 3})], None)
    assert (row.verdict, row.style) == ("not verified", "pending")
    assert row.doubt.startswith(
        "widgets is not installed on the machine, so this does not count as the bug. The operator"
    )


def test_runs_that_end_in_the_same_way_are_shown_once() -> None:
    other = CheckRun(1, False, "ValueError: no\n")
    check = Check("1", 1, CheckKind.ISSUE, "", "x", {Side.BASE: (FAILS, FAILS, other), Side.CHANGED: (PASSES,)})
    (row,) = show_checks(make_job(), [check], make_report())
    assert [run.title for run in row.runs] == [
        "Before the change, runs 1 to 2: AssertionError: 3",
        "Before the change, run 3: ValueError: no",
        "After the change, run 1: passes",
    ]
