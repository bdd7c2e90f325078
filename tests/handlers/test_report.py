from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.report import OUTCOMES, ParsedReport, parse_report

REPORT = """\
fix staged

## Summary
`chunked()` lost the last chunk.

Two paragraphs.

## Reproduction
```
# Summary
AssertionError
```

## Root cause
`widgets/chunks.py:12` stops early.

### How it was proved
By hand.

## Change and why it is right
The end moved.

## Test
`test_last_chunk` fails before.

## Notes
Nothing more.
"""


def test_a_report_is_taken_apart() -> None:
    assert parse_report(REPORT) == ParsedReport(
        outcome="fix staged",
        summary="`chunked()` lost the last chunk.\n\nTwo paragraphs.",
        reproduction="```\n# Summary\nAssertionError\n```",
        root_cause="`widgets/chunks.py:12` stops early.\n\n### How it was proved\nBy hand.",
        change="The end moved.",
        test="`test_last_chunk` fails before.",
    )


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_is_read(outcome: str) -> None:
    assert parse_report(f"{outcome}\n\n## Summary\nx").outcome == outcome


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("Reproduced.", "reproduced"),
        ("**Outcome:** `fix staged`", "fix staged"),
        ("# FIX_STAGED", "fix staged"),
        ("> needs a repro", "needs a repro"),
        ("Does not reproduce (on any of three versions)", "does not reproduce"),
        ("Does not repro — tried five ways", "does not reproduce"),
        ("INTENDED_BEHAVIOR", "intended behaviour"),
        ("NOT_A_BUG", "not a bug"),
        ("\r\n\r\n  unable to fix  \r\nmore", "unable to fix"),
        ("# Report\n\nnot a bug\n", "not a bug"),
        ("outcome\n===\n\nreproduced", "reproduced"),
        ("solved", None),
        ("reproduced in a dream", None),
        ("not reproduced at all", None),
        ("I could not say. It was reproduced", None),
        ("a\nb\nc\nreproduced", None),
        ("", None),
    ],
)
def test_the_outcome_line_is_read_with_tolerance(line: str, outcome: str | None) -> None:
    assert parse_report(line).outcome == outcome


@pytest.mark.parametrize(
    "heading", ["# Summary", "### 1. Summary:", "Summary\n-------", "## **Summary**", "#### TL;DR"]
)
def test_headings_of_any_kind_are_read(heading: str) -> None:
    assert parse_report(f"reproduced\n\n{heading}\n\nIt fails.\n\n# Root causes\n\nThere.").summary == "It fails."


def test_a_report_without_sections_is_all_summary() -> None:
    assert parse_report("not a bug\n\nYou held it wrong.\n") == ParsedReport("not a bug", "You held it wrong.")


def test_a_section_given_twice_is_one() -> None:
    assert parse_report("## Tests\na\n## Summary\nb\n## Test\nc").test == "a\n\nc"


def test_a_heading_in_a_quote_is_part_of_the_quote() -> None:
    assert parse_report("## Summary\nThey say:\n> # Root cause\n> me").root_cause is None


def test_empty_sections_are_missing() -> None:
    assert parse_report("reproduced\n## Summary\n## Root cause\n\n## Test\nx").root_cause is None


def test_nothing_comes_of_nothing() -> None:
    assert parse_report("") == parse_report(" \n\t\n") == ParsedReport(None, "")


@given(st.lists(st.one_of(st.sampled_from([*OUTCOMES, "#", "## Summary", "\n", "\n\n", "```", "> "]), st.text())))
def test_any_text_survives(parts: list[str]) -> None:
    parsed = parse_report("".join(parts))
    assert parsed.outcome is None or parsed.outcome in OUTCOMES
