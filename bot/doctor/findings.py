"""What the doctor finds, as values, and how they are shown. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby

from handlers.text.sanitize import one_line

MAX_WORDS = 400
"""Characters of a finding, or of its fix, that are shown."""


class DoctorVerdict(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    about: str
    """The part that it belongs to: `GitHub App`, `machine gpu-1`."""
    check: str
    """What was looked at, in a word or two."""
    verdict: DoctorVerdict
    words: str
    """What is the case, as a clause. It may hold a stranger's words."""
    fix: str = ""
    """What to do about it, as an order."""


@dataclass(frozen=True, slots=True)
class Part:
    """Makes the findings of one part."""

    about: str

    def ok(self, check: str, words: str) -> Finding:
        """All is well."""
        return Finding(self.about, check, DoctorVerdict.OK, words)

    def warn(self, check: str, words: str, fix: str) -> Finding:
        """Jobs run, and yet an operator should know."""
        return Finding(self.about, check, DoctorVerdict.WARNING, words, fix)

    def fail(self, check: str, words: str, fix: str) -> Finding:
        """Something that the product promises cannot work."""
        return Finding(self.about, check, DoctorVerdict.FAILED, words, fix)


def has_failed(findings: Iterable[Finding]) -> bool:
    """Whether anything has to be mended."""
    return any(finding.verdict is DoctorVerdict.FAILED for finding in findings)


def render_findings(findings: Sequence[Finding]) -> str:
    """A table for a terminal, part by part, with the fix below whatever is not well."""
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
    """The same for programs: a list of objects with the keys of `Finding`; verdicts in lower case."""
    rows = [{**asdict(finding), "verdict": finding.verdict.lower()} for finding in findings]
    return json.dumps(rows, indent=2) + "\n"
