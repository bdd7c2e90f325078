from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.cases.case import Case, CaseState, IllegalCaseMove, begin_job, close_issue, end_job, open_pull
from tests.support.jobs import NOON

IDLE = Case("octo/widgets#7", "octo/widgets", 7, "It breaks", CaseState.IDLE, NOON, NOON)


def test_a_diff_makes_the_case_wait_for_a_note() -> None:
    case = end_job(begin_job(IDLE, "a", NOON), "a", NOON, approvable=True)
    assert (case.state, case.standing_job_id, case.active_job_id) == (CaseState.AWAITING_NOTE, "a", None)


def test_a_report_without_a_diff_leaves_the_case_idle() -> None:
    case = end_job(begin_job(IDLE, "a", NOON), "a", NOON, approvable=False)
    assert (case.state, case.standing_job_id) == (CaseState.IDLE, None)


def test_a_second_job_cannot_begin_while_one_is_active() -> None:
    with pytest.raises(IllegalCaseMove):
        begin_job(begin_job(IDLE, "a", NOON), "b", NOON)


def test_a_fruitless_second_attempt_leaves_the_first_diff_standing() -> None:
    first = end_job(begin_job(IDLE, "a", NOON), "a", NOON, approvable=True)
    second = end_job(begin_job(first, "b", NOON), "b", NOON, approvable=False)
    assert (second.state, second.standing_job_id) == (CaseState.AWAITING_NOTE, "a")


def test_the_end_of_a_job_that_is_not_the_active_one_changes_nothing() -> None:
    active = begin_job(IDLE, "a", NOON)
    assert end_job(active, "b", NOON, approvable=True) == active


def test_with_its_issue_closed_a_pull_request_is_no_longer_waited_for_and_the_next_job_finds_it() -> None:
    waiting = end_job(begin_job(IDLE, "a", NOON), "a", NOON, approvable=True)
    closed = close_issue(open_pull(waiting, "a", 12, NOON), NOON)
    assert (closed.state, closed.pull_number) == (CaseState.IDLE, 12)
    assert end_job(begin_job(closed, "b", NOON), "b", NOON, approvable=False).state is CaseState.PULL_OPEN
    for other in (IDLE, waiting, begin_job(IDLE, "a", NOON)):
        assert close_issue(other, NOON) == other


def test_a_pull_request_opened_during_another_attempt_lets_it_go_on() -> None:
    waiting = end_job(begin_job(IDLE, "a", NOON), "a", NOON, approvable=True)
    case = open_pull(begin_job(waiting, "b", NOON), "a", 12, NOON)
    assert (case.state, case.active_job_id, case.pull_number) == (CaseState.ACTIVE, "b", 12)
    assert end_job(case, "b", NOON, approvable=False).state is CaseState.PULL_OPEN


STEPS = st.lists(st.sampled_from(["begin", "end", "end with a diff", "open"]), max_size=12)


@given(STEPS)
def test_whatever_happens_the_state_and_what_it_names_agree(steps: list[str]) -> None:
    case = IDLE
    for number, step in enumerate(steps, start=1):
        if step == "begin" and not case.active_job_id:
            case = begin_job(case, f"job{number}", NOON)
        elif step.startswith("end") and case.active_job_id:
            case = end_job(case, case.active_job_id, NOON, approvable=step.endswith("diff"))
        elif step == "open" and case.standing_job_id:
            case = open_pull(case, case.standing_job_id, number, NOON)
        assert (case.state is CaseState.ACTIVE) == (case.active_job_id is not None)
        if case.state is CaseState.AWAITING_NOTE:
            assert case.standing_job_id
        if case.state is CaseState.PULL_OPEN:
            assert case.pull_number
            assert not case.standing_job_id
