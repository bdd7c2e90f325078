"""GitHub's JSON into plain values, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from bot.github.payloads import (
    choose_labellings,
    choose_pull_requests,
    choose_remover,
    parse_attempts,
    parse_comment,
    parse_label_changes,
    parse_person,
    parse_role,
    parse_time,
    read_answer,
    render_blob,
    render_time,
    render_tree_entry,
)
from handlers.ports import Author, Comment, DeliveryAttempt, GitHubUnavailable, TreeEntry
from handlers.rules import Role
from tests.support.scripted_github import comment_payload, pull_payload


def test_a_comment_is_read() -> None:
    assert parse_comment(comment_payload(5)) == Comment(
        id=5,
        author="alice",
        body="comment 5",
        created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        updated_at=datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC),
        url="https://github.com/octo/widgets/issues/1#issuecomment-5",
        by_bot=False,
    )


def test_a_deleted_user_is_a_ghost() -> None:
    comment = parse_comment(comment_payload(user=None))
    assert (comment.author, comment.by_bot) == ("ghost", False)


def test_a_bot_is_known_by_its_type_and_an_empty_body_is_empty() -> None:
    comment = parse_comment(comment_payload(user={"login": "x[bot]", "type": "Bot"}, body=None))
    assert (comment.by_bot, comment.body) == (True, "")


@pytest.mark.parametrize("answer", [None, [], {}, "text", {"id": "x"}, comment_payload(created_at="yesterday")])
def test_an_answer_that_cannot_be_read_is_no_answer(answer: Any) -> None:
    with pytest.raises(GitHubUnavailable, match="cannot be read"):
        read_answer(parse_comment, answer)


def test_times_go_there_and_back_in_utc() -> None:
    assert parse_time("2026-01-02T03:04:05Z") == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    east = datetime(2026, 1, 2, 5, 4, 5, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert render_time(east) == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("permission", "name", "role"),
    [
        ("admin", "admin", Role.ADMIN),
        ("write", "write", Role.WRITE),
        ("write", "maintain", Role.MAINTAIN),
        ("write", "our-custom-role", Role.WRITE),
        ("read", "triage", Role.TRIAGE),
        ("read", "write-the-docs", Role.READ),
        ("read", "admin", Role.READ),
        ("none", "none", Role.NONE),
        ("none", "triage", Role.NONE),
    ],
)
def test_a_role_is_what_the_older_field_says_and_what_lies_between(permission: str, name: str, role: Role) -> None:
    assert parse_role({"permission": permission, "role_name": name}) is role
    assert parse_role({"permission": permission, "role_name": name, "user": None}) is role


def test_a_custom_role_counts_as_what_it_grants() -> None:
    grants = {"pull": True, "triage": True, "push": False, "maintain": False, "admin": False}
    answer = {"permission": "read", "role_name": "gardener", "user": {"login": "alice", "permissions": grants}}
    assert parse_role(answer) is Role.TRIAGE


def _labeled(name: str, created_at: str, event: str = "labeled") -> dict[str, Any]:
    actor = {"login": "alice", "type": "User"}
    return {"event": event, "actor": actor, "label": {"name": name}, "created_at": created_at}


def test_every_time_that_a_label_was_put_on_is_listed() -> None:
    events = [
        {"event": "committed", "sha": "1"},
        _labeled("ptq", "2026-01-01T00:00:00Z"),
        _labeled("ptq", "2026-01-02T00:00:00Z", event="unlabeled"),
        _labeled("PTQ", "2026-01-03T00:00:00Z"),
        _labeled("bug", "2026-01-04T00:00:00Z"),
    ]
    found = [(labelling.by.login, labelling.at) for labelling in choose_labellings(parse_label_changes(events, "ptq"))]
    assert found == [("alice", datetime(2026, 1, day, tzinfo=UTC)) for day in (1, 3)]
    assert parse_label_changes(events, "other") == []


def test_a_label_of_a_deleted_account_is_a_ghosts() -> None:
    (change,) = parse_label_changes([_labeled("ptq", "2026-01-01T00:00:00Z") | {"actor": None}], "ptq")
    assert (change.by.login, change.by.is_bot) == ("ghost", False)


@pytest.mark.parametrize(
    ("status", "status_code", "succeeded"),
    [
        ("OK", 202, True),
        ("OK", 200, True),
        ("failed to connect to host", 502, False),
        ("timed out", 504, False),
        ("Invalid HTTP Response: 503", 503, False),
        ("redirected", 301, False),
        ("queued", None, False),
    ],
)
def test_a_delivery_has_succeeded_when_it_was_accepted(status: str, status_code: int | None, succeeded: bool) -> None:
    payload = {"id": 7, "guid": "g", "event": "ping", "action": None, "delivered_at": "2026-01-01T00:00:00Z"}
    (attempt,) = parse_attempts([payload | {"status": status, "status_code": status_code}])
    assert attempt == DeliveryAttempt(7, "g", "ping", None, datetime(2026, 1, 1, tzinfo=UTC), succeeded)


def test_the_pull_requests_of_one_branch_are_chosen() -> None:
    pulls = [
        pull_payload(4),
        pull_payload(9),
        pull_payload(12, branch="ptq/issue-1-b"),
        pull_payload(10, repository_id=2),
        pull_payload(11, "x", None),
    ]
    chosen = choose_pull_requests([*pulls, pull_payload(13, repository_id=None)], "ptq/issue-1-a")
    assert [(pull.number, pull.state, pull.author, pull.base_branch) for pull in chosen] == [
        (4, "closed", "ptq-bot[bot]", "main"),
        (9, "closed", "ptq-bot[bot]", "main"),
    ]
    assert choose_pull_requests([], "ptq/issue-1-a") == []
    (from_fork,) = choose_pull_requests(pulls, "ptq/issue-1-a", from_fork=True)
    assert (from_fork.number, from_fork.head_repository) == (10, "octo/2")


def test_a_persons_name_holds_nothing_that_git_does_not_take() -> None:
    person = parse_person({"id": 7, "login": "boss", "name": "The <Boss>\n"})
    assert person == Author("The Boss", "7+boss@users.noreply.github.com")


def test_a_tree_entry_is_text_or_a_blob_or_a_deletion() -> None:
    where = {"path": "a.py", "mode": "100755", "type": "blob"}
    assert render_tree_entry(TreeEntry("a.py", "100755", text="")) == {**where, "content": ""}
    assert render_tree_entry(TreeEntry("a.py", "100755", blob_sha="b" * 40)) == {**where, "sha": "b" * 40}
    assert render_tree_entry(TreeEntry("a.py", "100755")) == {**where, "sha": None}


def test_a_blob_takes_any_bytes() -> None:
    assert render_blob(b"\x00\xff") == {"content": "AP8=", "encoding": "base64"}


def labelled(event: str, second: int, login: str) -> dict[str, Any]:
    at = f"2026-03-01T12:00:{second:02}Z"
    actor = {"login": login, "type": "User"}
    return {"event": event, "label": {"name": "ptq:pause"}, "created_at": at, "actor": actor}


@pytest.mark.parametrize(
    ("events", "remover"),
    [
        ([("labeled", 1, "a"), ("unlabeled", 2, "b")], "b"),
        ([("labeled", 1, "a"), ("unlabeled", 1, "b")], "b"),
        ([("unlabeled", 1, "b"), ("labeled", 1, "a")], None),
        ([("unlabeled", 2, "b"), ("labeled", 1, "a")], "b"),
        ([], None),
    ],
)
def test_the_last_of_what_happened_to_a_label_counts_also_within_one_second(
    events: list[tuple[str, int, str]], remover: str | None
) -> None:
    found = choose_remover(parse_label_changes([labelled(*event) for event in events], "PTQ:pause"))
    assert (found and found.login) == remover
