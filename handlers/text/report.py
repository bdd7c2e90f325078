"""Parses an agent's report: its outcome and its sections. Pure, tolerant, and never raises.

The parsed texts are as untrusted as the report.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from handlers.text.markdown import parse_blocks
from runner.changes.concerns import find_outcome, split_lines
from runner.model.job import Report

_SECTIONS = (
    (r"summary\b|tl dr$", "summary"),
    (r"repro(duction|ducing)?\b|steps to reproduce\b", "reproduction"),
    (r"(root )?causes?\b", "root cause"),
    (r"changes?\b|(the )?fix$", "change"),
    (r"(regression )?tests?\b", "test"),
)
"""The beginning of a heading, without case, numbers and punctuation, and its section."""

MAX_PARSED = 20_000
"""The most characters that are parsed: more than a comment shows of a report."""


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


def has_words(report: Report | None) -> bool:
    """Whether a run has a report. Without one, its worklog, edits and repro are shown only to readers of its log."""
    return report is not None and bool(report.body.strip())


def parse_report(text: str) -> ParsedReport:
    """Parse the first `MAX_PARSED` characters of a report. Missing parts are None or empty."""
    lines = split_lines(text[:MAX_PARSED])
    place, outcome = find_outcome(lines)
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


def leave_out(text: str, names: Collection[str]) -> str:
    """The report without its outcome and the sections of these names. What is not parsed stays."""
    lines = split_lines(text[:MAX_PARSED])
    place, _ = find_outcome(lines)
    lines[: place + 1] = [""] * (place + 1)
    found = [*_find_sections(lines)]
    # Without a summary, the text before the first section is one.
    dropped = {*names} | (
        {"preamble"} if "summary" in names and "summary" not in {name for name, *_ in found} else set()
    )
    kept = [line for name, first, _, end in found if name not in dropped for line in lines[first:end]]
    return "\n".join(kept).strip("\n") + text[MAX_PARSED:]


def _split_sections(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The known sections, and as `preamble` the text before the first one."""
    for name, _, start, end in _find_sections(lines):
        yield name, "\n".join(lines[start:end]).strip()


def _find_sections(lines: list[str]) -> Iterator[tuple[str, int, int, int]]:
    """Name, first line, line after the heading, and line after the last of each known section. The first is `preamble`.

    An unknown heading belongs to its section, unless it has the same or a higher level.
    """
    name, level, begun, start = "preamble", 7, 0, 0
    for found, found_level, first, end in _find_headings(lines):
        if found is None and (found_level > level or name == "preamble"):
            continue
        yield name, begun, start, first
        name, level, begun, start = found or "", found_level, first, end
    yield name, begun, start, len(lines)


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
