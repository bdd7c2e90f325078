"""What an operator reads of a sweep. Other people's words do nothing to a terminal."""

from __future__ import annotations

import json
from dataclasses import replace

from bot.operations.sweep_summary import (
    LEFT_OUT,
    NO_SCRIPT,
    NOT_BEGUN,
    UNDER_WAY,
    Row,
    Summary,
    render_json,
    render_text,
)
from handlers.words.verified import Outcome

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAGE = "https://ptq.example/jobs/aaaaaaaaaa"
ROWS = (
    Row(3, "It breaks", Outcome.REPRODUCES, commit=COMMIT, job="aaaaaaaaaa", page=PAGE),
    Row(4, "It breaks too", NO_SCRIPT),
    Row(70, "It did break", Outcome.GONE, commit=COMMIT, job="bbbbbbbbbb", page=PAGE),
    Row(71, "It may break", Outcome.NOT_VERIFIED, "the machine is gone", job="cccccccccc", page=PAGE),
    Row(72, "It breaks", LEFT_OUT, "another job on it is under way"),
)
SUMMARY = Summary("spring", "o/w", "old", ROWS)


def test_a_summary_counts_and_has_a_line_for_each_issue() -> None:
    assert (
        render_text(SUMMARY)
        == f"""\
Sweep spring of o/w, label old: 1 still reproduces, 1 does not reproduce, 1 not verified, 1 no script, 1 left out.

issue  outcome                                   commit      see                                  title
#3     still reproduces                          0123456789  {PAGE}  It breaks
#4     no script                                                                                  It breaks too
#70    does not reproduce                        0123456789  {PAGE}  It did break
#71    not verified: the machine is gone                     {PAGE}  It may break
#72    left out: another job on it is under way                                                   It breaks
"""
    )


def test_a_summary_of_nothing_says_so() -> None:
    assert render_text(replace(SUMMARY, rows=())) == "No open issue of o/w, label old.\n"


def test_programs_get_the_same_with_nothing_cut() -> None:
    title = "x" * 200
    values = json.loads(render_json(replace(SUMMARY, rows=[*ROWS, Row(80, title, NOT_BEGUN)], stopped="it is paused")))
    assert (values["sweep"], values["repository"], values["label"]) == ("spring", "o/w", "old")
    assert values["stopped"] == "it is paused"
    assert values["counts"]["still reproduces"] == 1
    first = {"issue": 3, "title": "It breaks", "outcome": "still reproduces", "why": "", "commit": COMMIT}
    assert values["issues"][0] == first | {"job": "aaaaaaaaaa", "page": PAGE, "scripts": None}
    assert values["issues"][-1]["title"] == title


def test_it_is_complete_when_nothing_is_left_to_wait_for() -> None:
    assert SUMMARY.is_complete
    assert not replace(SUMMARY, stopped="it is paused").is_complete
    for outcome in (UNDER_WAY, NOT_BEGUN):
        assert not replace(SUMMARY, rows=[*ROWS, Row(80, "", outcome)]).is_complete


def test_what_strangers_wrote_moves_no_cursor_and_adds_no_line() -> None:
    hostile = "\x1b[2J\r\n#99  still reproduces\u202e @everyone"
    row = Row(5, hostile, Outcome.UNSETTLED, why=hostile)
    text = render_text(Summary("n\x1b", "octo/widgets", "l\x07", [row])) + row.describe()
    assert not {"\x1b", "\r", "\x07", "\u202e"} & set(text)
    assert len(text.splitlines()) == 5
