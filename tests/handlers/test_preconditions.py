"""What speaks against a job on an issue: strangers' pull requests, and caps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from handlers.jobs.preconditions import NotStarted, check_caps, closes
from handlers.ports import MentioningPull
from handlers.rules import RepositoryRules
from runner.model.caps import Caps, Scope
from tests.handlers.test_outcomes import open_desk, running


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("Fixes #5", True),
        ("closes: octo/widgets#5", True),
        ("resolves https://github.com/octo/widgets/issues/5.", True),
        ("fixes #55", False),
        ("see #5", False),
        ("#5 fixes #" + "1" * 5000, False),
    ],
)
def test_a_pull_request_closes_the_issue_that_it_says(body: str, found: bool) -> None:
    """Python reads no number of more than 4,300 digits, and anybody may write one."""
    assert closes(MentioningPull("octo/widgets", 7, "drive-by", body), "octo/widgets", 5) == found


@pytest.mark.parametrize(
    ("limits", "who"),
    [
        ({"caps": {Scope.ISSUE: Caps(jobs=1)}}, "Only the operator of this App can raise it: `caps.issue.jobs`"),
        ({"quotas": {Scope.ISSUE: 1}}, "Maintainers can raise it: `quotas.issue` in `.github/ptq.toml`"),
        (
            {"caps": {Scope.ISSUE: Caps(jobs=2)}, "quotas": {Scope.ISSUE: 1}},
            "Maintainers can raise it: `quotas.issue` in `.github/ptq.toml`",
        ),
    ],
)
async def test_a_refusal_at_a_cap_says_who_can_raise_it(database_url: str, limits: Mapping[str, Any], who: str) -> None:
    async with open_desk(database_url) as desk:
        await desk.add(running())
        rules = RepositoryRules("octo/widgets", "mine", **limits)
        async with desk.db.read() as connection:
            with pytest.raises(NotStarted) as caught:
                await check_caps(connection, desk.context, rules, running().thread, "ada")
    assert who in caught.value.reply
