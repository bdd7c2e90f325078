"""Parses an agent's report: its outcome and its sections. Pure, tolerant, and never raises.

The parsed texts are as untrusted as the report.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from handlers.text.markdown import parse_blocks
from runner.changes.concerns import find_outcome
from runner.characters import normalise_newlines
from runner.model.job import Report

_SECTIONS = (
    (r"summary\b|tl dr$", "summary"),
    (r"repro(duction|ducing)?\b|steps to reproduce\b", "reproduction"),
    (r"(root )?causes?\b", "root cause"),
    (r"changes?\b|(the )?fix$", "change"),
    (r"(regression )?tests?\b", "test"),
)
"""Patterns for the beginnings of headings, each with the section that it names.

A heading is matched in lower case, without numbers and punctuation.
"""

MAX_PARSED = 20_000
"""The most characters of a report that are parsed. A comment shows fewer."""


@dataclass(frozen=True, slots=True)
class ParsedReport:
    """A parsed report. A missing or empty section is None."""

    outcome: str | None
    """One of `OUTCOMES`."""
    summary: str
    """The section of that name, or else the text before the first section. It may be empty."""
    reproduction: str | None = None
    root_cause: str | None = None
    change: str | None = None
    test: str | None = None


def has_words(report: Report | None) -> bool:
    """Whether a run has a report with text. If not, only readers of its log can see its worklog, edits and repro."""
    return report is not None and bool(report.body.strip())


def parse_report(text: str) -> ParsedReport:
    """Parse the first `MAX_PARSED` characters of a report. Missing parts are None or empty."""
    outcome, lines = _take_outcome(text)
    sections: dict[str, str] = {}
    for name, _, start, end in _find_sections(lines):
        body = "\n".join(lines[start:end]).strip()
        sections[name] = "\n\n".join(part for part in (sections.get(name), body) if part)
    return ParsedReport(
        outcome=outcome,
        summary=sections.get("summary") or sections.get("preamble") or "",
        reproduction=sections.get("reproduction") or None,
        root_cause=sections.get("root cause") or None,
        change=sections.get("change") or None,
        test=sections.get("test") or None,
    )


def leave_out(text: str, names: Collection[str]) -> str:
    """The report without its outcome and without the named sections. Text after `MAX_PARSED` characters is kept."""
    _, lines = _take_outcome(text)
    found = [*_find_sections(lines)]
    # In a report without a summary section, the text before the first section counts as the summary.
    dropped = {*names} | (
        {"preamble"} if "summary" in names and "summary" not in {name for name, *_ in found} else set()
    )
    kept = [line for name, first, _, end in found if name not in dropped for line in lines[first:end]]
    return "\n".join(kept).strip("\n") + text[MAX_PARSED:]


def _take_outcome(text: str) -> tuple[str | None, list[str]]:
    """The outcome, and the parsed lines. The lines up to the outcome are blank."""
    lines = normalise_newlines(text[:MAX_PARSED]).split("\n")
    place, outcome = find_outcome(lines)
    lines[: place + 1] = [""] * (place + 1)
    return outcome, lines


def _find_sections(lines: list[str]) -> Iterator[tuple[str, int, int, int]]:
    """For each section: its name, its first line, the line after its heading, and the line after its end.

    The first section is `preamble`: the text before the first known heading. An unknown heading belongs to the current
    section if that is the preamble, or if the heading is a subheading of it. Otherwise the heading begins a section
    whose name is empty.
    """
    name, level, begun, start = "preamble", 7, 0, 0
    for found, found_level, first, end in _find_headings(lines):
        if found is None and (found_level > level or name == "preamble"):
            continue
        yield name, begun, start, first
        name, level, begun, start = found or "", found_level, first, end
    yield name, begun, start, len(lines)


def _find_headings(lines: list[str]) -> Iterator[tuple[str | None, int, int, int]]:
    """For each top-level heading: the section that it names, its level, its first line, and the line after it.

    The section of an unknown heading is None. Headings in lists and quotes are left out.
    """
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
