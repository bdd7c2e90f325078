"""What the service saw of a repro, as people read it; whatever scripts, machines and names say."""

from __future__ import annotations

from dataclasses import replace

from markdown_it import MarkdownIt

from handlers.words.verified import Outcome, explain_outcome, find_outcome, render_checks
from runner.checks.verification import Check, CheckKind, CheckRun, Side
from runner.model.job import FileChange, JobState
from tests.handlers.test_report_comment import done, render, result
from tests.support.jobs import make_job

GOOD = CheckRun(0, timed_out=False, words="")
JOB = make_job()
PAGE = f"https://ptq.example/jobs/{JOB.id}#check-"


def fails(words: str) -> CheckRun:
    return CheckRun(1, timed_out=False, words=words)


def check(kind: CheckKind = CheckKind.ISSUE, origin: str = "the issue", number: int = 1, **more: object) -> Check:
    runs = {
        Side.BASE: [fails("ValueError: no")] * 3,
        Side.CHANGED: [GOOD] * 3,
        Side.TEXT: [fails("ValueError: no")] * 3,
    }
    return Check(JOB.id, number, kind, origin, **{"script": "test_a\ntest_b", "runs": runs, **more})  # type: ignore[arg-type]


def say(*checks: Check, secrets: tuple[str, ...] = (), digest: str | None = "ab" * 32) -> list[str]:
    text = render_checks(JOB, checks, result(digest=digest), "https://ptq.example", secrets)
    return text.splitlines()[2:]


def test_each_check_is_a_line_with_its_counts_its_failure_and_its_script() -> None:
    counts = "before: fails 3/3 (`ValueError: no`); after: passes 3/3"
    assert say(check(), check(CheckKind.AGENT, number=2), check(CheckKind.TESTS, "tests/test_a.py", number=3)) == [
        f"- ✅ **the issue's repro**: {counts} ([script]({PAGE}1))",
        f"- ✅ **the agent's repro**: {counts} ([script]({PAGE}2))",
        f"- ✅ **2 regression tests** in `tests/test_a.py`: {counts} ([tests]({PAGE}3))",
    ]


def test_what_could_not_be_tried_has_a_mark_of_its_own_but_for_the_issues_script() -> None:
    runs = {Side.BASE: [fails("ValueError: no")] * 3, Side.CHANGED: [GOOD] * 3}
    issue, agent, tests = say(
        check(runs=runs), check(CheckKind.AGENT, runs=runs), check(CheckKind.TESTS, "a.py", runs=runs)
    )
    assert issue.startswith("- ✅ **the issue's repro**")
    for line in (agent, tests):
        assert line.startswith("- ❔ ")
        assert "; **not verified**: it could not be tested whether it looks for the patch (" in line


def test_a_kept_repro_is_named_after_its_attempt_and_warns_only_if_it_speaks_against_the_change() -> None:
    def kept(base: list[CheckRun], changed: list[CheckRun], trouble: str | None = None) -> str:
        (line,) = say(
            check(CheckKind.KEPT, "attempt 3", runs={Side.BASE: base, Side.CHANGED: changed}, trouble=trouble)
        )
        return line.partition(" ([script]")[0]

    bad, good, rest = [fails("ValueError: no")] * 3, [GOOD] * 3, "before: fails 3/3 (`ValueError: no`); after: passes"
    (line,) = say(check(CheckKind.KEPT, "attempt 3"))
    assert line == f"- ✅ **the repro of attempt 3**: {rest} 3/3 ([script]({PAGE}1))"
    assert kept(bad, bad) == (
        f"- ⚠️ **the repro of attempt 3**: {rest} 0/3; **not verified**: after the change, it still fails"
    )
    assert kept(good, bad).startswith("- ⚠️ **the repro of attempt 3**: before: fails 0/3; after: passes 0/3 (fails: ")
    assert kept(good, bad).endswith("**the change breaks it**: it passes before the change, and fails after it")
    assert kept(good, good) == (
        "- ❔ **the repro of attempt 3**: before: fails 0/3; after: passes 3/3; "
        "**no longer reproduces**: it passes on this base commit, also without the change"
    )
    assert kept([*bad, GOOD], [GOOD]).startswith("- ❔ **the repro of attempt 3**")
    not_run = "- ❔ **the repro of attempt 3**: **not verified**: it was not run: `the disk is full`"
    assert kept([], [], trouble="the disk is full") == not_run
    missing = [fails("ModuleNotFoundError: No module named 'torch'")] * 3
    assert kept(missing, missing).startswith("- ❔ **the repro of attempt 3**: before: could not run")


def test_a_look_without_an_agent_says_that_a_kept_repro_no_longer_fails() -> None:
    kept = check(CheckKind.KEPT, "attempt 3", runs={Side.BASE: [GOOD] * 3})
    nothing = check(runs={Side.BASE: [GOOD] * 3})
    assert find_outcome(JobState.SUCCEEDED, [kept]) is find_outcome(JobState.SUCCEEDED, [kept, nothing]) is Outcome.GONE
    assert find_outcome(JobState.SUCCEEDED, []) is Outcome.UNSETTLED


def test_a_script_that_passes_in_somebody_elses_comment_settles_nothing() -> None:
    passes = check(origin="comment by mallory", runs={Side.BASE: [GOOD] * 3})
    own = check(runs={Side.BASE: [GOOD] * 3})
    assert find_outcome(JobState.SUCCEEDED, [passes]) is Outcome.UNSETTLED
    assert find_outcome(JobState.SUCCEEDED, [own, passes]) is Outcome.GONE


def test_a_kept_repro_that_no_longer_fails_is_named() -> None:
    kept = check(CheckKind.KEPT, "attempt 3", runs={Side.BASE: [GOOD] * 3})
    (line,) = say(kept, digest=None)
    assert "fails 0/3; **no longer reproduces**: it does not fail on this base commit (" in line


PATCH = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -0,0 +1 @@\n+_FIXED = True\n"


def test_a_name_that_only_the_change_has_is_quoted_unless_the_issue_has_it_too() -> None:
    report = replace(result(), patch=PATCH, changes=(FileChange("a.py", "100644", b"_FIXED = True\n", "100644"),))
    seen = check(CheckKind.AGENT, script="import a\nassert hasattr(a, '_FIXED')")
    line = render_checks(JOB, [seen], report, "https://ptq.example", ())
    assert "- ❔ **the agent's repro**" in line
    assert (
        "**not verified**: it uses names that only the change has, and that the request does not mention: `_FIXED` ("
        in line
    )
    told = replace(JOB, prompt=f"{JOB.prompt}\nPlease add `_FIXED` to `a`.")
    assert "- ✅ **the agent's repro**" in render_checks(told, [seen], report, "https://ptq.example", ())
    # An earlier attempt may have written down what it wanted to add. That does not make it part of the issue.
    kept = replace(seen, kind=CheckKind.KEPT, origin="attempt 1")
    assert "- ❔ **the repro of attempt 1**" in render_checks(JOB, [kept], report, "https://ptq.example", ())
    block = '<untrusted-5eed source="report of the earlier attempt">\nAdd `_FIXED`.\n</untrusted-5eed>'
    carried = replace(JOB, prompt=f"{JOB.prompt}\n{block}\n")
    assert "- ❔ **the agent's repro**" in render_checks(carried, [seen], report, "https://ptq.example", ())


def test_without_a_change_only_the_base_is_spoken_of() -> None:
    (line,) = say(check(runs={Side.BASE: [fails("ValueError: no")] * 3}), digest=None)
    assert line == f"- 🔴 **the issue's repro**: fails 3/3 (`ValueError: no`) ([script]({PAGE}1))"
    (line,) = say(check(runs={Side.BASE: [GOOD] * 3}), digest=None)
    assert "fails 0/3; **not verified**: it does not fail, so the bug does not show (" in line


def test_a_script_that_could_not_run_is_open_and_says_what_to_do() -> None:
    missing = check(runs={Side.BASE: [fails("ModuleNotFoundError: No module named 'widgets'")] * 3})
    (line,) = say(missing, digest=None)
    assert line.startswith(
        "- ❔ **the issue's repro**: could not run (`ModuleNotFoundError: No module named 'widgets'`); "
        "**not verified**: `widgets` is not installed on the machine, so this does not count as the bug. The operator"
    )
    ended = replace(JOB, state=JobState.SUCCEEDED)
    assert find_outcome(ended.state, [missing]) is Outcome.UNSETTLED
    assert "`setup`" in explain_outcome(ended, [missing], ())


def test_only_a_script_of_the_issue_is_to_be_corrected_there() -> None:
    broken = {Side.BASE: [fails("SyntaxError: invalid syntax")] * 3}
    issues, agents = say(check(runs=broken), check(CheckKind.AGENT, "", 2, runs=broken), digest=None)
    assert "Correct it in the issue" in issues
    assert "**not verified**: the agent's script is not valid, so this does not count as the bug (" in agents


def test_what_was_not_run_is_said_with_the_reason_and_what_was_never_tried_is_not() -> None:
    (line,) = say(check(runs={}, trouble="the disk is full"), check(runs={}, number=2))
    assert line.startswith("- ⚠️ **the issue's repro**: **not verified**: it was not run: `the disk is full`")
    assert render_checks(JOB, [check(runs={})], None, "https://ptq.example", ()) == ""


def test_words_of_strangers_and_machines_stay_code_in_one_line() -> None:
    evil = "comment by `x` @octocat\n# Fixes #1 <img src=x> ptq"
    said = fails("Error: ` @octocat closes #2 </code> \u202etxt https://user:hunter2@host")
    (line,) = say(check(origin=evil, runs={Side.BASE: [said] * 3, Side.CHANGED: [GOOD] * 3}))
    assert "hunter2" not in line
    (item,) = [token for token in MarkdownIt("commonmark").parse(line) if token.type == "inline"]
    texts = [child.content for child in item.children or () if child.type == "text"]
    assert not any("octocat" in text or "#1" in text or "<" in text for text in texts), texts
    assert "\u202e" not in line


def test_a_secret_in_a_failure_is_taken_out() -> None:
    (line,) = say(check(runs={Side.BASE: [fails("Error: s3cr3t-value")] * 3}), secrets=("s3cr3t-value",), digest=None)
    assert "s3cr3t" not in line


def test_a_confidential_report_says_nothing_of_what_was_seen() -> None:
    report = result(body="security concern\n\n## Summary\nx\n")
    assert "Seen by" not in render(done(), report)
