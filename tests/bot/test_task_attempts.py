"""Further attempts at a task: a follow-up and a rebase, on its page, by the rules of an issue's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bot.operations.launch import IssueOrder
from handlers.commands.options import Options
from handlers.commands.rights import Person, Surface
from handlers.events import Repository
from handlers.jobs.preconditions import NotStarted
from handlers.jobs.start import RETRY
from handlers.jobs.task_attempts import start_further
from handlers.jobs.tasks import Refused, choose_preset
from handlers.rules import PRESETS, RepositoryRules, Role
from runner.model.job import Job, JobKind, JobState
from tests.bot.test_dashboard_actions import add_commit
from tests.bot.test_task_notes import ID, PAGE, add_task, bring, go_for_a_note
from tests.support.dashboard import Dashboard, open_dashboard
from tests.support.site import make_report
from tests.support.visitor import NAME
from tests.support.world import NOTE

pytestmark = pytest.mark.slow

FOLLOW_UP, REBASE = f"{PAGE}/follow-up", f"{PAGE}/rebase"


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Dashboard]:
    async with open_dashboard(tmp_path) as dashboard:
        yield dashboard


async def newest(dashboard: Dashboard) -> Job:
    return max(await dashboard.jobs(), key=lambda job: job.attempt)


async def test_a_follow_up_of_a_task_continues_with_its_words_its_edits_and_a_hint(dashboard: Dashboard) -> None:
    await add_task(dashboard, task="Write down how to begin.", preset="fix")
    async with dashboard.browser("alice") as browser:
        page = await browser.visit(PAGE)
        assert "Task\nWrite down how to begin." in page.text, "what the agent was asked for"
        fields = {**browser.fields(FOLLOW_UP), "advice": "Shorter, please."}
        assert "someone is working on this issue" not in browser.page.text
        await browser.send(FOLLOW_UP, fields)
        assert "queued" in browser.page.text
        where = browser.path
        await browser.send(FOLLOW_UP, fields)
        assert browser.path == where, "sent twice, it is asked for once"
        page = await browser.visit(PAGE)
        assert "Attempts" in page.text
        assert not browser.offers(FOLLOW_UP), "the newest attempt is continued"
    job = await newest(dashboard)
    assert (job.kind, job.series, job.name, job.attempt, job.follows) == (JobKind.TASK, 1, "docs", 2, ID)
    assert (job.preset, job.may_change, job.agent, job.requested_by) == ("fix", True, "mine", "alice")
    assert (job.thread, job.base_branch, job.task) == (None, "main", "Write down how to begin.")
    for words in ("Write down how to begin.", "Shorter, please.", "The file is there.", "already holds its edits"):
        assert words in job.prompt, words


@pytest.mark.parametrize("form", [FOLLOW_UP, REBASE])
async def test_somebody_who_may_start_nothing_starts_no_further_attempt(dashboard: Dashboard, form: str) -> None:
    await add_task(dashboard, task="Write it down.")
    add_commit(dashboard)
    async with dashboard.browser("carol") as browser:
        dashboard.github.set_permission(NAME, "carol", "read")
        await browser.visit(PAGE)
        assert not browser.offers(form)
        csrf = browser.fields("/sign-out")["csrf"]
        assert (await browser.send(form, {"csrf": csrf, "advice": "Do it."})).status == 403
    assert len(await dashboard.jobs()) == 1


async def test_what_keeps_a_follow_up_from_starting_is_said_with_the_text_that_was_typed(dashboard: Dashboard) -> None:
    await add_task(dashboard, preset="worktree", kind=JobKind.RELEASE)
    rules = cast("dict[str, RepositoryRules]", dashboard.context.repositories)
    async with dashboard.browser("alice") as browser:
        await browser.visit(PAGE)
        page = await browser.fill_in(FOLLOW_UP, {"advice": " "})
        assert (page.status, "Say what the agent should do." in page.text) == (409, True)
        rules[NAME] = replace(rules[NAME], presets=("diagnose",))
        page = await browser.fill_in(FOLLOW_UP, {"advice": "Mind the gap."})
        assert (page.status, "does not allow ad-hoc" in page.text) == (409, True)
        assert "Mind the gap." in page.html
        rules[NAME] = replace(rules[NAME], presets=None)
        await browser.fill_in(FOLLOW_UP, {"advice": "Mind the gap."})
        assert (await newest(dashboard)).task == "Mind the gap.", "a person's edits had no task"
        await browser.visit(PAGE)
        running = await newest(dashboard)
        csrf = browser.fields("/sign-out")["csrf"]
        page = await browser.send(FOLLOW_UP, {"csrf": csrf, "advice": "And again."})
        assert (page.status, "Another attempt at this task is running" in page.text) == (409, True)
    assert (await newest(dashboard)).id == running.id


async def test_a_preset_that_carries_on_continues_a_task_and_needs_its_diff(dashboard: Dashboard) -> None:
    task: dict[str, Any] = {"kind": JobKind.TASK, "series": 2, "name": "look", "task": "Look."}
    bare = await dashboard.add(make_report(job_id="empty00001"), id="empty00001", state=JobState.SUCCEEDED, **task)
    job = await add_task(dashboard, task="Write it down.", preset="fix")
    person = Person("alice", Surface.PAGE, dashboard.context.repositories[NAME], Role.WRITE)
    repository = Repository(full_name=NAME, private=False, default_branch="main", clone_url=job.clone_url)
    order = IssueOrder(RETRY, Options(preset="simplify"))
    with pytest.raises(NotStarted, match="The last attempt has no change, and this preset needs one"):
        await start_further(dashboard.context, order.for_task(person, repository, bare, "once"))
    rebase = IssueOrder(RETRY, Options(preset="rebase"))
    with pytest.raises(Refused, match="rebase has a form and a command of its own; available: repro, diagnose"):
        await start_further(dashboard.context, rebase.for_task(person, repository, job, "once"))
    further = await start_further(dashboard.context, order.for_task(person, repository, job, "once"))
    assert (further.preset, further.follows) == ("simplify", ID)


async def test_a_confidential_task_is_not_continued(dashboard: Dashboard) -> None:
    job = await add_task(dashboard, task="Look.", confidential=True)
    dashboard.github.set_permission(NAME, "root", "admin")
    async with dashboard.browser("root") as browser:
        await browser.visit(f"/jobs/{job.id}")
        page = await browser.fill_in(FOLLOW_UP, {"advice": "More."})
        assert (page.status, "This attempt cannot be continued: start a new task." in page.text) == (409, True)


async def test_the_diff_of_a_task_is_rebased_onto_the_newest_commit_of_the_base_branch(dashboard: Dashboard) -> None:
    rules = cast("dict[str, RepositoryRules]", dashboard.context.repositories)
    rules[NAME] = replace(rules[NAME], environment_branch="viable")
    await add_task(dashboard, task="Write it down.", base_branch="viable")
    async with dashboard.browser("alice") as browser:
        await browser.visit(PAGE)
        page = await browser.fill_in(REBASE)
        assert (page.status, "there is nothing to rebase" in page.text) == (409, True)
        add_commit(dashboard)
        page = await browser.fill_in(REBASE, {"onto": "no-such-branch"})
        assert (page.status, "Enter an existing branch, or the full SHA" in page.text) == (409, True)
        await browser.fill_in(REBASE, {"onto": ""})
        assert "queued" in browser.page.text
    job = await newest(dashboard)
    assert (job.kind, job.preset, job.series, job.attempt, job.follows) == (JobKind.REBASE, "rebase", 1, 2, ID)
    assert (job.base_branch, job.base_commit, job.requested_by) == ("main", None, "alice")
    assert "Git has merged the earlier attempt's change" in job.prompt


async def test_a_diff_that_is_in_a_pull_request_is_rebased_and_one_that_nobody_could_approve_is_not(
    dashboard: Dashboard,
) -> None:
    await add_task(dashboard, task="Write it down.")
    failed = await add_task(dashboard, "failed0001", series=2, state=JobState.FAILED)
    add_commit(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser)
        await browser.fill_in(f"{PAGE}/note", {"note": NOTE})
        assert len(await bring(dashboard)) == 1
        await browser.visit(PAGE)
        await browser.fill_in(REBASE)
        assert (await newest(dashboard)).follows == ID
        await browser.visit(f"/jobs/{failed.id}")
        page = await browser.fill_in(f"/jobs/{failed.id}/rebase")
        assert (page.status, "There is no diff to rebase" in page.text) == (409, True)


def test_a_preset_that_the_repository_does_not_allow_is_refused_for_that_reason() -> None:
    narrow = RepositoryRules(NAME, "mine", presets=("fix",))
    with pytest.raises(Refused, match="does not allow rebase; available: none"):
        choose_preset("rebase", narrow, PRESETS, kind=JobKind.REBASE, continues=True)
    with pytest.raises(Refused, match="does not allow simplify; available: fix"):
        choose_preset("Simplify", narrow, PRESETS)
    assert choose_preset("Fix", narrow, PRESETS).name == "fix"
