"""What GitHub's answers mean where they leave something open."""

from __future__ import annotations

from typing import Any

import pytest

from bot.github.payloads import choose_remover


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
    found = choose_remover([labelled(*event) for event in events], "PTQ:pause")
    assert (found and found.login) == remover
