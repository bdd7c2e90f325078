from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.commands.own_rules import MAX_BYTES, apply_own
from handlers.rules import PRESETS, RepositoryRules, Role
from handlers.words.replies import render_broken_rules
from runner.model.caps import Caps, Scope
from tests.support.cpu_time import takes_at_most

RULES = RepositoryRules("octo/widgets", agent="mine", labels={"ptq": "diagnose", "ptq:fix": "fix"})


def test_a_repository_narrows_what_the_operator_allows() -> None:
    text = """
    presets = ["repro", "diagnose"]
    labels = { "PTQ" = "repro" }
    who_may_start = "maintain"
    who_may_open = "admin"
    [quotas]
    issue = 5
    user_day = 0
    """
    rules = apply_own(RULES, text.encode(), PRESETS)
    assert rules.fault is None
    assert (rules.presets, rules.labels) == (("repro", "diagnose"), {"PTQ": "repro"})
    assert (rules.who_may_start, rules.who_may_open) == (Role.MAINTAIN, Role.ADMIN)
    assert rules.own_caps == {Scope.ISSUE: Caps(jobs=5), Scope.USER_DAY: Caps(jobs=0)}


def test_what_it_leaves_out_stays_the_operators() -> None:
    assert apply_own(RULES, b"", PRESETS) == RULES


def test_it_gives_nobody_more_than_the_operator_does() -> None:
    rules = apply_own(RULES, b'who_may_start = "triage"\nwho_may_open = "write"\n', PRESETS)
    assert (rules.who_may_start, rules.who_may_open) == (Role.WRITE, Role.WRITE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('who_may_start = "write"\npresets = [', "(at end of document)"),
        ("a = 1\nb = = 2\n", "(at line 2, column 5)"),
        ('\n\nwho_may_start = "anyone"\n', "line 3, who_may_start: Input should be 'triage'"),
        ('who_may_open = "triage"', "line 1, who_may_open: "),
        ('[quotas]\nuser_day = "many"', "line 2, quotas.user_day: Input should be a valid integer"),
        ("[quotas]\nuser_day = -1", "line 2, quotas.user_day: "),
        ('agent = "mine"', "line 1, agent: Extra inputs are not permitted"),
        ('labels = { "other" = "fix" }', "labels: the operator has not configured the label 'other'"),
        ('labels = { "ptq" = "heal" }', "labels: the preset 'heal' is not allowed here"),
        ('presets = ["repro"]\nlabels = { "ptq" = "fix" }', "labels: the preset 'fix' is not allowed here"),
        ('presets = ["heal"]', "presets: unknown preset 'heal'; available: repro"),
        ("presets = 3", "line 1, presets: "),
        ("\xff", "not valid UTF-8"),
        ("#" * (MAX_BYTES + 1), "more than 20,000 bytes"),
        ("a = " + "[" * 5000, "nested too deeply"),
        (f"a{'.a' * 21} = 1", "a line has more than 20 dots outside quotes"),
    ],
)
def test_a_file_that_cannot_be_understood_says_where_and_why(text: str, reason: str) -> None:
    rules = apply_own(RULES, text.encode("latin-1"), PRESETS)
    assert rules.fault
    assert reason in rules.fault
    assert (rules.labels, rules.who_may_start) == (RULES.labels, RULES.who_may_start)


def test_what_the_file_says_is_posted_as_a_strangers_words() -> None:
    rules = apply_own(RULES, b"labels = { '@octocat fixes #1 <b>' = 'fix' }", PRESETS)
    assert rules.fault
    shown = render_broken_rules(rules.fault)
    assert "@octocat" not in shown
    assert "<b>" not in shown
    assert "fixes #1" not in shown


@given(st.binary(max_size=200) | st.text(alphabet='abc="[]{}.\n#1', max_size=200).map(str.encode))
def test_any_bytes_are_rules_or_a_fault(content: bytes) -> None:
    rules = apply_own(RULES, content, PRESETS)
    assert rules.fault is None or len(rules.fault) <= 200
    assert rules.who_may_start >= RULES.who_may_start


@pytest.mark.parametrize("piece", ['"\\', "'\"", "#'"])
def test_quotes_that_nothing_closes_are_each_read_once(piece: str) -> None:
    def read(pieces: int) -> None:
        apply_own(RULES, (piece * pieces).encode(), PRESETS)

    assert takes_at_most(6, lambda: read(2_000), lambda: read(8_000))
