"""A note on a job without an issue: GitHub says whose it is, and its pull request opens once, with what they saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from github_standin.model.state import Pull
from handlers.cases import casebook
from handlers.commands.rights import NotPermitted, Person, Surface
from handlers.context import Context
from handlers.effects.drain import drain
from handlers.ports import GitHub, PullRequest
from handlers.pulls.note import NoteText
from handlers.pulls.pulls import Pulls, approve_on_page
from handlers.rules import RepositoryRules
from runner.model.job import FileChange, Job, JobKind, JobState, digest_of
from runner.rows import job_rows
from tests.support.dashboard import Browser, Dashboard, open_dashboard
from tests.support.patches import render_patch
from tests.support.site import make_report
from tests.support.visitor import NAME
from tests.support.world import NOTE

pytestmark = pytest.mark.slow

ID = "0123456789"
PAGE = f"/jobs/{ID}"


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Dashboard]:
    async with open_dashboard(tmp_path) as dashboard:
        yield dashboard


async def add_task(dashboard: Dashboard, job_id: str = ID, content: str = "Read me.\n", **changes: Any) -> Job:
    """A task that ended with a new file."""
    base, change = dashboard.visitor.base, FileChange("NOTES.md", "100644", content.encode())
    values: dict[str, Any] = {"id": job_id, "kind": JobKind.TASK, "series": 1, "name": "docs", "preset": "ad-hoc"}
    values |= {"state": JobState.SUCCEEDED, "base_commit": base, **changes}
    texts = {"body": "done\n\n## Summary\n\nThe file is there.\n", "pr_title": "Add notes", "worklog": "Wrote it."}
    digest = digest_of(base, [change], dashboard.database.secret)
    report = make_report(job_id=job_id, changes=(change,), patch=render_patch([change]), digest=digest, **texts)
    return await dashboard.add(report, **values)


async def go_for_a_note(browser: Browser, login: str = "alice", page: str = PAGE) -> None:
    """To the form of a note, by way of GitHub."""
    asked = await browser.visit(f"{page}/note")
    await browser.choose(asked, login)


async def fetch_pull(dashboard: Dashboard, job_id: str = ID) -> casebook.Pull | None:
    async with dashboard.database.read() as connection:
        return await casebook.fetch_pull(connection, job_id)


async def bring(dashboard: Dashboard, context: Context | None = None) -> list[Pull]:
    await drain(Pulls(context or dashboard.context))
    return dashboard.github.pulls(NAME)


def list_branches(dashboard: Dashboard) -> list[str]:
    return dashboard.visitor.git("for-each-ref", "--format=%(refname:short)", "refs/heads/ptq").split()


async def test_a_note_on_the_page_of_a_task_opens_one_draft_pull_request_that_begins_with_it(
    dashboard: Dashboard,
) -> None:
    await add_task(dashboard)
    async with dashboard.browser("alice") as browser:
        assert "which comes first in the pull request" in (await browser.visit(PAGE)).text
        await go_for_a_note(browser)
        assert "everybody who sees the pull request can read them" in browser.page.text
        fields = {**browser.fields(f"{PAGE}/note"), "note": NOTE}
        page = await browser.send(f"{PAGE}/note", {**fields, "note": "lgtm"})
        assert (page.status, "needs 30" in page.text) == (409, True)
        sent = await asyncio.gather(*(browser.send(f"{PAGE}/note", fields) for _ in range(2)))
        assert [page.status for page in sent] == [200, 200]
        page = await browser.send(f"{PAGE}/note", fields)
        assert (page.status, "Your note was accepted. The pull request will appear here" in page.text) == (200, True)
        assert not browser.offers(f"{PAGE}/note")
        assert "waits for a note" in (await browser.visit(f"{PAGE}/note")).text
        (pull,) = await bring(dashboard)
        await bring(dashboard)
        page = await browser.visit(PAGE)
        assert f"Pull request #{pull.number}" in page.text
        assert f"draft pull request #{pull.number} by @alice's note" in page.text
        assert "ptq-pen" not in browser.cookies(), "the token is gone"
    assert pull.draft
    assert (pull.title, list_branches(dashboard)) == ("Add notes", [f"ptq/task-{ID}"])
    body = pull.body
    assert body.startswith(f"**@alice wrote:**\n\n{NOTE}\n\n<!-- ptq:pull={ID} -->")
    assert f"Approved by @alice (digest `{fields['digest']}`) with the note above." in body
    assert "Fixes #" not in body
    message = dashboard.visitor.git("log", "-1", "--format=%B", pull.head_sha)
    assert "issue" not in message
    assert dashboard.visitor.git("diff", "--stat=80", dashboard.visitor.base, pull.head_sha).startswith(
        "NOTES.md | 1 +"
    )
    stored = await fetch_pull(dashboard)
    assert stored
    assert stored.approver_id == dashboard.github.add_user("alice").id
    assert len(dashboard.github.pulls(NAME)) == 1


@pytest.mark.parametrize(("login", "role", "says"), [("bob", "none", "not found"), ("carol", "read", "You need write")])
async def test_somebody_without_write_access_opens_nothing(
    dashboard: Dashboard, login: str, role: str, says: str
) -> None:
    await add_task(dashboard)
    dashboard.github.set_permission(NAME, login, role)
    async with dashboard.browser(login) as browser:
        assert "Open the pull request" not in (await browser.visit(PAGE)).text
        await go_for_a_note(browser, login)
        page = await browser.fill_in(f"{PAGE}/note", {"note": NOTE})
        assert page.status in (403, 404)
        assert says in page.text
        assert NOTE in page.text, "what they typed is not lost"
        fields = {"note": NOTE, "digest": "ab" * 6}
        assert (await browser.send(f"{PAGE}/note", fields, origin="https://evil.example")).status == 403
    assert (await fetch_pull(dashboard), await bring(dashboard)) == (None, [])


async def test_a_form_without_the_token_of_its_session_opens_nothing(dashboard: Dashboard) -> None:
    await add_task(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser)
        fields = {**browser.fields(f"{PAGE}/note"), "note": NOTE}
        assert (await browser.send(f"{PAGE}/note", {**fields, "csrf": "x"})).status == 403
        assert (await browser.send(f"{PAGE}/note", fields, origin="https://evil.example")).status == 403
        pen = browser.cookies()["ptq-pen"]
        async with dashboard.browser("carol") as other:
            dashboard.github.set_permission(NAME, "carol", "write")
            other.session.cookie_jar.update_cookies({"ptq-pen": pen})
            await other.visit("/jobs")
            stolen = {**fields, "csrf": other.fields("/sign-out")["csrf"]}
            assert (await other.send(f"{PAGE}/note", stolen)).status == 403, "the token is alice's"
    assert await fetch_pull(dashboard) is None


async def test_a_note_opens_nothing_once_its_author_has_lost_their_access_and_may_come_again(
    dashboard: Dashboard,
) -> None:
    await add_task(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser)
        await browser.fill_in(f"{PAGE}/note", {"note": NOTE})
        dashboard.github.set_permission(NAME, "alice", "read")
        assert (await bring(dashboard), list_branches(dashboard)) == ([], [])
        dashboard.github.set_permission(NAME, "alice", "write")
        page = await browser.visit(PAGE)
        lost = "alice no longer has write access, so the note is not valid"
        assert f"The pull request was not opened: {lost}. After this is fixed, send the note again." in page.text
        await go_for_a_note(browser)
        await browser.fill_in(f"{PAGE}/note", {"note": NOTE})
        assert len(await bring(dashboard)) == 1


async def test_a_note_opens_nothing_once_another_account_has_its_authors_login(dashboard: Dashboard) -> None:
    await add_task(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser)
        await browser.fill_in(f"{PAGE}/note", {"note": NOTE})
    accepted = await fetch_pull(dashboard)
    assert accepted
    async with dashboard.database.write() as connection:
        await casebook.change_pull(connection, accepted, approver_id=1)
    assert (await bring(dashboard), list_branches(dashboard)) == ([], [])
    given_up = await fetch_pull(dashboard)
    assert given_up
    assert given_up.abandoned == "the login alice no longer belongs to the author of the note, so the note is not valid"


async def test_a_note_approves_only_the_diff_that_its_form_showed(dashboard: Dashboard) -> None:
    await add_task(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser)
        fields = {**browser.fields(f"{PAGE}/note"), "note": NOTE}
        for digest in ("ab" * 6, ""):
            page = await browser.send(f"{PAGE}/note", {**fields, "digest": digest})
            assert (page.status, "Another diff has replaced the one" in page.text) == (409, True)
        newer = await add_task(dashboard, "newer00001", "Read me first.\n", attempt=2)
        page = await browser.send(f"{PAGE}/note", fields)
        assert (page.status, "no longer waiting for a note" in page.text) == (409, True)
        await go_for_a_note(browser, page=f"/jobs/{newer.id}")
        await browser.fill_in(f"/jobs/{newer.id}/note", {"note": NOTE})
        (pull,) = await bring(dashboard)
        assert dashboard.visitor.git("show", f"{pull.head_sha}:NOTES.md") == "Read me first."
        # A follow-up that comes to the same diff needs no note.
        await add_task(dashboard, "newer00002", "Read me first.\n", attempt=3)
        page = await browser.visit("/jobs/newer00002")
        assert (f"Pull request #{pull.number}" in page.text, "Open the pull request" in page.text) == (
            True,
            False,
        )


async def test_a_note_on_a_later_attempt_adds_to_the_pull_request_of_the_task(dashboard: Dashboard) -> None:
    await add_task(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser)
        await browser.fill_in(f"{PAGE}/note", {"note": NOTE})
        (pull,) = await bring(dashboard)
        newer = await add_task(dashboard, "newer00001", "Read me first.\n", attempt=2)
        await go_for_a_note(browser, page=f"/jobs/{newer.id}")
        assert f"While pull request #{pull.number} is open, your note adds a commit to it" in browser.page.text
        await browser.fill_in(f"/jobs/{newer.id}/note", {"note": f"{NOTE} Now it says where to begin."})
        (updated,) = await bring(dashboard)
    assert updated.body.startswith(f"**@alice wrote:**\n\n{NOTE} Now it says where to begin.")
    assert list_branches(dashboard) == [f"ptq/task-{ID}"]
    assert dashboard.visitor.git("show", f"{updated.head_sha}:NOTES.md") == "Read me first."


class Crash(BaseException):
    """The service is gone."""


class Dying:
    """GitHub, in front of which the service dies once, before or after a call."""

    def __init__(self, github: GitHub, call: str, *, before: bool) -> None:
        self._github = github
        self._call = call
        self._before = before

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._github, name)
        if name != self._call:
            return method

        async def die(*args: Any, **kwargs: Any) -> PullRequest:
            if not self._before:
                await method(*args, **kwargs)
            raise Crash

        return die


async def test_whatever_crashes_there_is_one_branch_and_one_pull_request(dashboard: Dashboard) -> None:
    await add_task(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser)
        await browser.fill_in(f"{PAGE}/note", {"note": NOTE})
    for call in ("create_commit", "create_branch", "create_draft_pull_request", "assign"):
        for before in (True, False):
            dying = cast(GitHub, Dying(dashboard.context.github, call, before=before))
            with pytest.raises(Crash):
                await bring(dashboard, replace(dashboard.context, github=dying))
    (pull,) = await bring(dashboard)
    assert (pull.state, list_branches(dashboard)) == ("open", [f"ptq/task-{ID}"])
    stored = await fetch_pull(dashboard)
    assert stored
    assert (stored.number, stored.commit_sha) == (pull.number, pull.head_sha)


async def test_nobody_writes_a_note_at_a_terminal_or_on_another_page(dashboard: Dashboard) -> None:
    task = await add_task(dashboard)
    rules = RepositoryRules(NAME, agent="mine")
    note = NoteText("ab" * 6, NOTE)
    operator = Person("root", Surface.TERMINAL, rules, is_operator=True)
    with pytest.raises(NotPermitted):
        await approve_on_page(dashboard.context, operator, 1, task, note)
    assert await fetch_pull(dashboard) is None


async def test_a_diff_with_a_secret_or_without_a_good_end_gets_no_form(dashboard: Dashboard) -> None:
    await add_task(dashboard, content="key = 'AKIAIOSFODNN7EXAMPLE'\n")
    failed = await add_task(dashboard, "failed0001", series=2, state=JobState.FAILED)
    async with dashboard.browser("alice") as browser:
        page = await browser.visit(f"{PAGE}/note")
        assert (page.status, "adds a possible secret in NOTES.md" in page.text) == (409, True)
        page = await browser.visit(f"/jobs/{failed.id}/note")
        assert (page.status, "no diff of this job that waits for a note" in page.text) == (409, True)


async def test_a_confidential_report_of_a_task_gets_no_form(dashboard: Dashboard) -> None:
    job = await add_task(dashboard, confidential=True)
    dashboard.github.set_permission(NAME, "root", "admin")
    async with dashboard.browser("root") as browser:
        assert (await browser.visit(f"/jobs/{job.id}/note")).status == 409


@pytest.mark.parametrize("began_at", ["viable", "HEAD", "refs/heads/main"])
async def test_the_pull_request_of_a_task_goes_to_the_base_branch_wherever_the_task_began(
    dashboard: Dashboard, began_at: str
) -> None:
    rules = cast("dict[str, RepositoryRules]", dashboard.context.repositories)
    rules[NAME] = replace(rules[NAME], environment_branch="viable")
    await add_task(dashboard, base_branch=began_at)
    async with dashboard.browser("alice") as browser:
        assert "“Add notes” → main" in (await browser.visit(PAGE)).text
        await go_for_a_note(browser)
        assert "for branch main" in browser.page.text
        await browser.fill_in(f"{PAGE}/note", {"note": NOTE})
        (pull,) = await bring(dashboard)
        assert pull.base == "main"
        # After a rebase, its base branch is the other one.
        rebased = await add_task(dashboard, "rebased001", "Read me first.\n", attempt=2, base_branch="main")
        page = await browser.visit(f"/jobs/{rebased.id}")
        assert f"while it is open, pull request #{pull.number} gets a commit instead" in page.text
        assert f"{dashboard.github.url}/{NAME}/pull/{pull.number}" in (await browser.visit("/jobs")).html


async def test_the_pull_request_of_a_worktree_names_the_person_who_worked_in_it(dashboard: Dashboard) -> None:
    await add_task(dashboard, kind=JobKind.RELEASE, preset="worktree", requested_by="casey")
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser)
        await browser.fill_in(f"{PAGE}/note", {"note": NOTE})
        (pull,) = await bring(dashboard)
    assert "casey on base `" in pull.body
    assert "a coding agent" not in pull.body
    assert "Written by casey." in dashboard.visitor.git("log", "-1", "--format=%B", pull.head_sha)


async def test_a_task_that_began_elsewhere_opens_nothing(dashboard: Dashboard) -> None:
    await add_task(dashboard, base_branch="refs/pull/12/head")
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser)
        await browser.fill_in(f"{PAGE}/note", {"note": NOTE})
        assert (await bring(dashboard), list_branches(dashboard)) == ([], [])
        page = await browser.visit(PAGE)
        assert "a pull request would contain more than the diff" in page.text
    async with dashboard.database.read() as connection:
        assert await job_rows.fetch_job(connection, ID)
