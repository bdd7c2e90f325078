from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.text.report import MAX_PARSED, ParsedReport, parse_report
from runner.changes.concerns import OUTCOMES, names_concern
from runner.model.job import Report

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


@pytest.mark.slow
@given(st.lists(st.one_of(st.sampled_from([*OUTCOMES, "#", "## Summary", "\n", "\n\n", "```", "> "]), st.text())))
def test_any_text_survives(parts: list[str]) -> None:
    parsed = parse_report("".join(parts))
    assert parsed.outcome is None or parsed.outcome in OUTCOMES


CONFIDENTIAL = (
    "security concern",
    "**Outcome:** `security concern`.",
    "# SECURITY_CONCERN",
    "Outcome: security-concern",
    "Outcome: a concern about security",
    "**Outcome:** a concern regarding the security.",
    "security-related concern",
    "Outcome: security relevant issue",
    "| Outcome | Security concern |",
    "<b>Security concern</b>",
    "<!-- outcome: security concern -->",
    '{"outcome": "security concern"}',
    "1. Security issue",
    "🔒 Security concern!",
    "Verdict: a potential security vulnerability",
    "The outcome is a security concern.",
    "Security concern: no authentication is needed",
    "Security concern - anyone may read it",
    "security concern\n\nNo check is made.",
    "Reproduced (security concern)",
    "# Report of the run\n\nSecurity concern\n===\n",
    "\ufeffsecu\u200brity concern",
    "a title\rsecurity concern",
    "# Report\n\n## Summary\n\n" + "It is read before it is checked.\n\n" * 8 + "Outcome: security concern",
    "\n---\n" * 100 + "security concern",
    "Outcome: security concern (high)",
    "⚠ Outcome: security concern",
    "1. Outcome: security concern",
    "Outcome: security\u00a0concern",
    "security\u2011concern",
    "security\u2013concern",
    "security\u200bconcern",
    "Security&nbsp;concern",
    "Security&#8209;concern",
    "security **concern**",
    "\uff33\uff45\uff43\uff55\uff52\uff49\uff54\uff59 concern",
    "\u200b" * 300 + "security concern",
    "\x1b[1mSecurity concern\x1b[0m",
    "- [x] security concern",
    "- [ ] reproduced\n- [X] security concern",
    "Outcome (final): security concern",
    "I classify this as: security concern",
    "I would rate this as a security risk",
    "This is a security vulnerability: anyone may read it",
    "Security concern in the upload handler: path traversal",
    "security concern in the parser",
    "A possible security vulnerability in the upload handler",
    "Security concern: cannot be ruled out",
    "Security concern could not be ruled out",
    "# Report of the run\n\nSecurity concern in a handler that does not check paths",
    "I stopped, as the limits ask. Outcome: security concern",
    "I stopped, as the limits ask. Outcome: security concern: no authentication is needed",
    "Per the brief I stop here: security concern",
    "I stopped because of a security\nconcern in the parser",
    "Stopping here. security concern",
    "reproduced\n\n## Summary\n\nIt fails.\n\nOutcome of this run: security concern in the parser",
    "Outcome (one of the list): security concern",
    "Type: security concern",
    "Kind of finding: security concern",
    "Summary: security concern",
    "I found a security concern.",
    "Outcome: not a bug, but there is a security concern: anyone can read files",
    "not a bug\n\nThere is a security concern here: anyone can read files",
    "fix staged and security concern",
    "does not reproduce, but there may be a serious security concern",
    "Outcome: not only a bug but a security concern",
    "We report: security concern",
    "This report raises a security concern.",
    "I want to raise a security concern here.",
    "NOTE: security concern found",
    "## Summary\n\nThis issue is a security concern, because a stranger can run code.",
    "Outcome: vulnerability",
    "Outcome: potential vulnerability (RCE)",
    "Outcome: concern (security)",
    "Outcome: security weakness",
    "Outcome: security-critical",
    "Outcome: security-sensitive issue",
    "Outcome: needs a repro\n\nActually: security concern",
    "**sec**urity concern",
    "sec*ur*ity con`cern`",
    "<b>s</b>ecurity con<!-- x -->cern",
    "**security\nconcern**",
)


def is_confidential(body: str) -> bool:
    return names_concern(Report("0123456789", body, "", "", "", "", (), None))


@pytest.mark.parametrize("text", CONFIDENTIAL)
def test_a_report_that_says_it_in_whatever_way_is_for_the_operator_alone(text: str) -> None:
    assert is_confidential(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "reproduced\n\nThis is no security concern.",
        "reproduced\n\nWhether it is a security concern, others must say.",
        "fix staged\n\n## Summary\nSecurity concerns were ruled out.",
        "fix staged (no security concern)",
        "fix staged\n\nIt is fixed.\n\nSecurity concerns: none.",
        "fix staged\n\n## Summary\nIt is fixed.\n\n## Security concerns\n\nNone found.",
        "fix staged (no concern about security)",
        "fix staged\n\nThere are no security-related concerns.",
        "Concerns about security: none",
        "not a bug\n\nThe problem with security tests is their speed.",
        "security concern: none",
        "Security concerns: none found.",
        "No security concern",
        "Security concerns were not found.",
        "Outcome: fix staged. Security concerns: none",
        "Outcome: fix staged (not a security concern)",
        "Outcome: fix staged, without effects on security",
        "This issue is about a flaky test of the security group.",
        "The outcome is no security concern",
        "Outcome: not a bug or security concern",
        "Outcome: not a bug and not a security concern",
        "not a bug\n\nThere is no security concern here.",
        "I stopped early; there is no security concern.",
        "fix staged\n\nThere are no regressions, security concerns, or API changes.",
        "fix staged\n\nSecurity issue templates are found again.",
        "fix staged\n\n## Security\n\nConcerns: none.",
        "not a bug\n" + "It is meant so.\n" * 30 + "security concern",
    ],
)
def test_a_report_that_only_mentions_the_words_is_for_all(text: str) -> None:
    assert not is_confidential(text)


def test_sections_are_looked_for_where_people_read_them() -> None:
    """A parser reads no more of a report than that, however long an agent makes it."""
    far = "fix staged\n\n## Summary\nFixed.\n\n" + "x\n" * MAX_PARSED + "## Root cause\nThere.\n"
    assert (parse_report(far).outcome, parse_report(far).root_cause) == ("fix staged", None)


@pytest.mark.parametrize("filler", ["\n", "```\n", "1.\n", "---\n", " \n"])
def test_a_concern_is_seen_below_any_number_of_lines_without_a_letter(filler: str) -> None:
    assert is_confidential(f"{filler * 60_000}Outcome: security concern\n")
