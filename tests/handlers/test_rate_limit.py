"""Whose turn it is to write, as a pure function: for all histories, not for some."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from handlers.effects.rate_limit import HOUR_S, MINUTE_S, Budget, Plan, Waiting, count_share, plan_write, take_turns
from handlers.ports import WritePriority
from tests.support.jobs import NOON


def wait(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


AGES = st.lists(st.floats(-200, 2 * HOUR_S, allow_nan=False), max_size=60)
PRIORITIES = st.sampled_from(WritePriority)
BUDGETS = st.builds(
    Budget, st.integers(1, 20), st.integers(1, 50), st.floats(0, HOUR_S), st.floats(0, 300, allow_nan=False)
)
HIGHEST_FIRST = list(WritePriority)
WAITING = st.lists(
    st.builds(Waiting, st.uuids().map(str), st.sampled_from("abcd"), PRIORITIES, st.integers(0, 9).map(wait)),
    max_size=30,
)


def most_in(ages_s: list[float], period_s: float) -> int:
    """The most writes that any window of this length holds; a window is open at its older end."""
    return max(sum(start <= age < start + period_s for age in ages_s) for start in ages_s)


@given(AGES, PRIORITIES, BUDGETS)
def test_a_write_after_its_wait_takes_no_more_than_its_share_of_any_minute_and_hour_before_it(
    ages_s: list[float], priority: WritePriority, budget: Budget
) -> None:
    wait_s = plan_write(ages_s, priority, budget).wait_s
    # A hair later, for seconds are added and taken away again.
    then = [age + wait_s + 1e-6 for age in ages_s]
    for period_s, most in ((MINUTE_S, budget.per_minute), (HOUR_S, budget.per_hour)):
        assert sum(age < period_s for age in then) < count_share(most, priority)


@given(AGES, PRIORITIES, BUDGETS)
def test_nobody_waits_longer_than_needed(ages_s: list[float], priority: WritePriority, budget: Budget) -> None:
    wait_s = plan_write(ages_s, priority, budget).wait_s
    if wait_s == 0:
        return
    earlier = [age + wait_s - 0.001 for age in ages_s]
    full = [
        sum(age < period_s for age in earlier) >= count_share(most, priority)
        for period_s, most in ((MINUTE_S, budget.per_minute), (HOUR_S, budget.per_hour))
    ]
    assert any(full)


@given(AGES, BUDGETS)
def test_what_is_worth_more_never_waits_longer(ages_s: list[float], budget: Budget) -> None:
    waits = [plan_write(ages_s, priority, budget).wait_s for priority in HIGHEST_FIRST]
    assert waits == sorted(waits)


@given(AGES, PRIORITIES, BUDGETS)
def test_a_write_is_dropped_when_its_turn_is_long_in_coming_and_a_live_edit_when_it_has_to_wait_at_all(
    ages_s: list[float], priority: WritePriority, budget: Budget
) -> None:
    plan = plan_write(ages_s, priority, budget)
    patience_s = 0 if priority is WritePriority.LIVE else budget.longest_wait_s
    assert plan.dropped is (plan.wait_s > patience_s)


@given(st.lists(st.tuples(st.floats(0, 30), PRIORITIES), min_size=1, max_size=150))
def test_no_history_of_writes_overspends(history: list[tuple[float, WritePriority]]) -> None:
    budget = Budget(per_minute=4, per_hour=20, longest_wait_s=30)
    now_s, written_at_s = 0.0, list[float]()
    for pause_s, priority in history:
        now_s += pause_s
        plan = plan_write([now_s - at for at in written_at_s], priority, budget)
        if not plan.dropped:
            now_s += plan.wait_s + 1e-6
            written_at_s.append(now_s)
    ages_s = [now_s - at for at in written_at_s]
    assert most_in(ages_s, MINUTE_S) <= 4
    assert most_in(ages_s, HOUR_S) <= 20


def test_githubs_own_numbers_leave_headroom_for_what_is_worth_more() -> None:
    budget = Budget()
    shares = [
        (count_share(budget.per_minute, priority), count_share(budget.per_hour, priority)) for priority in HIGHEST_FIRST
    ]
    assert shares == [(80, 500), (72, 450), (64, 400), (40, 250)]
    assert plan_write([1.0] * 40, WritePriority.LIVE, budget) == Plan(59, dropped=True)
    assert plan_write([1.0] * 39, WritePriority.LIVE, budget) == Plan(0, dropped=False)
    assert plan_write([55.0] * 72, WritePriority.REPLY, budget) == Plan(5, dropped=False)
    assert plan_write([55.0] * 72, WritePriority.REPORT, budget) == Plan(0, dropped=False)
    assert plan_write([3000.0] * 500, WritePriority.REPORT, budget) == Plan(600, dropped=True)


@given(WAITING)
def test_what_is_worth_more_goes_first_and_nothing_is_left_out(waiting: list[Waiting]) -> None:
    order = take_turns(waiting)
    assert Counter(order) == Counter(waiting)
    assert all(one.priority.percent >= other.priority.percent for one, other in pairwise(order))


@given(WAITING)
def test_no_case_gets_a_second_turn_while_another_waits_for_its_first(waiting: list[Waiting]) -> None:
    for priority in WritePriority:
        turns: Counter[str] = Counter()
        places = []
        for one in take_turns(one for one in waiting if one.priority is priority):
            places.append(turns[one.case])
            turns[one.case] += 1
        assert places == sorted(places)


@given(WAITING, st.randoms(use_true_random=False))
def test_the_order_is_the_same_however_they_come(waiting: list[Waiting], random: Random) -> None:
    mixed = random.sample(waiting, len(waiting))
    assert take_turns(mixed) == take_turns(waiting)


def test_a_case_with_much_to_say_holds_up_no_other() -> None:
    loud = [Waiting(f"loud-{number}", "octo/widgets#1", WritePriority.REPLY, wait(number)) for number in range(3)]
    late = Waiting("late", "octo/widgets#2", WritePriority.REPLY, wait(9))
    first_word = Waiting("first word", "octo/widgets#3", WritePriority.REPORT, wait(10))
    edit = Waiting("edit", "octo/widgets#4", WritePriority.LIVE, wait(0))
    order = [one.id for one in take_turns([edit, *loud, late, first_word])]
    assert order == ["first word", "loud-0", "late", "loud-1", "loud-2", "edit"]
