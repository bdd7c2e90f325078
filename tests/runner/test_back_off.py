"""How long anything waits before it is tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runner.model.back_off import BackOff

WAITS = BackOff(0.5, 3.0)


def test_a_wait_doubles_up_to_the_longest() -> None:
    assert [WAITS.after(failures) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_chance_spreads_a_wait_over_half_and_one_and_a_half() -> None:
    assert [WAITS.after(1, chance=chance) for chance in (0.0, 0.5, 1.0)] == [0.25, 0.5, 0.75]


def test_what_the_other_side_asks_for_is_kept_also_beyond_the_longest() -> None:
    assert [WAITS.after(2, asked_s=asked_s) for asked_s in (0.0, 2.0, 60.0)] == [1.0, 2.0, 60.0]


def test_where_failures_are_not_counted_a_wait_is_as_long_as_it_has_failed() -> None:
    assert [WAITS.since(elapsed_s) for elapsed_s in (-9.0, 0.0, 0.7, 2.0, 9.0)] == [0.5, 0.5, 0.7, 2.0, 3.0]


@given(st.integers(1, 10**9))
def test_a_wait_is_a_number_however_many_failures_there_were(failures: int) -> None:
    assert WAITS.first_s <= WAITS.after(failures) <= WAITS.longest_s
    assert BackOff(0.5).after(failures) < float("inf")
