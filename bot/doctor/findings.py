"""The doctor's findings, and how they are shown. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby

from handlers.text.sanitize import one_line

MAX_WORDS = 400
"""The most characters of a finding or a fix."""


class DoctorVerdict(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"


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


@dataclass(frozen=True, slots=True)
class Part:
    """Creates the findings of one part."""

    about: str

    def ok(self, check: str, words: str) -> Finding:
        """A passed check."""
        return Finding(self.about, check, DoctorVerdict.OK, words)

    def warn(self, check: str, words: str, fix: str) -> Finding:
        """A warning: jobs run, but an operator should know."""
        return Finding(self.about, check, DoctorVerdict.WARNING, words, fix)

    def fail(self, check: str, words: str, fix: str) -> Finding:
        """A failure: something cannot work."""
        return Finding(self.about, check, DoctorVerdict.FAILED, words, fix)


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
    """A JSON list of objects with the keys of `Finding`; verdicts in lower case."""
    rows = [{**asdict(finding), "verdict": finding.verdict.lower()} for finding in findings]
    return json.dumps(rows, indent=2) + "\n"
