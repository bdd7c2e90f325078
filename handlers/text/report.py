"""Parses an agent's report: its outcome and its sections. Pure, tolerant, and never raises.

The parsed texts are as untrusted as the report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from handlers.text.markdown import parse_blocks
from runner.changes.concerns import ALIASES, OUTCOMES, SECURITY_CONCERN, name_concern, split_clauses
from runner.model.job import Report

_SECTIONS = (
    (r"summary\b|tl dr$", "summary"),
    (r"repro(duction|ducing)?\b|steps to reproduce\b", "reproduction"),
    (r"(root )?causes?\b", "root cause"),
    (r"changes?\b|(the )?fix$", "change"),
    (r"(regression )?tests?\b", "test"),
)
"""The beginning of a heading, without case, numbers and punctuation, and its section."""

_LINES_BEFORE_OUTCOME = 3
"""The outcome is searched in this many lines with text, because a title may come first."""

_LINES_BEFORE_CONFIDENCE = 30
"""Any of this many first lines can make a report confidential."""

_MAX_LINES_READ = 1_000
"""The most lines with a letter that are searched for them, because some lines contain only tags."""

MAX_PARSED = 20_000
"""The most characters that are parsed: more than a comment shows of a report."""

_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, slots=True)
class ParsedReport:
    """A parsed report. A missing or empty section is None."""

    outcome: str | None
    """One of `OUTCOMES`."""
    summary: str
    """The section of that name, or else the text before the first section; possibly empty."""
    reproduction: str | None = None
    root_cause: str | None = None
    change: str | None = None
    test: str | None = None


def _is_confidential(text: str) -> bool:
    """Whether a report is for the operator only, because strangers could abuse the finding.

    Only `is_withheld` calls this, because it also handles missing reports.

    When in doubt, it is confidential, because publishing cannot be undone: any of the first lines with that outcome is
    enough. Only the first lines are read, so that a long report does not take long.
    """
    if _find_outcome(_split_lines(text))[1] == SECURITY_CONCERN:
        return True
    lettered = islice(filter(_LETTER.search, text.splitlines()), _MAX_LINES_READ)
    written = (clauses for line in lettered if (clauses := split_clauses(line)))
    return name_concern(islice(written, _LINES_BEFORE_CONFIDENCE))


def has_words(report: Report | None) -> bool:
    """Whether a run has a report. Without one, its worklog, edits and repro are shown only to readers of its log."""
    return report is not None and bool(report.body.strip())


def is_withheld(report: Report | None) -> bool:
    """Whether only the operator may see a run's result. All code that shows or passes on results checks this."""
    return report is not None and _is_confidential(report.body)


def _split_lines(text: str) -> list[str]:
    return re.sub(r"\r\n?", "\n", text).split("\n")


def parse_report(text: str) -> ParsedReport:
    """Parse the first `MAX_PARSED` characters of a report. Missing parts are None or empty."""
    lines = _split_lines(text[:MAX_PARSED])
    place, outcome = _find_outcome(lines)
    lines[: place + 1] = [""] * (place + 1)
    sections: dict[str, str] = {}
    for name, body in _split_sections(lines):
        sections[name] = "\n\n".join(part for part in (sections.get(name), body) if part)
    return ParsedReport(
        outcome=outcome,
        summary=sections.get("summary") or sections.get("preamble") or "",
        reproduction=sections.get("reproduction") or None,
        root_cause=sections.get("root cause") or None,
        change=sections.get("change") or None,
        test=sections.get("test") or None,
    )


def _find_outcome(lines: list[str]) -> tuple[int, str | None]:
    """The line with the outcome (-1 if there is none), and the outcome."""
    written = ((place, line) for place, line in enumerate(lines) if line.strip())
    for place, line in islice(written, _LINES_BEFORE_OUTCOME):
        if outcome := _read_outcome(line):
            return place, outcome
    return -1, None


def _read_outcome(line: str) -> str | None:
    """The outcome in lines such as `**Outcome:** FIX_STAGED.`; None for a sentence that only begins with one."""
    words = re.sub(r"[\s#*_`>-]+", " ", line[:200].casefold()).strip()
    words = re.sub(r"^outcome ?:? ?", "", words)
    phrase = re.split(r" ?[.,;(–—]", words, maxsplit=1)[0].strip()
    phrase = ALIASES.get(phrase, phrase)
    return phrase if phrase in OUTCOMES else None


def _split_sections(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The known sections, and as `preamble` the text before the first one.

    An unknown heading belongs to its section, unless it has the same or a higher level.
    """
    name, level, start = "preamble", 7, 0
    for found, found_level, first, end in _find_headings(lines):
        if found is None and (found_level > level or name == "preamble"):
            continue
        yield name, "\n".join(lines[start:first]).strip()
        name, level, start = found or "", found_level, end
    yield name, "\n".join(lines[start:]).strip()


def _find_headings(lines: list[str]) -> Iterator[tuple[str | None, int, int, int]]:
    """Section named (None for an unknown one), level, first line and line after the last of each top-level heading."""
    tokens = parse_blocks("\n".join(lines))
    for heading, title in pairwise(tokens):
        if heading.type == "heading_open" and heading.map and heading.level == 0:
            yield _name_section(title.content), int(heading.tag[1:]), heading.map[0], heading.map[1]


def _name_section(title: str) -> str | None:
    words = re.sub(r"[\W\d_]+", " ", title).strip().casefold()
    for pattern, name in _SECTIONS:
        if re.match(pattern, words):
            return name
    return None
