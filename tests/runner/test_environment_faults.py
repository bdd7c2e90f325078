"""Failures that say nothing about a bug, and those that may be it."""

from __future__ import annotations

import pytest

from runner.checks.environment_faults import EnvironmentFault, FaultKind, find_fault
from runner.checks.verification import Check, CheckKind, CheckRun, CheckVerdict, Side, judge

TRACEBACK = 'Traceback (most recent call last):\n  File "repro.py", line 1, in <module>\n'


@pytest.mark.parametrize(
    ("words", "kind", "name"),
    [
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'widgets'", FaultKind.MISSING_MODULE, "widgets"),
        ("E   ModuleNotFoundError: No module named 'six'", FaultKind.MISSING_MODULE, "six"),
        ("/venv/bin/python: No module named pytest", FaultKind.MISSING_MODULE, "pytest"),
        (
            f"{TRACEBACK}ImportError: /a/lib/libx.so.1: cannot open shared object file: No such file or directory",
            FaultKind.BROKEN_LIBRARY,
            "libx.so.1",
        ),
        (f"{TRACEBACK}ImportError: /a/_C.so: undefined symbol: _ZN2at", FaultKind.BROKEN_LIBRARY, "_C.so"),
        ('  File "repro.py", line 1\n    print "x"\nSyntaxError: Missing parentheses', FaultKind.SYNTAX, ""),
        (f"{TRACEBACK}RuntimeError: No CUDA GPUs are available", FaultKind.MISSING_DEVICE, ""),
        (f"{TRACEBACK}AssertionError: Torch not compiled with CUDA enabled", FaultKind.MISSING_DEVICE, ""),
    ],
)
def test_a_failure_of_the_environment_is_known_by_its_last_line(words: str, kind: FaultKind, name: str) -> None:
    assert find_fault(words, 1, timed_out=False, is_script=True) == EnvironmentFault(kind, name)


@pytest.mark.parametrize(
    "words",
    [
        f"{TRACEBACK}ModuleNotFoundError: No module named 'widgets.chunks'",
        f"{TRACEBACK}ImportError: cannot import name 'chunks' from 'widgets'",
        f"{TRACEBACK}SyntaxError: the project compiles code",
        f"{TRACEBACK}AssertionError: No module named 'widgets'",
        f"{TRACEBACK}RuntimeError: CUDA error: an illegal memory access was encountered",
    ],
)
def test_a_failure_that_may_be_the_bug_is_none_of_the_environment(words: str) -> None:
    assert find_fault(words, 1, timed_out=False, is_script=True) is None


def test_a_test_that_fails_with_a_syntax_error_counts() -> None:
    words = "E   SyntaxError: invalid syntax"
    assert find_fault(words, 1, timed_out=False, is_script=False) is None


def test_a_failure_of_the_environment_is_no_reproduction_even_if_the_change_ends_it() -> None:
    missing = CheckRun(1, timed_out=False, words="ModuleNotFoundError: No module named 'widgets'")
    runs = {Side.BASE: [missing] * 3}
    check = Check("0123456789", 1, CheckKind.ISSUE, "the issue", "import widgets", runs)
    assert judge(check, has_change=False).verdict is CheckVerdict.NOT_RUNNABLE
    fixed = {**runs, Side.CHANGED: [CheckRun(0, timed_out=False, words="")] * 3}
    check = Check("0123456789", 1, CheckKind.ISSUE, "the issue", "import widgets", fixed)
    assert judge(check, has_change=True).verdict is CheckVerdict.NOT_RUNNABLE
