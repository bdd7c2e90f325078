"""What the ends of runs show, as a table; and what a failure's signature is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runner.checks.python_source import MAX_SOURCE
from runner.checks.regression_tests import choose_words, find_tests, generates_tests, is_for_tests
from runner.checks.signature import MAX_FAILURE, Counts, count_tests, find_signature, name_failure
from runner.checks.verification import Check, CheckKind, CheckRun, CheckVerdict, Side, find_text, judge, list_sides
from runner.model.job import FileChange

GOOD = CheckRun(0, timed_out=False, words="fine")
HANGS = CheckRun(130, timed_out=True, words="")
CRASH = CheckRun(139, timed_out=False, words="")
MISSING = CheckRun(127, timed_out=False, words="sh: 1: python: not found")
NO_TESTS = CheckRun(5, timed_out=False, words="no tests ran in 0.01s")


def fails(words: str = "ValueError: 3 is wrong") -> CheckRun:
    return CheckRun(1, timed_out=False, words=f"Traceback (most recent call last):\n{words}\n")


OTHERWISE = fails("KeyError: 'x'")


def judged(
    kind: CheckKind,
    base: list[CheckRun],
    changed: list[CheckRun] | None = None,
    text: list[CheckRun] | None = None,
    new_names: Sequence[str] = (),
) -> CheckVerdict:
    sides = {Side.BASE: base, Side.CHANGED: changed, Side.TEXT: text}
    runs = {side: runs for side, runs in sides.items() if runs is not None}
    check = Check("a" * 10, 1, kind, "the issue", "x", runs)
    return judge(check, has_change=changed is not None, new_names=new_names).verdict


@pytest.mark.parametrize(
    ("base", "changed", "verdict"),
    [
        ([fails()] * 3, [GOOD] * 3, CheckVerdict.VERIFIED),
        ([CRASH] * 3, [GOOD] * 3, CheckVerdict.VERIFIED),
        ([HANGS] * 3, [GOOD] * 3, CheckVerdict.VERIFIED),
        ([fails("ValueError: 1 at 0xfe"), fails("ValueError: 2 at 0x17")], [GOOD] * 2, CheckVerdict.VERIFIED),
        ([fails()] * 3, [GOOD, GOOD, fails()], CheckVerdict.STILL_FAILS),
        ([fails()] * 3, [GOOD, GOOD, OTHERWISE], CheckVerdict.FAILS_OTHERWISE),
        ([HANGS] * 3, [fails()] * 3, CheckVerdict.FAILS_OTHERWISE),
        ([fails(), GOOD, fails()], [GOOD] * 3, CheckVerdict.NOT_ALWAYS),
        ([fails(), OTHERWISE, fails()], [GOOD] * 3, CheckVerdict.NOT_ALWAYS),
        ([GOOD] * 3, [GOOD] * 3, CheckVerdict.SHOWS_NOTHING),
        ([MISSING] * 3, [MISSING] * 3, CheckVerdict.NOT_RUN),
        ([fails()] * 3, [], CheckVerdict.NOT_RUN),
    ],
)
def test_a_script_of_the_issue_is_verified_by_base_and_change(
    base: list[CheckRun], changed: list[CheckRun], verdict: CheckVerdict
) -> None:
    assert judged(CheckKind.ISSUE, base, changed) is verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ([fails()] * 3, CheckVerdict.VERIFIED),
        ([OTHERWISE] * 3, CheckVerdict.LOOKS_AT_PATCH),
        ([GOOD] * 3, CheckVerdict.LOOKS_FOR_PATCH),
        ([fails(), fails(), GOOD], CheckVerdict.LOOKS_FOR_PATCH),
    ],
)
def test_a_script_of_the_agent_must_not_be_content_with_the_text_of_a_change(
    text: list[CheckRun], verdict: CheckVerdict
) -> None:
    assert judged(CheckKind.AGENT, [fails()] * 3, [GOOD] * 3, text) is verdict
    assert judged(CheckKind.TESTS, [fails()] * 3, [GOOD] * 3, text) is verdict


def test_what_nobody_could_try_on_the_text_of_a_change_is_verified_only_for_the_issues_own_script() -> None:
    assert judged(CheckKind.AGENT, [fails()] * 3, [GOOD] * 3) is CheckVerdict.UNTRIED
    assert judged(CheckKind.TESTS, [fails()] * 3, [GOOD] * 3) is CheckVerdict.UNTRIED
    assert judged(CheckKind.ISSUE, [fails()] * 3, [GOOD] * 3) is CheckVerdict.VERIFIED


def test_a_script_that_asks_for_names_of_the_change_is_not_verified_and_a_plainer_doubt_comes_first() -> None:
    sides = [fails()] * 3, [GOOD] * 3
    assert judged(CheckKind.AGENT, *sides, [fails()] * 3, ["_FIXED"]) is CheckVerdict.NAMES_PATCH
    assert judged(CheckKind.AGENT, *sides, [GOOD] * 3, ["_FIXED"]) is CheckVerdict.LOOKS_FOR_PATCH
    assert judged(CheckKind.AGENT, *sides, None, ["_FIXED"]) is CheckVerdict.NAMES_PATCH


@pytest.mark.parametrize(
    ("base", "changed", "text", "verdict"),
    [
        ([fails()] * 3, [GOOD] * 3, [fails()] * 3, CheckVerdict.VERIFIED),
        ([fails()] * 3, [fails()] * 3, [fails()] * 3, CheckVerdict.STILL_FAILS),
        ([fails()] * 3, [GOOD] * 3, [GOOD] * 3, CheckVerdict.LOOKS_FOR_PATCH),
        ([GOOD] * 3, [GOOD] * 3, None, CheckVerdict.GONE),
        ([GOOD] * 3, None, None, CheckVerdict.GONE),
        ([GOOD] * 3, [GOOD, fails(), GOOD], None, CheckVerdict.BREAKS),
        ([fails("ModuleNotFoundError: No module named 'torch'")] * 3, [GOOD] * 3, None, CheckVerdict.NOT_RUNNABLE),
        ([MISSING] * 3, [MISSING] * 3, None, CheckVerdict.NOT_RUN),
    ],
)
def test_a_script_that_was_kept_is_judged_like_the_agents_and_may_no_longer_show_the_bug(
    base: list[CheckRun], changed: list[CheckRun] | None, text: list[CheckRun] | None, verdict: CheckVerdict
) -> None:
    assert judged(CheckKind.KEPT, base, changed, text) is verdict


def test_without_a_change_a_failing_script_is_reproduced_and_tests_are_not_asked() -> None:
    assert judged(CheckKind.AGENT, [fails()] * 3) is CheckVerdict.REPRODUCED
    assert judged(CheckKind.ISSUE, [GOOD] * 3) is CheckVerdict.SHOWS_NOTHING
    assert list_sides(CheckKind.TESTS, has_change=False, has_text=False) == ()


def test_what_was_cut_short_is_not_verified() -> None:
    runs = {Side.BASE: [fails()] * 3, Side.CHANGED: [GOOD] * 3}
    check = Check("a" * 10, 1, CheckKind.AGENT, "repro.py", "x", runs, trouble="the time was over")
    assert judge(check, has_change=True).verdict is CheckVerdict.NOT_RUN


def test_text_that_is_read_at_each_run_stays_as_in_base() -> None:
    def edit(path: str, content: bytes = b"x = 1\n", old_mode: str | None = "100644") -> FileChange:
        return FileChange(path, "100644", content, old_mode)

    code, built = edit("a/code.py"), edit("csrc/kernel.cu")
    kernel = edit("a/kernel.py", b"import triton\n@triton.jit\ndef f(): ...\n")
    gone = FileChange("a/old.py", None, None, "100644")
    changes = [code, built, kernel, gone, edit("data.yaml"), edit("tests/test_a.py")]
    assert find_text(changes, "", is_built=True) == [code, built]
    assert find_text(changes, "", is_built=False) == [code]


def test_new_modules_stand_in_the_text_of_a_change_and_new_programs_data_and_tests_do_not() -> None:
    def new(path: str, content: bytes = b"x = 1\n", mode: str = "100644") -> FileChange:
        return FileChange(path, mode, content, None)

    module, main = new("a/new.py"), b"if __name__ == '__main__':\n    print()\n"
    programs = [new("a/tool.py", b"#!/usr/bin/python\n"), new("a/tool2.py", main), new("a/tool3.py", mode="100755")]
    changes = [module, *programs, new("a/new.json"), new("tests/test_new.py")]
    assert find_text(changes, "", is_built=False) == [module]


def test_a_change_cannot_say_of_itself_that_its_source_is_read() -> None:
    change = FileChange("a.py", "100644", b"x = 1\n# unlike triton\n", "100644")
    patch = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1,2 @@\n x = 1\n+# unlike triton\n"
    assert find_text([change], patch, is_built=False) == [change]
    assert find_text([change], "no patch", is_built=False) == []


def test_tests_that_nobody_found_were_not_run() -> None:
    assert judged(CheckKind.TESTS, [NO_TESTS], [NO_TESTS], [NO_TESTS]) is CheckVerdict.NOT_RUN
    assert judged(CheckKind.ISSUE, [NO_TESTS], [GOOD]) is CheckVerdict.VERIFIED


def test_a_finding_quotes_both_failures_and_counts() -> None:
    check = Check("a" * 10, 1, CheckKind.ISSUE, "", "", {Side.BASE: [fails()] * 2, Side.CHANGED: [GOOD, OTHERWISE]})
    finding = judge(check, has_change=True)
    assert (finding.failure, finding.other_failure) == ("ValueError: 3 is wrong", "KeyError: 'x'")
    assert (finding.failed[Side.CHANGED], finding.total[Side.CHANGED]) == (1, 2)


PYTEST_ASSERT = """
    def test_sum():
>       assert total([1]) == 3
E       assert 1 == 3
E        +  where 1 = total([1])
tests/test_sums.py:4: AssertionError
=========================== short test summary info ============================
FAILED tests/test_sums.py::test_sum - assert 1 == 3
1 failed in 0.02s
"""
PYTEST_RAISES = "E   torch.cuda.OutOfMemoryError: no memory\n\ntests/x.py:3: OutOfMemoryError\n1 failed in 0.02s\n"


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        ("Traceback ...\nValueError: no\n", "ValueError: no"),
        ("Traceback ...\nAssertionError\n", "AssertionError"),
        ("first\nlast line\n\n", "last line"),
        ("", "exit status 1"),
        (PYTEST_ASSERT, "assert 1 == 3"),
        (PYTEST_RAISES, "torch.cuda.OutOfMemoryError: no memory"),
        ("\x1b[31mValueError: red\x1b[0m\n", "ValueError: red"),
        ("x" * 1000, "x" * MAX_FAILURE),
    ],
)
def test_a_failure_is_named_by_its_own_last_words(words: str, failure: str) -> None:
    assert name_failure(words, 1, timed_out=False) == failure


def test_a_signal_and_the_end_of_patience_have_names() -> None:
    assert name_failure("said", 139, timed_out=False) == "killed by SIGSEGV"
    assert name_failure("said", 250, timed_out=False) == "said"
    assert name_failure("said", 130, timed_out=True) == "did not end in time"


def test_a_signature_leaves_out_what_differs_from_run_to_run() -> None:
    one = find_signature("ValueError: 12 items at 0x7ffe in /tmp/a1/b in 0.12s", 1, timed_out=False)
    two = find_signature("ValueError: 7 items at 0x11 in /tmp/b2/b in 1e-3s", 1, timed_out=False)
    assert one == two == "ValueError: 0 items at 0x in / in 0s"
    assert find_signature("ValueError: twelve", 1, timed_out=False) != one


TESTS = """\
import pytest


@pytest.mark.parametrize("x", [1])
def test_old(x):
    assert x


class TestMore:
    async def test_new(self):
        assert True

    def helper(self):
        pass
"""
PATCH = """\
diff --git a/tests/test_sums.py b/tests/test_sums.py
index 1111111..2222222 100644
--- a/tests/test_sums.py
+++ b/tests/test_sums.py
@@ -7,0 +8,7 @@ def test_old(x):
+
+class TestMore:
+    async def test_new(self):
+        assert True
+
+    def helper(self):
+        pass
"""


def test_the_tests_that_a_change_touches_are_found() -> None:
    changes = [FileChange("tests/test_sums.py", "100644", TESTS.encode(), "100644")]
    assert [*find_tests(changes, PATCH)] == [("tests/test_sums.py", ["TestMore::test_new"])]
    assert [*find_tests(changes, "no patch")] == []


def test_a_touched_decorator_touches_its_test() -> None:
    patch = PATCH.partition("@@")[0] + '@@ -4 +4 @@\n-@old\n+@pytest.mark.parametrize("x", [1])\n'
    changes = [FileChange("tests/test_sums.py", "100644", TESTS.encode(), "100644")]
    assert [*find_tests(changes, patch)] == [("tests/test_sums.py", ["test_old"])]


@pytest.mark.parametrize("content", [b"def broken(", b"\xff\xfe", b"x = 1\n", b"(" * 10_000])
def test_what_is_no_file_of_tests_has_none(content: bytes) -> None:
    changes = [FileChange("tests/test_sums.py", "100644", content, "100644")]
    assert [*find_tests(changes, PATCH)] == []


def test_only_so_many_characters_of_a_change_are_parsed() -> None:
    large = f"{TESTS}#{'x' * (MAX_SOURCE - len(TESTS) - 1)}".encode()
    one = FileChange("tests/test_sums.py", "100644", large, "100644")
    other = FileChange("tests/test_more.py", "100644", TESTS.encode(), "100644")
    patch = PATCH + PATCH.replace("test_sums", "test_more")
    assert [path for path, _ in find_tests([one, other], patch)] == ["tests/test_sums.py"]
    small = FileChange("tests/test_sums.py", "100644", TESTS.encode(), "100644")
    assert [path for path, _ in find_tests([small, other], patch)] == ["tests/test_sums.py", "tests/test_more.py"]


def test_paths_of_tests_are_known_by_name_and_folder() -> None:
    paths = ("test_a.py", "a/b_test.py", "tests/data.json", "a/testing/x.py", "conftest.py", "src/latest/a.py")
    assert [is_for_tests(path) for path in paths] == [True, True, True, False, True, False]


def test_pytest_gets_ids_and_unittest_names() -> None:
    names, pytest_command = ["test_a", "Case::test_b"], "python -m pytest -x"
    assert choose_words(pytest_command, "t.py", names, is_generated=False) == ["./t.py::test_a", "./t.py::Case::test_b"]
    assert choose_words(pytest_command, "t.py", names, is_generated=True) == ["./t.py", "-k", "test_a or test_b"]
    by_name = ["./t.py", "-k", "test_a", "-k", "test_b"]
    assert choose_words("python -m unittest", "t.py", names, is_generated=False) == by_name
    assert generates_tests(b"instantiate_device_type_tests(TestA, globals())\n")


def test_a_large_file_of_tests_is_not_parsed() -> None:
    changes = [FileChange("tests/test_sums.py", "100644", TESTS.encode() + b"a\n" * 200_000, "100644")]
    assert [*find_tests(changes, PATCH)] == []


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        ("=== 1 failed, 29 passed in 0.12s ===", Counts(29, 0)),
        ("2 passed, 3 skipped, 1 xfailed in 1.20s", Counts(2, 4)),
        ("Ran 4 tests in 0.001s\n\nFAILED (failures=1, errors=1, skipped=1)", Counts(1, 1)),
        ("Ran 3 tests in 0.001s\n\nOK", Counts(3, 0)),
        ("anything", Counts(0, 0)),
        # More digits than Python reads.
        (f"Ran {'9' * 5_000} tests in 1s", Counts(0, 0)),
        (f"{'9' * 5_000} passed, 3 skipped in 1.20s", Counts(0, 3)),
        (f"Ran 3 tests in 1s\n\nFAILED (failures={'9' * 5_000})", Counts(3, 0)),
    ],
)
def test_runners_of_tests_say_how_many_ended_how(words: str, counts: Counts) -> None:
    assert count_tests(words) == counts


def test_tests_must_all_fail_before_and_none_be_skipped_after() -> None:
    some = fails("ValueError: no\n1 failed, 29 passed in 0.12s")
    assert judged(CheckKind.TESTS, [some], [GOOD], [some]) is CheckVerdict.NOT_ALL_FAIL
    skipped = CheckRun(0, timed_out=False, words="1 skipped in 0.12s")
    assert judged(CheckKind.TESTS, [fails()], [skipped], [fails()]) is CheckVerdict.SKIPPED
