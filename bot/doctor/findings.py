"""The doctor's findings, and how they are shown. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from handlers.text.sanitize import one_line

MAX_WORDS = 400
"""The most characters of a finding or a fix."""


class DoctorVerdict(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"


class Cause(NamedTuple):
    """Names a finding that may explain another one."""

    about: str
    check: str
    may_be_warning: bool = False
    """Whether a warning is enough to explain the other one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    about: str
    """The part that was checked: `GitHub App`, `machine gpu-1`."""
    check: str
    """The name of the check, in a word or two."""
    verdict: DoctorVerdict
    words: str
    """The result, as a clause. It may hold untrusted text."""
    fix: str = ""
    """What to do about it, as an imperative."""
    follows_from: tuple[Cause, ...] = ()
    """A failure in one of these explains this one."""


@dataclass(frozen=True, slots=True)
class Part:
    """Creates the findings of one part."""

    about: str

    def ok(self, check: str, words: str) -> Finding:
        """A passed check."""
        return Finding(self.about, check, DoctorVerdict.OK, words)

    def warn(self, check: str, words: str, fix: str, *follows_from: Cause) -> Finding:
        """A warning: jobs run, but an operator should know."""
        return Finding(self.about, check, DoctorVerdict.WARNING, words, fix, follows_from)

    def fail(self, check: str, words: str, fix: str, *follows_from: Cause) -> Finding:
        """A failure: something cannot work."""
        return Finding(self.about, check, DoctorVerdict.FAILED, words, fix, follows_from)


def hide_consequences(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out problems that only follow from another one. A cause is as severe as what it explains."""
    problems = [one for one in findings if one.verdict is not DoctorVerdict.OK]
    explained = [(cause, one) for one in problems for cause in problems if _explains(cause, one)]
    hidden = [one for _, one in explained]
    causes_of_failures = [cause for cause, one in explained if has_failed([one])]
    return [
        replace(one, verdict=DoctorVerdict.FAILED) if one in causes_of_failures else one
        for one in findings
        if one not in hidden
    ]


def _explains(problem: Finding, other: Finding) -> bool:
    return any(
        (problem.about, problem.check) == (cause.about, cause.check) and (has_failed([problem]) or cause.may_be_warning)
        for cause in other.follows_from
    )


def has_failed(findings: Iterable[Finding]) -> bool:
    """Whether a check failed."""
    return any(finding.verdict is DoctorVerdict.FAILED for finding in findings)


def render_findings(findings: Sequence[Finding]) -> str:
    """A table for a terminal, part by part, with the fix under each problem."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for about, group in groupby(findings, lambda finding: finding.about):
        lines.append(one_line(about, MAX_WORDS))
        for finding in group:
            verdict = f"{finding.verdict:<{len(DoctorVerdict.WARNING)}}"
            lines.append(f"  {verdict}  {finding.check:<{width}}  {one_line(finding.words, MAX_WORDS)}")
            if finding.fix:
                lines.append(f"  {'':<{len(verdict)}}  {'':<{width}}  -> {one_line(finding.fix, MAX_WORDS)}")
    return "\n".join([*lines, "", _count(findings)]) + "\n"


def _count(findings: Sequence[Finding]) -> str:
    failed, warnings, ok = (
        sum(finding.verdict is verdict for finding in findings)
        for verdict in (DoctorVerdict.FAILED, DoctorVerdict.WARNING, DoctorVerdict.OK)
    )
    return f"{failed} failed, {warnings} warning{'s' * (warnings != 1)}, {ok} ok"


def render_findings_json(findings: Iterable[Finding]) -> str:
    """A JSON list of objects with the keys of `Finding`, without what it follows from; verdicts in lower case."""
    rows = [{**asdict(finding), "verdict": finding.verdict.lower()} for finding in findings]
    for row in rows:
        del row["follows_from"]
    return json.dumps(rows, indent=2) + "\n"
