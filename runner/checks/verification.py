"""What the service itself sees of a repro: how scripts and tests end on the base commit, and with the change. Pure.

A check is one script or one file of tests. It is run several times on each *side*, each time where nothing else has run
before; what came of it is judged here. Words of machines and agents are data: nothing in here believes them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from runner.changes.patch import list_added_lines
from runner.changes.patch_text import Untrue
from runner.checks.regression_tests import is_for_tests
from runner.checks.signature import count_tests, find_signature, name_failure
from runner.model.job import FileChange

MAX_WORDS = 4_000
"""Characters that are kept of what one run said last."""

NOT_RUNNABLE = (126, 127)
"""A shell's exit statuses for a program that cannot be run, or is not there (POSIX, "Exit Status for Commands")."""

NO_TESTS = (4, 5)
"""pytest's, where it did not understand its arguments, or no test fits them (`pytest.ExitCode`)."""


BUILT = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".m", ".mm", ".pxd", ".pyx", ".rs")
"""How files are called that run only once they were built."""

READS_SOURCE = re.compile(
    rb"\b(?:triton|torch\.jit|jit\.script|getsource|getsourcelines|runpy|cutlass|cute|warp|taichi|helion|numba)\b"
)
"""Python that goes by its text as well."""


class CheckKind(StrEnum):
    """Whose word a check tests."""

    ISSUE = "issue"
    """A script as it stands in the issue."""
    AGENT = "agent"
    """The agent's own `repro.py`."""
    TESTS = "tests"
    """The tests that a change adds, or changes, in one file."""


class Side(StrEnum):
    """What a check is run on."""

    BASE = "base"
    CHANGED = "changed"
    """The base commit with the whole change, built anew."""
    TEXT = "text"
    """The change in the files' text alone: what runs is the base's code. Whoever looks for the bug still finds it;
    whoever looks for the patch takes it for gone."""


class CheckVerdict(StrEnum):
    """What a check has shown."""

    VERIFIED = "verified"
    REPRODUCED = "reproduced"
    """It fails on base, and there is no change."""
    SHOWS_NOTHING = "shows nothing"
    """It does not fail on base."""
    NOT_ALWAYS = "not always"
    """On base it fails now and then, or now so and now otherwise."""
    STILL_FAILS = "still fails"
    FAILS_OTHERWISE = "fails otherwise"
    LOOKS_FOR_PATCH = "looks for the patch"
    LOOKS_AT_PATCH = "looks at the patch"
    """It fails otherwise once the change stands in the files, although the base's code runs."""
    NAMES_PATCH = "names the patch"
    """It asks for names that only the change has, and so it fails on base with the bug or without."""
    UNTRIED = "untried"
    """Nothing of the change can stand in the files without being run, so nobody knows whether it looks for it."""
    NOT_ALL_FAIL = "not all fail"
    """Of several tests, not all fail on base."""
    SKIPPED = "skipped"
    """With the change, tests are left out."""
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class CheckRun:
    """How one run ended."""

    status: int
    """As a shell would give it: 128 and the number of the signal that killed it."""
    timed_out: bool
    words: str
    """The last of what it said."""

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than well."""
        return self.timed_out or self.status != 0

    @property
    def signature(self) -> str:
        """What the failure was, in words that are the same each time; empty where there was none."""
        return find_signature(self.words, self.status, timed_out=self.timed_out) if self.failed else ""

    @property
    def failure(self) -> str:
        """What the failure was, in its own words; empty where there was none."""
        return name_failure(self.words, self.status, timed_out=self.timed_out) if self.failed else ""


@dataclass(frozen=True, slots=True)
class Check:
    """A script, or a file of tests, and how it ended wherever it was run."""

    job_id: str
    number: int
    kind: CheckKind
    origin: str
    """Where the script stood, such as `comment by alice`; or the path of the tests."""
    script: str
    """The script itself; or the names of the tests, one a line."""
    runs: Mapping[Side, Sequence[CheckRun]] = field(default_factory=dict)
    trouble: str | None = None
    """Why some of it was not run, as a clause."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """What a check has shown, and the counts behind it."""

    verdict: CheckVerdict
    failed: Mapping[Side, int]
    total: Mapping[Side, int]
    failure: str = ""
    """How it fails on base, in a machine's words."""
    other_failure: str = ""
    """How it fails with the change, where that is another way."""
    new_names: Sequence[str] = ()
    """Names that its script asks for and that only the change has."""


def list_sides(kind: CheckKind, *, has_change: bool, has_text: bool) -> tuple[Side, ...]:
    """What a check of a kind is run on, in this order: where it can be, what is run last is again the base's code."""
    if not has_change:
        return () if kind is CheckKind.TESTS else (Side.BASE,)
    return (Side.BASE, Side.CHANGED, Side.TEXT) if has_text else (Side.BASE, Side.CHANGED)


def find_text(changes: Iterable[FileChange], patch: str, *, is_built: bool) -> list[FileChange]:
    """What of a change can be in the files while the base's code runs: of what is compiled first, or not imported yet.

    Left out is what is read anew at each run: data, removed files, new programs, and Python whose source somebody
    else compiles (Triton, TorchScript). `is_built` says whether a build stands between sources and what is run.
    """
    try:
        added = list_added_lines(patch, [*changes])
    except Untrue:
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
    """Whether a file is run by its path as well, where nothing but its text counts."""
    content = change.content or b""
    return change.mode == "100755" or content.startswith(b"#!") or b"__main__" in content


def _reads_source(change: FileChange, added: Collection[int]) -> bool:
    """Whether a file's source was read by more than Python before the change, whose own words do not count."""
    lines = (change.content or b"").split(b"\n")
    return any(READS_SOURCE.search(line) for number, line in enumerate(lines, 1) if number not in added)


def name_environment(job_id: str) -> str:
    """The id, on the machine, of the environments in which a job's checks are run."""
    return hashlib.sha256(f"checks of {job_id}".encode()).hexdigest()[:10]


def judge(check: Check, *, has_change: bool, new_names: Sequence[str] = ()) -> CheckFinding:
    """What a check has shown; of `new_names` the finding speaks."""
    sides = list_sides(check.kind, has_change=has_change, has_text=Side.TEXT in check.runs)
    failed = {side: sum(run.failed for run in check.runs.get(side, ())) for side in sides}
    total = {side: len(check.runs.get(side, ())) for side in sides}
    before, after = _sign(check, Side.BASE), _sign(check, Side.CHANGED)
    verdict = _judge(check, sides, failed, total, before, after)
    return CheckFinding(
        _doubt(check.kind, sides, new_names) if verdict is CheckVerdict.VERIFIED else verdict,
        failed,
        total,
        _first_failure(check.runs.get(Side.BASE, ()), before),
        _first_failure(check.runs.get(Side.CHANGED, ()), after - before),
        new_names,
    )


def _judge(
    check: Check,
    sides: Sequence[Side],
    failed: Mapping[Side, int],
    total: Mapping[Side, int],
    before: set[str],
    after: set[str],
) -> CheckVerdict:
    """The first thing that speaks against it; or that nothing does."""
    was_run = all(total[side] and _was_run(check.kind, check.runs[side]) for side in sides)
    if check.trouble or not sides or not was_run:
        return CheckVerdict.NOT_RUN
    if not failed[Side.BASE]:
        return CheckVerdict.SHOWS_NOTHING
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
    if Side.TEXT in sides and _sign(check, Side.TEXT) != before:
        return CheckVerdict.LOOKS_AT_PATCH
    if check.kind is CheckKind.TESTS and any(count_tests(run.words).skipped for run in check.runs[Side.CHANGED]):
        return CheckVerdict.SKIPPED
    return CheckVerdict.VERIFIED


def _doubt(kind: CheckKind, sides: Sequence[Side], new_names: Collection[str]) -> CheckVerdict:
    """What stays open of a check that saw the difference. The issue's script was there before there was a patch."""
    if kind is CheckKind.ISSUE:
        return CheckVerdict.VERIFIED
    if new_names:
        return CheckVerdict.NAMES_PATCH
    return CheckVerdict.VERIFIED if Side.TEXT in sides else CheckVerdict.UNTRIED


def _was_run(kind: CheckKind, runs: Iterable[CheckRun]) -> bool:
    idle = (*NOT_RUNNABLE, *(NO_TESTS if kind is CheckKind.TESTS else ()))
    return not any(run.status in idle and not run.timed_out for run in runs)


def _sign(check: Check, side: Side) -> set[str]:
    return {run.signature for run in check.runs.get(side, ()) if run.failed}


def _first_failure(runs: Iterable[CheckRun], signatures: set[str]) -> str:
    return next((run.failure for run in runs if run.signature in signatures and run.failed), "")
