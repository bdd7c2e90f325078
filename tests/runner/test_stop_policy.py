from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from runner.agents.events import AgentEvent, EventKind, Tally
from runner.agents.verdict import judge
from runner.model.caps import Caps, Scope
from runner.model.ending import Ending, RunVerdict
from runner.model.environment import Limits
from runner.model.meter import Meter
from runner.model.stop_policy import Watched, bound, explain_own_cap, find_end, find_warning, is_worth_writing
from runner.model.usage import Usage
from tests.support.jobs import NOON, make_job
from tests.support.meters import make_meter

AGAIN = "try again with a higher one"

LIMITS = Limits(timeout_s=1000, max_log_bytes=10_000, stuck_after_s=300)
METER = Meter("0123456789")


def watch(meter: Meter = METER, idle_s: float = 0, spent: dict[Scope, Usage] | None = None) -> Watched:
    return Watched(make_job(requested_by="ada"), meter, idle_s, spent or {})


def end_of(watched: Watched, caps: dict[Scope, Caps] | None = None) -> RunVerdict | None:
    return find_end(watched, bound(caps or {}, LIMITS, watched.job), LIMITS)


def test_an_agent_within_its_caps_goes_on() -> None:
    assert end_of(watch(make_meter("0123456789", turns=3)), {Scope.JOB: Caps(turns=4)}) is None


@pytest.mark.parametrize(
    ("meter", "words"),
    [
        (make_meter("0123456789", turns=4), "4 turns"),
        (make_meter("0123456789", input_tokens=60, output_tokens=40), "100 tokens"),
        (make_meter("0123456789", cost_usd=2.0), "$2.00"),
        (make_meter("0123456789", run_s=1000), "1,000 seconds"),
        (make_meter("0123456789", output_bytes=10_000), "10,000 bytes of output"),
    ],
)
def test_every_cap_of_a_run_ends_it(meter: Meter, words: str) -> None:
    verdict = end_of(watch(meter), {Scope.JOB: Caps(turns=4, tokens=100, cost_usd=2.0)})
    assert verdict
    assert verdict.ending is Ending.CAPPED
    assert words in verdict.reason


@pytest.mark.parametrize(
    ("meter", "caps", "key"),
    [
        (make_meter("0123456789", turns=4), Caps(turns=4), "caps.job.turns"),
        (make_meter("0123456789", turns=4), Caps(unpriced_turns=4), "caps.job.turns"),
        (make_meter("0123456789", run_s=500), Caps(run_s=500), "caps.job.run_s"),
        (make_meter("0123456789", run_s=1000), Caps(run_s=9999), "limits.timeout_s"),
        (make_meter("0123456789", output_bytes=10_000), Caps(), "limits.max_log_bytes"),
    ],
)
def test_what_is_stopped_at_a_cap_says_who_can_raise_it_and_where(meter: Meter, caps: Caps, key: str) -> None:
    verdict = end_of(watch(meter), {Scope.JOB: caps})
    assert verdict
    assert verdict.reason.endswith(f" (the operator can raise it: {key} in ptq.toml)")


@pytest.mark.parametrize(
    ("asked", "meter", "words"),
    [
        (
            {"max_turns": 3},
            make_meter("0123456789", turns=3),
            f"its cap of 3 turns (set by --max-turns for this run: {AGAIN})",
        ),
        (
            {"max_cost_usd": 1.5},
            make_meter("0123456789", cost_usd=1.5),
            f"its cap of $1.50 (set by --max-cost for this run: {AGAIN})",
        ),
        # At unknown cost, 30 turns stand for a dollar, as in the defaults.
        (
            {"max_cost_usd": 0.1},
            make_meter("0123456789", turns=3, cost_usd=None),
            "its cap of 3 turns at unknown cost (set by --max-cost for this run, at 30 turns for each dollar: "
            f"{AGAIN})",
        ),
        (
            {"max_turns": 9, "max_cost_usd": 9.0},
            make_meter("0123456789", turns=4),
            "its cap of 4 turns (the operator can raise it: caps.job.turns in ptq.toml)",
        ),
    ],
)
def test_a_run_ends_at_the_limits_of_its_request_which_never_raise_a_cap(
    asked: dict[str, Any], meter: Meter, words: str
) -> None:
    watched = replace(watch(meter), job=make_job(**asked))
    verdict = end_of(watched, {Scope.JOB: Caps(turns=4, cost_usd=2.0, unpriced_turns=300)})
    assert verdict
    assert words in verdict.reason


def test_a_limit_in_money_refuses_no_model_that_the_operator_allows_without_a_price() -> None:
    caps = bound({}, LIMITS, make_job(max_cost_usd=2.0))[Scope.JOB]
    assert (caps.cost_usd, caps.unpriced_turns, caps.needs_prices) == (2.0, 60, False)


def test_an_agent_that_ends_itself_at_a_cap_says_whose_that_is() -> None:
    job, usage = make_job(max_turns=3), Usage(turns=3, known_usd=0.1)
    caps = bound({Scope.JOB: Caps(turns=4, cost_usd=2.0)}, LIMITS, job)
    assert explain_own_cap(job, usage, caps) == "set by --max-turns for this run: try again with a higher one"
    assert "caps.job.cost_usd" in explain_own_cap(job, Usage(turns=1, known_usd=2.0), caps)


@pytest.mark.parametrize("scope", [Scope.ISSUE, Scope.USER_DAY, Scope.REPOSITORY_MONTH])
def test_what_belongs_together_has_caps_of_its_own(scope: Scope) -> None:
    spent = {scope: Usage(jobs=9, known_usd=5.0)}
    verdict = end_of(watch(spent=spent), {scope: Caps(cost_usd=5.0, jobs=2)})
    assert verdict
    assert "$5.00" in verdict.reason


def test_an_agent_that_prints_nothing_for_too_long_is_stuck() -> None:
    assert end_of(watch(idle_s=300)) is None
    verdict = end_of(watch(idle_s=301))
    assert verdict
    assert verdict.ending is Ending.STUCK


def test_a_persons_wish_comes_before_any_cap() -> None:
    cancelled = replace(make_job(), cancel_requested_at=NOON, cancelled_by="ada")
    verdict = end_of(Watched(cancelled, METER, 9999, {}))
    assert verdict == RunVerdict(Ending.CANCELLED, "cancelled by @ada")


def test_an_agent_is_warned_before_the_end_and_not_from_the_start() -> None:
    caps = bound({Scope.JOB: Caps(turns=10)}, LIMITS, make_job())
    assert find_warning(watch(make_meter("0123456789", turns=7)), caps) is None
    warning = find_warning(watch(make_meter("0123456789", turns=8)), caps)
    assert warning
    assert "80% of your cap of 10 turns" in warning


def test_a_warning_is_the_same_to_a_shell_and_in_json() -> None:
    caps = bound({Scope.USER_DAY: Caps(cost_usd=1.0)}, LIMITS, make_job())
    warning = find_warning(watch(spent={Scope.USER_DAY: Usage(known_usd=0.9)}), caps)
    assert warning
    assert json.loads(f'"{warning}"') == warning
    shown = subprocess.run(["sh", "-c", f"printf '%s' '{warning}'"], capture_output=True, text=True, check=True)
    assert shown.stdout == warning
    assert not re.search(r"[\\\"'%\n]", warning.replace("90%", ""))


def test_a_reading_is_written_when_it_says_something_new() -> None:
    stored = make_meter("0123456789", run_s=10.0)
    assert is_worth_writing(None, METER)
    assert not is_worth_writing(stored, make_meter("0123456789", run_s=12.0))
    assert is_worth_writing(stored, make_meter("0123456789", run_s=41.0))
    assert is_worth_writing(stored, make_meter("0123456789", turns=1))


FINISHED = Tally().add([AgentEvent(EventKind.END, ending=Ending.FINISHED)])
TOLD = RunVerdict(Ending.CAPPED, "it was told")


def test_what_was_told_to_end_has_ended_for_that_reason() -> None:
    assert judge(Tally(), 130, speaks=True, told=TOLD) is TOLD
    assert judge(Tally(), 0, speaks=False, told=TOLD) is TOLD


def test_what_stopped_at_its_own_cap_says_who_can_raise_it() -> None:
    ended = Tally().add([AgentEvent(EventKind.END, ending=Ending.CAPPED)])
    reason = "the agent reached its own cap (the operator can raise it: caps.job in ptq.toml)"
    assert judge(ended, 1, speaks=True) == RunVerdict(Ending.CAPPED, reason)


def test_what_had_finished_by_then_has_finished() -> None:
    assert judge(FINISHED, 0, speaks=True, told=TOLD).finished


def test_what_a_person_cancelled_is_cancelled_even_if_it_had_finished() -> None:
    assert judge(FINISHED, 0, speaks=True, told=RunVerdict(Ending.CANCELLED, "by @ada")).ending is Ending.CANCELLED
