from __future__ import annotations

from dataclasses import replace

import pytest

from runner.model.caps import DEFAULT_CAPS, Caps, Scope, bound_self_reported, find_tightest
from runner.model.usage import Usage


def test_the_cap_that_is_used_up_most_is_the_one_that_counts() -> None:
    caps = {Scope.JOB: Caps(turns=10, tokens=1000), Scope.USER_DAY: Caps(cost_usd=5)}
    use = find_tightest(caps, {Scope.JOB: Usage(turns=5, input_tokens=600), Scope.USER_DAY: Usage(known_usd=4)})
    assert use
    assert (use.scope, use.kind, use.share) == (Scope.USER_DAY, "cost_usd", 0.8)


def test_without_caps_nothing_is_ever_used_up() -> None:
    assert find_tightest({Scope.JOB: Caps()}, {Scope.JOB: Usage(turns=10**9)}) is None


def test_the_number_of_jobs_holds_back_only_those_that_have_not_started() -> None:
    caps, spent = {Scope.ISSUE: Caps(jobs=2)}, {Scope.ISSUE: Usage(jobs=2)}
    assert find_tightest(caps, spent) is None
    use = find_tightest(caps, spent, starting=True)
    assert use
    assert use.share == 1


def test_runs_at_unknown_cost_are_capped_by_turns_and_time_and_runs_at_known_cost_are_not() -> None:
    unknown, known = Usage(turns=300, run_s=600.0).with_cost(None), Usage(turns=900, run_s=9_000.0).with_cost(1.0)
    use = find_tightest(DEFAULT_CAPS, {Scope.JOB: unknown})
    assert use
    assert (use.kind, use.share) == ("unpriced_turns", 1.0)
    use = find_tightest(DEFAULT_CAPS, {Scope.JOB: known})
    assert use
    assert (use.kind, use.share) == ("cost_usd", 0.1)
    day = find_tightest(DEFAULT_CAPS, {Scope.USER_DAY: known + replace(unknown, run_s=1.0, unpriced_run_s=9_000.0)})
    assert day
    assert (day.kind, day.share) == ("unpriced_run_s", 0.5)


@pytest.mark.parametrize(
    ("scope", "caps", "words"),
    [
        (Scope.JOB, Caps(turns=200), "its cap of 200 turns"),
        (Scope.ISSUE, Caps(tokens=2_000_000), "the cap of 2,000,000 tokens for all attempts together"),
        (Scope.USER_DAY, Caps(cost_usd=2.5), "the cap of $2.50 for what ada asked for today"),
        (Scope.JOB, Caps(unpriced_turns=300), "its cap of 300 turns at unknown cost"),
        (Scope.REPOSITORY_MONTH, Caps(run_s=7200), "the cap of 7,200 seconds for this repository this month"),
    ],
)
def test_a_cap_is_told_in_words(scope: Scope, caps: Caps, words: str) -> None:
    use = find_tightest({scope: caps}, {})
    assert use
    assert use.describe("ada") == words


def test_what_an_agent_says_counts_for_others_no_more_than_one_run_may_take_and_half_of_their_cap() -> None:
    caps = {Scope.JOB: Caps(cost_usd=3.0, turns=90), Scope.USER_DAY: Caps(cost_usd=10.0, tokens=1_001, turns=100)}
    assert bound_self_reported(caps, Scope.USER_DAY) == Caps(cost_usd=3.0, tokens=500, turns=50, unpriced_turns=50)
    assert bound_self_reported(caps, Scope.ISSUE) == Caps(cost_usd=3.0, turns=90, unpriced_turns=90)
    assert bound_self_reported({}, Scope.ISSUE) == Caps()
    by_default = bound_self_reported(DEFAULT_CAPS, Scope.USER_DAY)
    assert (by_default.turns, by_default.unpriced_turns) == (None, 300), "as many as one run may have at unknown cost"
