"""What speaks against a job on an issue: strangers' pull requests, and caps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from handlers.events import Issue, User
from handlers.jobs.preconditions import NotStarted, check_caps, closes, find_known, find_objections
from handlers.ports import MentioningPull
from handlers.rules import RepositoryRules
from handlers.words import form_errors
from runner.model.caps import Caps, Scope
from runner.model.job import JobState, Report
from runner.rows import job_rows
from tests.handlers.test_outcomes import open_desk, running
from tests.support.jobs import NOON, make_job, store_report


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


@pytest.mark.slow
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
                await check_caps(connection, desk.context, rules, running().topic, "ada")
    assert who in caught.value.reply


async def test_a_new_attempt_knows_the_newest_report_that_others_may_use(database_url: str) -> None:
    bodies = (
        ("diagnose", JobState.SUCCEEDED, "reproduced\n\nAn early end."),
        ("fix", JobState.SUCCEEDED, "security concern\n\nAnyone may empty the till."),
        ("fix", JobState.FAILED, " \n"),
        ("verify", JobState.SUCCEEDED, ""),
        ("rebase", JobState.FAILED, "unable to fix\n\nTwo conflicts are left."),
        ("fix", JobState.FAILED, None),
    )
    async with open_desk(database_url) as desk:
        for attempt, (preset, state, body) in enumerate(bodies, 1):
            job = make_job(id=str(attempt), attempt=attempt, preset=preset, state=state)
            async with desk.db.write() as connection:
                await job_rows.insert_job(connection, job)
                if body is not None:
                    await store_report(connection, Report(job.id, body, "Tried.", "", "", "", (), None))
        async with desk.db.read() as connection:
            known = await find_known(connection, desk.context, job.repository, job.issue_number, private=False)
            assert known
            assert (known.job.id, known.continued, known.worklog) == ("1", False, "Tried.")
            assert await find_known(connection, desk.context, job.repository, 8, private=False) is None


def test_each_objection_names_the_issue_once() -> None:
    issue = Issue(
        number=7, title="Broken", created_at=NOON, updated_at=NOON, assignees=(User(login="ada", type="User"),)
    )
    several = "open pull requests would close it (#8, #9)"
    assert find_objections(issue, ["#8", "#9"]) == ["this issue is assigned to `ada`", several]
    closed = issue.model_copy(update={"state": "closed"})
    assert find_objections(closed, []) == ["this issue is closed", "it is assigned to `ada`"]


def test_a_terminal_names_its_own_options() -> None:
    missing = NotStarted("Use `/ptq rebase onto BRANCH`.", form_errors.say_onto_missing("v1.0"))
    assert str(missing) == "GitHub has no branch v1.0, the base of this diff. Name a branch with --onto BRANCH."
    assert str(NotStarted("Fix `.github/ptq.toml`.")) == "Fix .github/ptq.toml."
