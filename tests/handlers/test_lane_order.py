from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.events import CANCEL_LANE
from handlers.inbox.lane_order import PAGE, LanePicker, WaitingDelivery, find_due
from runner.db.schema import deliveries
from tests.support.jobs import open_database

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)


def choose(
    *waiting: tuple[int, str], busy: Mapping[str, int] | None = None, cancels: bool = False, most: int = 8
) -> list[int]:
    """Choose among these, of which a lane with a question mark is not due."""
    choice = LanePicker(busy or {}, NOW, cancels, most)
    choice.look_at(
        WaitingDelivery(number, lane.rstrip("?"), LATER if lane.endswith("?") else NOW) for number, lane in waiting
    )
    return choice.chosen


def test_the_first_of_each_lane_is_chosen_and_no_more_than_wanted() -> None:
    assert choose((1, "a"), (2, "a"), (3, "b"), (4, "c")) == [1, 3, 4]
    assert choose((1, "a"), (2, "a"), (3, "b"), (4, "c"), most=2) == [1, 3]


def test_one_that_is_not_due_holds_its_lane_up_and_no_other() -> None:
    assert choose((1, "a?"), (2, "a"), (3, "b")) == [3]


def test_a_busy_lane_is_left_alone() -> None:
    assert choose((2, "a"), (3, "b"), busy={"a": 1}) == [3]


def test_a_cancel_overtakes_what_came_before_it_and_holds_up_what_came_after() -> None:
    waiting = ((1, "a"), (2, "a/cancel"), (3, "a"))
    assert choose(*waiting, busy={"a": 0}, cancels=True) == [2]
    assert choose(*waiting) == [1]
    assert choose(*waiting[1:]) == []
    assert choose((2, "a/cancel?"), (3, "a")) == []


def test_a_cancel_that_is_being_worked_holds_up_only_what_came_after_it() -> None:
    assert choose((3, "a"), busy={"a/cancel": 2}) == []
    assert choose((1, "a"), (3, "a"), busy={"a/cancel": 2}) == [1]


LANES = st.sampled_from(["a", "b", "c"]).flatmap(lambda lane: st.sampled_from([lane, lane + CANCEL_LANE]))


@pytest.mark.slow
@given(
    st.lists(st.tuples(LANES, st.booleans()), max_size=12), st.dictionaries(LANES, st.integers(-3, 0)), st.booleans()
)
def test_whatever_is_chosen_nothing_before_it_on_its_lane_is_left_and_no_cancel_before_it_on_its_issue(
    shown: Sequence[tuple[str, bool]], busy: Mapping[str, int], cancels: bool
) -> None:
    lanes = {number: lane for number, (lane, _) in enumerate(shown, 1)}
    chosen = choose(
        *((number, lane if shown[number - 1][1] else f"{lane}?") for number, lane in lanes.items()),
        busy=busy,
        cancels=cancels,
    )
    for number in chosen:
        lane = lanes[number]
        before = {lanes[other] for other in lanes if other < number} | {*busy}
        assert shown[number - 1][1]
        assert lane.endswith(CANCEL_LANE) is cancels
        assert lane not in before
        assert cancels or lane + CANCEL_LANE not in before


async def test_a_lane_behind_very_many_of_one_that_is_busy_or_rests_is_found(database_url: str) -> None:
    async with open_database(database_url) as database:
        lanes = ["busy"] * PAGE + ["rests"] * 2 * PAGE + ["free", "free/cancel"]
        rows = [
            {"id": f"{number}", "event": "issues", "lane": lane, "body": b"{}", "state": "pending", "attempts": 0}
            | {"received_at": NOW, "next_attempt_at": LATER if lane == "rests" else NOW}
            for number, lane in enumerate(lanes)
        ]
        await database.group_commit.insert(deliveries, rows, "id")
        async with database.read() as connection:
            for cancels in (False, True):
                assert len(await find_due(connection, {"busy": 1}, NOW, cancels=cancels, most=8)) == 1
