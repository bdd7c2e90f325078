"""Which deliveries are taken and which labels are due, over plain values."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from handlers.commands.rights import Person, Surface
from handlers.events import Issue, IssueLabel, IssueLabeled, Repository, User, find_repository
from handlers.ports import DeliveryAttempt, Labelling
from handlers.recovery.missed import (
    KEPT,
    OVERLAP,
    UnansweredLabel,
    choose_due,
    choose_missed,
    find_labels_start,
    find_start,
)
from tests.support.jobs import NOON

ALICE = User(login="alice")
SECOND = timedelta(seconds=1)


def attempt(number: int, guid: str, *, succeeded: bool = False, event: str = "issue_comment") -> DeliveryAttempt:
    return DeliveryAttempt(number, guid, event, "created", NOON + number * SECOND, succeeded)


def choose(*attempts: DeliveryAttempt) -> list[int]:
    return choose_until(None, *attempts)


def choose_until(doubted_until: datetime | None, *attempts: DeliveryAttempt) -> list[int]:
    chosen = choose_missed(attempts, lambda attempt: attempt.event == "issue_comment", doubted_until)
    return [attempt.id for attempt in chosen]


def test_a_delivery_that_never_arrived_is_missed() -> None:
    assert choose(attempt(2, "lost"), attempt(1, "fine", succeeded=True)) == [2]


@pytest.mark.parametrize("succeeded", [1, 2, 3])
def test_one_attempt_that_succeeded_is_enough(succeeded: int) -> None:
    assert choose(*(attempt(number, "g", succeeded=number == succeeded) for number in (3, 2, 1))) == []


def test_of_a_delivery_that_failed_twice_the_newest_attempt_is_taken_in_the_place_of_the_first() -> None:
    assert choose(attempt(9, "first"), attempt(5, "second"), attempt(1, "first")) == [9, 5]


def test_where_somebody_answers_for_us_a_success_says_nothing_once_it_is_no_longer_under_way() -> None:
    tries = attempt(1, "a", succeeded=True), attempt(2, "b"), attempt(3, "c", succeeded=True)
    assert choose_until(NOON + 2 * SECOND, *tries) == [1, 2]
    assert choose_until(NOON + 3 * SECOND, *tries) == [1, 2, 3]
    assert choose_until(NOON + SECOND, attempt(1, "a", succeeded=True), attempt(2, "a", succeeded=True)) == []


def test_what_nobody_works_is_not_taken() -> None:
    assert choose(attempt(1, "a", event="ping"), attempt(2, "b", event="workflow_run")) == []


def test_a_pass_looks_a_little_behind_the_last_and_never_beyond_what_github_keeps() -> None:
    assert find_start(NOON - timedelta(hours=1), NOON) == NOON - timedelta(hours=1) - OVERLAP
    assert find_start(NOON - timedelta(days=9), NOON) == NOON - KEPT


def test_labels_count_from_when_the_repository_was_enabled() -> None:
    assert find_labels_start(NOON, NOON) == NOON
    assert find_labels_start(NOON - timedelta(days=9), NOON) == NOON - OVERLAP


def put_on(*ats: datetime, by: User = ALICE) -> list[Labelling]:
    return [Labelling(by, at) for at in ats]


@pytest.mark.parametrize("after_s", [0, 1, 60])
def test_a_label_of_the_window_is_due(after_s: int) -> None:
    (labelling,) = labellings = put_on(NOON + after_s * SECOND)
    assert choose_due(labellings, NOON, NOON + 60 * SECOND) == labelling


@pytest.mark.parametrize("after_s", [-1, 61])
def test_a_label_from_before_the_window_or_after_it_is_not_due(after_s: int) -> None:
    assert choose_due(put_on(NOON + after_s * SECOND), NOON, NOON + 60 * SECOND) is None


def test_only_the_last_labelling_counts() -> None:
    assert choose_due(put_on(NOON, NOON + 90 * SECOND), NOON, NOON + 60 * SECOND) is None
    assert choose_due([], NOON, NOON) is None


@pytest.mark.parametrize("bot", [User(login="triage", type="Bot"), User(login="triage[bot]")])
def test_a_bots_label_is_not_due(bot: User) -> None:
    assert choose_due(put_on(NOON, by=bot), NOON, NOON) is None


def labeled(**changes: Any) -> IssueLabeled:
    values = {"number": 7, "label": "ptq", "name": "octo/widgets", "at": NOON, **changes}
    at = values["at"]
    return IssueLabeled(
        issue=Issue(number=values["number"], title="", created_at=at, updated_at=at),
        label=IssueLabel(name=values["label"]),
        repository=Repository(full_name=values["name"], private=False, default_branch="main", clone_url=""),
        sender=ALICE,
    )


def test_a_delivery_belongs_to_the_label_whose_time_it_tells() -> None:
    due = UnansweredLabel(labeled(), Person("maintainer", Surface.THREAD), "fix", NOON)
    assert due.issue == "octo/widgets#7"
    assert due.tells(labeled(label="PTQ", name="Octo/Widgets", at=NOON + SECOND))
    others: list[dict[str, Any]] = [{"number": 8}, {"label": "ptq:fix"}, {"name": "octo/x"}, {"at": NOON - 90 * SECOND}]
    for other in others:
        assert not due.tells(labeled(**other)), other


@pytest.mark.parametrize(
    ("payload", "repository"),
    [({"repository": {"full_name": "Octo/Widgets"}}, "octo/widgets"), ({"repository": None}, ""), ({}, "")],
)
def test_a_delivery_may_be_about_no_repository(payload: dict[str, Any], repository: str) -> None:
    assert find_repository(payload)[0].lower() == repository
