"""Judges a repro by what the service itself observes: how scripts and tests end on the base commit and with the change.

Pure. A check is one script or one file of tests. It runs several times on each *side*, each time in a fresh
environment. Output of machines and agents is data, and is never trusted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from runner.changes.patch import list_added_lines
from runner.changes.patch_text import PatchMismatch
from runner.checks.environment_faults import EnvironmentFault, find_fault
from runner.checks.regression_tests import is_for_tests
from runner.checks.signature import count_tests, find_signature, name_failure
from runner.model.job import FileChange

MAX_WORDS = 4_000
"""How much of the end of a run's output is kept, in characters."""

NOT_RUNNABLE = (126, 127)
"""A shell's exit statuses for a program that cannot run or is missing (POSIX, "Exit Status for Commands")."""

NO_TESTS = (4, 5)
"""pytest's exit statuses for invalid arguments, and for no matching test (`pytest.ExitCode`)."""


BUILT = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".m", ".mm", ".pxd", ".pyx", ".rs")
"""The suffixes of files that must be built before they run."""

READS_SOURCE = re.compile(
    rb"\b(?:triton|torch\.jit|jit\.script|getsource|getsourcelines|runpy|cutlass|cute|warp|taichi|helion|numba)\b"
)
"""Python whose source text is also read at run time."""


class CheckKind(StrEnum):
    """The source of a check."""

    ISSUE = "issue"
    """A script in the issue."""
    AGENT = "agent"
    """The agent's own `repro.py`."""
    KEPT = "kept"
    """The `repro.py` of an earlier attempt, which the new agent may have replaced."""
    TESTS = "tests"
    """The tests that a change adds, or changes, in one file."""


class Side(StrEnum):
    """What a check runs on."""

    BASE = "base"
    CHANGED = "changed"
    """The base commit with the whole change, rebuilt."""
    TEXT = "text"
    """The change only in the files' text, while the base's code runs. A script that looks for the bug still finds it; a
    script that looks for the patch does not."""


class CheckVerdict(StrEnum):
    """What a check has shown."""

    VERIFIED = "verified"
    REPRODUCED = "reproduced"
    """It fails on base; there is no change."""
    NOT_RUNNABLE = "not runnable"
    """On base it fails because of its environment, or is not valid, so it says nothing about the bug."""
    SHOWS_NOTHING = "shows nothing"
    """It does not fail on base."""
    GONE = "gone"
    """It was kept from an earlier attempt, and does not fail on this base any more."""
    BREAKS = "breaks"
    """It was kept from an earlier attempt, passes on this base, and fails with the change."""
    NOT_ALWAYS = "not always"
    """On base it fails only sometimes, or in different ways."""
    STILL_FAILS = "still fails"
    FAILS_OTHERWISE = "fails otherwise"
    LOOKS_FOR_PATCH = "looks for the patch"
    LOOKS_AT_PATCH = "looks at the patch"
    """It fails in another way once the change is in the files, although the base's code runs."""
    NAMES_PATCH = "names the patch"
    """It uses names that only the change defines, so it fails on base with or without the bug."""
    UNTRIED = "untried"
    """No part of the change can be in the files without running, so it is unknown whether the check looks for it."""
    NOT_ALL_FAIL = "not all fail"
    """Not all of several tests fail on base."""
    SKIPPED = "skipped"
    """With the change, tests are skipped."""
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class CheckRun:
    """The result of one run."""

    status: int
    """As a shell reports it: 128 plus the signal's number if a signal killed it."""
    timed_out: bool
    words: str
    """The end of its output."""

    @property
    def failed(self) -> bool:
        """Whether it failed or timed out."""
        return self.timed_out or self.status != 0

    @property
    def signature(self) -> str:
        """The failure without parts that change from run to run; empty if there was none."""
        return find_signature(self.words, self.status, timed_out=self.timed_out) if self.failed else ""

    @property
    def failure(self) -> str:
        """The failure in the words of the run; empty if there was none."""
        return name_failure(self.words, self.status, timed_out=self.timed_out) if self.failed else ""


@dataclass(frozen=True, slots=True)
class Check:
    """A script or a file of tests, and the results of its runs."""

    job_id: str
    number: int
    kind: CheckKind
    origin: str
    """Where the script was found, such as `comment by alice`; or the path of the tests."""
    script: str
    """The script; or the names of the tests, one per line."""
    runs: Mapping[Side, Sequence[CheckRun]] = field(default_factory=dict)
    trouble: str | None = None
    """Why some of it was not run, as a clause."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """What a check has shown, with its counts."""

    verdict: CheckVerdict
    failed: Mapping[Side, int]
    total: Mapping[Side, int]
    failure: str = ""
    """How it fails on base, in a machine's words."""
    other_failure: str = ""
    """How it fails with the change, if that differs."""
    new_names: Sequence[str] = ()
    """Names that its script uses and only the change defines."""
    fault: EnvironmentFault | None = None
    """Why it could not run on base."""


def list_sides(kind: CheckKind, *, has_change: bool, has_text: bool) -> tuple[Side, ...]:
    """The sides that a check of this kind runs on, in order. The last one runs the base's code again, if possible."""
    if not has_change:
        return () if kind is CheckKind.TESTS else (Side.BASE,)
    return (Side.BASE, Side.CHANGED, Side.TEXT) if has_text else (Side.BASE, Side.CHANGED)


def find_text(changes: Iterable[FileChange], patch: str, *, is_built: bool) -> list[FileChange]:
    """The part of a change that can be in the files while the base's code runs: it is compiled first, or not imported
    yet.

    Leaves out what is read at each run: data, removed files, new programs, and Python whose source another program
    compiles (Triton, TorchScript). `is_built` says whether sources are built before they run.
    """
    try:
        added = list_added_lines(patch, [*changes])
    except PatchMismatch:
        return []
    return [
        change
        for change in changes
        if change.mode
        and not is_for_tests(change.path)
        and (
            (change.path.endswith(".py") and not _reads_source(change, added.get(change.path, set())))
            or (is_built and change.path.endswith(BUILT))
        )
        and not (change.old_mode is None and _is_program(change))
    ]


def _is_program(change: FileChange) -> bool:
    """Whether a file is also run by its path; then only its text counts."""
    content = change.content or b""
    return change.mode == "100755" or content.startswith(b"#!") or b"__main__" in content


def _reads_source(change: FileChange, added: Collection[int]) -> bool:
    """Whether a file's source was read at run time before the change; added lines do not count."""
    lines = (change.content or b"").split(b"\n")
    return any(READS_SOURCE.search(line) for number, line in enumerate(lines, 1) if number not in added)


def name_environment(job_id: str) -> str:
    """The id, on the machine, of the environment for a job's checks."""
    return hashlib.sha256(f"checks of {job_id}".encode()).hexdigest()[:10]


def judge(check: Check, *, has_change: bool, new_names: Sequence[str] = ()) -> CheckFinding:
    """Judge a check. The finding names `new_names`."""
    sides = list_sides(check.kind, has_change=has_change, has_text=Side.TEXT in check.runs)
    failed = {side: sum(run.failed for run in check.runs.get(side, ())) for side in sides}
    total = {side: len(check.runs.get(side, ())) for side in sides}
    before, after = _list_signatures(check, Side.BASE), _list_signatures(check, Side.CHANGED)
    fault = _find_fault(check)
    verdict = _judge(check, sides, failed, total, before, after, fault)
    return CheckFinding(
        _qualify(check.kind, sides, new_names) if verdict is CheckVerdict.VERIFIED else verdict,
        failed,
        total,
        _describe_first_failure(check.runs.get(Side.BASE, ()), before),
        _describe_first_failure(check.runs.get(Side.CHANGED, ()), after - before),
        new_names,
        fault,
    )


def _find_fault(check: Check) -> EnvironmentFault | None:
    """The first fault of the environment among the runs on base."""
    is_script = check.kind is not CheckKind.TESTS
    faults = (
        find_fault(run.words, run.status, timed_out=run.timed_out, is_script=is_script)
        for run in check.runs.get(Side.BASE, ())
        if run.failed
    )
    return next((fault for fault in faults if fault), None)


def _judge(
    check: Check,
    sides: Sequence[Side],
    failed: Mapping[Side, int],
    total: Mapping[Side, int],
    before: set[str],
    after: set[str],
    fault: EnvironmentFault | None,
) -> CheckVerdict:
    """The first objection to the check, or its success."""
    was_run = all(total[side] and _was_run(check.kind, check.runs[side]) for side in sides)
    if check.trouble or not sides or not was_run:
        return CheckVerdict.NOT_RUN
    if not failed[Side.BASE]:
        return _judge_passing(check.kind, failed)
    if fault:
        return CheckVerdict.NOT_RUNNABLE
    if failed[Side.BASE] < total[Side.BASE] or len(before) > 1:
        return CheckVerdict.NOT_ALWAYS
    if Side.CHANGED not in sides:
        return CheckVerdict.REPRODUCED
    if check.kind is CheckKind.TESTS and any(count_tests(run.words).passed for run in check.runs[Side.BASE]):
        return CheckVerdict.NOT_ALL_FAIL
    if before & after:
        return CheckVerdict.STILL_FAILS
    if after:
        return CheckVerdict.FAILS_OTHERWISE
    if failed.get(Side.TEXT, 1) < total.get(Side.TEXT, 1):
        return CheckVerdict.LOOKS_FOR_PATCH
    if Side.TEXT in sides and _list_signatures(check, Side.TEXT) != before:
        return CheckVerdict.LOOKS_AT_PATCH
    if check.kind is CheckKind.TESTS and any(count_tests(run.words).skipped for run in check.runs[Side.CHANGED]):
        return CheckVerdict.SKIPPED
    return CheckVerdict.VERIFIED


def _judge_passing(kind: CheckKind, failed: Mapping[Side, int]) -> CheckVerdict:
    """The verdict on a check that does not fail on base. A kept script failed on the base of its own attempt."""
    if kind is not CheckKind.KEPT:
        return CheckVerdict.SHOWS_NOTHING
    return CheckVerdict.BREAKS if failed.get(Side.CHANGED) else CheckVerdict.GONE


def _qualify(kind: CheckKind, sides: Sequence[Side], new_names: Collection[str]) -> CheckVerdict:
    """The verdict on a check that saw the difference. The issue's script is older than the patch, so it is trusted."""
    if kind is CheckKind.ISSUE:
        return CheckVerdict.VERIFIED
    if new_names:
        return CheckVerdict.NAMES_PATCH
    return CheckVerdict.VERIFIED if Side.TEXT in sides else CheckVerdict.UNTRIED


def _was_run(kind: CheckKind, runs: Iterable[CheckRun]) -> bool:
    not_run = (*NOT_RUNNABLE, *(NO_TESTS if kind is CheckKind.TESTS else ()))
    return not any(run.status in not_run and not run.timed_out for run in runs)


def _list_signatures(check: Check, side: Side) -> set[str]:
    return {run.signature for run in check.runs.get(side, ()) if run.failed}


def _describe_first_failure(runs: Iterable[CheckRun], signatures: set[str]) -> str:
    return next((run.failure for run in runs if run.signature in signatures and run.failed), "")
