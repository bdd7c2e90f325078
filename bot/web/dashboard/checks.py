"""The service's own checks as a table, with the results of each check before and after the change. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from handlers.text.repros import THE_ISSUE
from handlers.words.verified import GOOD, is_open, judge_for, name_doubt
from runner.checks.verification import Check, CheckFinding, CheckKind, CheckRun, CheckVerdict, Side
from runner.model.job import Job, Report

SIDES = {
    Side.BASE: "Before the change",
    Side.TEXT: "Patched files, unpatched code",
    Side.CHANGED: "After the change",
}

_VERDICTS = {
    CheckVerdict.VERIFIED: "verified",
    CheckVerdict.REPRODUCED: "reproduces",
    CheckVerdict.GONE: "no longer reproduces",
}


@dataclass(frozen=True, slots=True)
class SameRuns:
    """Consecutive runs that ended in the same way. The output of the first run is shown once for all of them."""

    title: str
    words: str


@dataclass(frozen=True, slots=True)
class ShownCheck:
    """A check as a page shows it. Its texts are untrusted."""

    check: Check
    name: str
    verdict: str
    style: str
    """The CSS class of the verdict: `succeeded`, `pending` or `failed`."""
    before: str
    after: str
    failure: str
    """How the check fails before the change."""
    other_failure: str
    """How the check fails after the change, if that differs."""
    doubt: str
    """Why the verdict is not a good one, as a clause. Empty if it is good, or if the check has not run yet."""
    runs: Sequence[SameRuns]

    @property
    def number(self) -> int:
        """The number of the check among the checks of its job."""
        return self.check.number


def show_checks(job: Job, checks: Sequence[Check], report: Report | None) -> list[ShownCheck]:
    """The checks of a job, in order."""
    return [_show(check, judge_for(job, check, report)) for check in checks]


def _show(check: Check, finding: CheckFinding) -> ShownCheck:
    verdict, is_waiting = finding.verdict, not check.runs and not check.trouble
    is_good = verdict in GOOD
    is_pending = is_waiting or is_open(check, verdict)
    return ShownCheck(
        check=check,
        name=_name(check),
        verdict=_VERDICTS.get(verdict, "not verified") if not is_waiting else "not run yet",
        style="succeeded" if verdict is CheckVerdict.VERIFIED else "pending" if is_pending else "failed",
        before=_count(finding, Side.BASE),
        after=_count(finding, Side.CHANGED),
        failure=finding.failure,
        other_failure=finding.other_failure,
        doubt="" if is_good or is_waiting else _explain(check, finding),
        runs=[*_group(check)],
    )


def _name(check: Check) -> str:
    if check.kind is CheckKind.ISSUE:
        return "The issue's script" if check.origin == THE_ISSUE else f"The issue's script, {check.origin}"
    if check.kind is CheckKind.KEPT:
        return f"The repro.py of {check.origin}"
    return "The agent's repro.py" if check.kind is CheckKind.AGENT else f"Tests in {check.origin}"


def _count(finding: CheckFinding, side: Side) -> str:
    """The result on one side, such as `fails 3 of 3`. Empty without runs.

    Before the change, the failures are counted. After the change, the successes are.
    """
    total, failed = finding.total.get(side, 0), finding.failed.get(side, 0)
    if not total:
        return ""
    return f"fails {failed} of {total}" if side is Side.BASE else f"passes {total - failed} of {total}"


def _explain(check: Check, finding: CheckFinding) -> str:
    is_part = finding.verdict is CheckVerdict.NOT_RUN and any(finding.total.values())
    clause = "some runs are missing" if is_part else name_doubt(check, finding)
    more = check.trouble or ", ".join(finding.new_names)
    return f"{clause}: {more}" if more else clause


def _group(check: Check) -> Iterator[SameRuns]:
    for side, runs in check.runs.items():
        numbered = enumerate(runs, 1)
        for (failed, _), same in groupby(numbered, key=lambda one: (one[1].failed, _signature(one[1]))):
            found = [*same]
            first, last = found[0][0], found[-1][0]
            which = f"run {first}" if first == last else f"runs {first} to {last}"
            ended = found[0][1].failure if failed else "passes" if first == last else "pass"
            yield SameRuns(f"{SIDES[side]}, {which}: {ended}", found[0][1].words)


def _signature(run: CheckRun) -> str:
    return run.signature if run.failed else run.words
