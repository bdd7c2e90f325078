"""What people do by forms: the same that they may say in threads, by the same rules, asked of GitHub just then."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any, cast

import pytest

from bot.web.auth.sessions import Visitor
from bot.web.dashboard.forms import ABSENT_AFTER_S
from bot.web.dashboard.sign_in import NOTE_COOKIE_LASTS
from handlers.cases import casebook
from handlers.cases.case import end_job
from handlers.ports import OverBudget, WritePriority
from handlers.rules import RepositoryRules
from runner.agents import AgentSpec
from runner.model.inventory import Inventory
from runner.model.job import JobState
from runner.rows import job_rows
from runner.rows.machine_states import save_inventory
from runner.rows.pauses import OPERATOR, Pause, begin_pause
from runner.rows.tellings import note_given
from tests.support.dashboard import HIDDEN, Browser, Dashboard, open_dashboard
from tests.support.jobs import NOON, make_job
from tests.support.site import Page, make_report
from tests.support.visitor import NAME
from tests.support.world import NOTE

pytestmark = pytest.mark.slow

ID = "0123456789"


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Dashboard]:
    async with open_dashboard(tmp_path) as dashboard:
        yield dashboard


async def add_report(dashboard: Dashboard, **changes: Any) -> str:
    """A job whose diff waits for a note, on an issue that is there."""
    number = await dashboard.github.open_issue(NAME, "Broken", "It is.", by="bob")
    job = await dashboard.add(
        make_report(), thread=number, state=JobState.SUCCEEDED, base_commit=dashboard.visitor.base, **changes
    )
    return f"/jobs/{job.id}"


async def test_a_job_is_launched_on_an_issue_once_and_its_thread_hears_of_it(dashboard: Dashboard) -> None:
    cast("dict[str, AgentSpec]", dashboard.context.agents)["mine"] = AgentSpec("mine", "claude")
    number = await dashboard.github.open_issue(NAME, "Broken", "It is.", by="bob")
    async with dashboard.browser("alice") as browser:
        await browser.visit(f"/launch?repository={NAME}&issue={number}&preset=fix")
        form = browser.fields("/launch")
        fields = {**form, "repository": NAME, "issue": f"#{number}", "preset": "diagnose", "advice": "Look at it."}
        fields |= {"thinking": "low", "max_turns": "20", "max_cost": "2.50"}
        await browser.send("/launch", fields)
        assert "queued" in browser.page.text
        assert "at most 20 turns and $2.50, as requested" in browser.page.text
        where = browser.path
        await browser.send("/launch", fields)
        assert browser.path == where, "sent twice, it is asked for once"
    (job,) = await dashboard.jobs()
    assert (job.preset, job.requested_by, job.issue_number) == ("diagnose", "alice", number)
    assert (job.thinking, job.max_turns, job.max_cost_usd) == ("low", 20, 2.5)
    assert "Look at it." in job.prompt
    async with dashboard.database.read() as connection:
        statuses = (await connection.exec_driver_sql("SELECT body FROM replies WHERE kind = 'status'")).all()
    assert "for @alice" in str(statuses)


async def test_a_task_without_an_issue_is_launched_by_ones_own_words_once(dashboard: Dashboard) -> None:
    async with dashboard.browser("alice") as browser:
        await browser.visit("/launch")
        form = browser.fields("/launch")
        fields = {**form, "repository": NAME, "preset": "ad-hoc", "advice": "Count the files.", "machine": "gpu-1"}
        for _ in range(2):
            assert (await browser.send("/launch", fields)).status == 200
    (job,) = await dashboard.jobs()
    assert (job.thread, job.requested_by, job.pinned_to) == (None, "alice", "gpu-1")
    assert "Count the files." in job.prompt


async def test_a_task_has_the_name_that_it_was_launched_with_if_no_other_one_has_it(dashboard: Dashboard) -> None:
    async with dashboard.browser("alice") as browser:
        await browser.visit("/launch")
        fields = {**browser.fields("/launch"), "repository": NAME, "preset": "ad-hoc", "advice": "Look."}
        page = await browser.send("/launch", {**fields, "name": "../x"})
        assert (page.status, name_wrong_fields(page)) == (409, ["name"])
        assert "A name has 1 to 50 letters, digits, dots, dashes and underscores" in page.text
        await browser.send("/launch", {**fields, "name": "slow-import"})
        assert f"{NAME}~slow-import" in browser.page.text
        page = await browser.send("/launch", {**fields, "name": "slow-import", "occasion": "another-form"})
        assert (page.status, f"of {NAME} already has this name: choose another." in page.text) == (409, True)
    (job,) = await dashboard.jobs()
    assert job.name == "slow-import"


async def test_what_the_thread_would_refuse_is_refused_on_the_page_and_nowhere_else(dashboard: Dashboard) -> None:
    number = await dashboard.github.open_issue(NAME, "Broken", "It is.", by="bob")
    await dashboard.github.close_issue(NAME, number, by="bob")
    async with dashboard.browser("alice") as browser:
        await browser.visit("/launch")
        fields = {**browser.fields("/launch"), "repository": NAME, "issue": str(number), "preset": "fix"}
        page = await browser.send("/launch", fields)
        assert (page.status, "This issue is closed. Tick this box" in page.text) == (409, True)
        assert (await browser.send("/launch", {**fields, "agent": "gpt"})).status == 409
        page = await browser.send("/launch", {**fields, "issue": "", "preset": "ad-hoc", "advice": " "})
        assert "Enter instructions (up to 10,000 characters)." in page.text
        assert (
            "Unknown preset"
            in (await browser.send("/launch", {**fields, "issue": "", "preset": "nothing", "advice": "x"})).text
        )
        async with dashboard.database.write() as connection:
            await begin_pause(connection, Pause("", OPERATOR, "root", dashboard.clock()))
        page = await browser.send("/launch", {**fields, "anyway": "on"})
        assert "paused" in page.text
    assert await dashboard.jobs() == []
    assert dashboard.github.issue(NAME, number).comments == []


async def send_everything(browser: Browser, path: str, csrf: str) -> list[int]:
    forms = [f"{path}/{what}" for what in ("cancel", "follow-up", "rebase", "tell", "note")]
    statuses = [(await browser.send(form, {"csrf": csrf})).status for form in forms]
    launch = {"csrf": csrf, "repository": NAME, "preset": "ad-hoc", "advice": "Do it."}
    return [*statuses, (await browser.send("/launch", launch)).status]


async def test_whoever_may_not_is_offered_nothing_and_refused_everything(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    async with dashboard.browser("bob") as browser:
        page = await browser.visit(path)
        assert not browser.offers(f"{path}/follow-up")
        assert "Actions" not in page.text
        csrf = browser.fields("/sign-out")["csrf"]
        assert await send_everything(browser, path, csrf) == [403] * 6
    assert len(await dashboard.jobs()) == 1


async def test_a_session_is_worth_nothing_once_the_permission_is_gone(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    hidden = await dashboard.add(id="hidden0001", private=True, repository=HIDDEN)
    async with dashboard.browser("alice") as browser:
        await browser.visit(f"/jobs/{hidden.id}")
        csrf = browser.fields(f"/jobs/{hidden.id}/cancel")["csrf"]
        dashboard.github.set_permission(NAME, "alice", "read")
        dashboard.github.set_permission(HIDDEN, "alice", "none")
        assert await send_everything(browser, path, csrf) == [403] * 6
        assert (await browser.send(f"/jobs/{hidden.id}/cancel", {"csrf": csrf})).status == 404
        assert (await browser.visit(f"/jobs/{hidden.id}")).status == 404
        assert "hidden0001" not in (await browser.visit("/jobs")).html
    assert (await dashboard.fetch_job(hidden.id)).cancel_requested_at is None


async def test_while_github_says_nothing_nobody_may(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    hidden = await dashboard.add(id="hidden0001", private=True, repository=HIDDEN)
    async with dashboard.browser("alice") as browser:
        await browser.visit(path)
        csrf = browser.fields("/sign-out")["csrf"]
        dashboard.github.faults.add("GET", "*", 500, times=50)
        assert (await browser.send(f"{path}/follow-up", {"csrf": csrf})).status == 503
        assert (await browser.visit(f"/jobs/{hidden.id}")).status == 404
    assert len(await dashboard.jobs()) == 2


async def test_while_github_says_nothing_a_stranger_does_not_hear_which_repositories_are_configured(
    dashboard: Dashboard,
) -> None:
    async with dashboard.browser("bob") as browser:
        await browser.visit("/jobs")
        csrf = browser.fields("/sign-out")["csrf"]
        dashboard.github.faults.add("GET", "*", 500, times=50)
        form = {"csrf": csrf, "preset": "ad-hoc", "advice": "Do it."}
        answers = [await browser.send("/launch", {**form, "repository": name}) for name in (HIDDEN, "octo/unknown")]
        assert [answer.status for answer in answers] == [404, 404]
        assert answers[0].text.replace(HIDDEN, "") == answers[1].text.replace("octo/unknown", "")


async def test_how_long_a_refusal_takes_does_not_tell_which_repositories_are_configured(dashboard: Dashboard) -> None:
    async with dashboard.browser("bob") as browser:
        await browser.visit("/jobs")
        form = {"csrf": browser.fields("/sign-out")["csrf"], "preset": "ad-hoc", "advice": "Do it."}

        async def measure(name: str) -> float:
            began = asyncio.get_running_loop().time()
            assert (await browser.send("/launch", {**form, "repository": name})).status == 404
            return asyncio.get_running_loop().time() - began

        assert min([await measure(name) for name in (HIDDEN, "octo/unknown")]) >= ABSENT_AFTER_S


async def test_a_page_looks_for_the_pull_request_of_a_note_and_stops_in_the_end(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    async with dashboard.browser("alice") as browser:
        await browser.visit(path)
        sign = Visitor("alice", browser.fields("/sign-out")["csrf"]).sign(path.removeprefix("/jobs/"))
        for looks, next_look in (("", "2"), ("&looks=2", "3"), ("&looks=20", None), ("&looks=-1", "2")):
            page = await browser.visit(f"{path}?posted={sign}{looks}")
            asks = [attrs["hx-get"] for _, attrs in page.tags if "hx-get" in attrs]
            assert asks == ([f"{path}/actions?posted={sign}&looks={next_look}"] if next_look else []), looks
            assert "Your note was posted." in page.text
        async with dashboard.database.write() as connection:
            case = await casebook.fetch_case(connection, f"{NAME}#1")
            assert case
            await casebook.save_case(connection, replace(case, pull_number=12))
        page = await browser.visit(f"{path}/actions?posted={sign}&looks=2")
        assert f"{dashboard.github.url}/{NAME}/pull/12" in page.links()
        assert "hx-get" not in page.html


async def test_a_link_of_somebody_else_does_not_say_that_a_note_was_posted(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    async with dashboard.browser("bob") as stranger, dashboard.browser("alice") as browser:
        await stranger.visit(path)
        theirs = Visitor("bob", stranger.fields("/sign-out")["csrf"]).sign(path.removeprefix("/jobs/"))
        for query in ("", "?posted", "?posted=1", "?posted=\u00e9", f"?posted={theirs}"):
            assert "Your note was posted." not in (await browser.visit(path + query)).text
    async with dashboard.browser() as nobody:
        sign = Visitor().sign(path.removeprefix("/jobs/"))
        assert "Your note was posted." not in (await nobody.visit(f"{path}?posted={sign}")).text


async def test_a_launch_offers_each_repository_its_own_agents_and_machines(dashboard: Dashboard) -> None:
    rules = cast("dict[str, RepositoryRules]", dashboard.context.repositories)
    agents = cast("dict[str, AgentSpec]", dashboard.context.agents)
    agents["other"] = AgentSpec("other", "command", ("true",))
    rules[HIDDEN] = replace(rules[HIDDEN], agents=("other",), requires=("h200",))
    async with dashboard.browser("alice") as browser:
        page = (await browser.visit(f"/launch?repository={NAME}")).html
    groups = re.findall(r'<optgroup label="([^"]+)">(.*?)</optgroup>', page, re.DOTALL)
    assert [(name, re.findall(r"<option[^>]*>([^<]+)", inside)) for name, inside in groups] == [
        (HIDDEN, ["mine", "other"]),
        (NAME, ["mine"]),
        (HIDDEN, []),
        (NAME, ["gpu-1"]),
    ]


async def test_a_link_fills_in_no_words_and_no_options_of_a_launch(dashboard: Dashboard) -> None:
    link = f"/launch?repository={NAME}&issue=7&preset=diagnose&advice=%0A%0Aevil&anyway=on&occasion=chosen-by-bob"
    async with dashboard.browser("alice") as browser:
        page = (await browser.visit(f"{link}&agent=other&model=evil&machine=evil&ref=evil")).html
        fields = browser.fields("/launch")
    assert ("evil" in page, 'name="anyway" checked' in page) == (False, False)
    assert fields["occasion"] != "chosen-by-bob"
    assert 'value="7"' in page


async def test_a_job_is_cancelled_by_whoever_may_start_one(dashboard: Dashboard) -> None:
    job = await dashboard.add()
    async with dashboard.browser("alice") as browser:
        await browser.visit(f"/jobs/{job.id}")
        await browser.fill_in(f"/jobs/{job.id}/cancel")
        assert "Cancelling" in browser.page.text
    assert (await dashboard.fetch_job(job.id)).cancelled_by == "alice"


async def test_an_agent_is_told_something_once_and_the_page_shows_what(dashboard: Dashboard) -> None:
    job = await dashboard.add(state=JobState.RUNNING)
    path, words = f"/jobs/{job.id}/tell", "Look at <b>the loop</b>."
    async with dashboard.browser("alice") as browser:
        await browser.visit(f"/jobs/{job.id}")
        fields = {**browser.fields(path), "advice": words}
        await browser.send(path, fields)
        await browser.send(path, fields)
        assert browser.page.text.count(words) == 1
        assert "@alice told the agent on" in browser.page.text
        assert "has not got this yet" in browser.page.text
        await browser.send(path, {**fields, "advice": "And at the tests."})
        assert browser.page.text.count("And at the tests.") == 1, "the browser went back to the same form"
        page = await browser.send(path, {**fields, "occasion": "another-form", "advice": "  "})
        assert page.status == 409
        assert "Not sent: the message is empty" in page.text
        async with dashboard.database.write() as connection:
            await note_given(connection, job.id, 2, job.changed_at)
            await job_rows.move_job(connection, job, JobState.COLLECTING, job.changed_at)
        page = await browser.send(path, {**fields, "occasion": "yet-another", "advice": "Too late."})
        assert page.status == 409
        assert "the agent has finished, and its result is being checked" in page.text
        assert "Too late." in page.html, "no typed words are lost"
        assert "and it got this on" in (await browser.visit(f"/jobs/{job.id}")).text


async def test_a_job_that_has_just_ended_offers_something_once_its_case_knows(dashboard: Dashboard) -> None:
    job = await dashboard.add(state=JobState.COLLECTING)
    async with dashboard.database.write() as connection:
        await job_rows.move_job(connection, job, JobState.SUCCEEDED, job.changed_at)
    async with dashboard.browser("alice") as browser:
        page = await browser.visit(f"/jobs/{job.id}/actions")
        (asks,) = [attrs for _, attrs in page.tags if "hx-get" in attrs]
        assert (asks["hx-get"], asks["hx-target"]) == (f"/jobs/{job.id}/actions", "#offers")
        assert not browser.offers(f"/jobs/{job.id}/follow-up")
        async with dashboard.database.write() as connection:
            case = await casebook.fetch_case(connection, job.case_key)
            assert case
            await casebook.save_case(connection, end_job(case, job.id, dashboard.clock(), approvable=False))
        page = await browser.visit(f"/jobs/{job.id}/actions")
        assert [attrs for _, attrs in page.tags if "hx-get" in attrs] == []
        assert browser.offers(f"/jobs/{job.id}/follow-up")


async def test_what_a_job_offers_is_found_out_anew_for_each_reader(dashboard: Dashboard) -> None:
    await dashboard.add(id="runs000001", state=JobState.RUNNING)
    await dashboard.add(make_report(job_id="ended00001"), id="ended00001", thread=8, state=JobState.SUCCEEDED)
    await dashboard.add(id="hidden0001", private=True, repository=HIDDEN, state=JobState.RUNNING)
    offered = {
        ("alice", "runs000001"): {"cancel", "tell"},
        ("alice", "ended00001"): {"note", "follow-up", "rebase"},
        ("bob", "runs000001"): set(),
        (None, "ended00001"): set(),
    }
    for (login, job_id), expected in offered.items():
        async with dashboard.browser(login) as browser:
            page = await browser.visit(f"/jobs/{job_id}/actions")
            assert set(re.findall(rf'"/jobs/{job_id}/([a-z-]+)"', page.html)) == expected, (login, job_id)
            assert "<body" not in page.html
            if login != "alice":
                assert (await browser.visit("/jobs/hidden0001/actions")).status == 404


async def seal_machine(dashboard: Dashboard, *, sealed: bool = True) -> None:
    """Let the one machine have told whether it can seal jobs."""
    room = Inventory((), None, free_bytes=10**12, total_bytes=10**12, free_inodes=None, sealed=sealed)
    async with dashboard.database.write() as connection:
        await save_inventory(connection, "gpu-1", room, dashboard.clock())


async def test_the_command_to_take_over_is_shown_where_it_would_be_obeyed(dashboard: Dashboard) -> None:
    path, offered = await add_report(dashboard), 'id="takeover"'
    async with dashboard.browser("alice") as browser, dashboard.browser("bob") as other:
        await seal_machine(dashboard, sealed=False)
        assert offered not in (await browser.visit(path)).html, "nobody could be let in"
        await seal_machine(dashboard)
        assert offered in (await browser.visit(path)).html
        assert offered not in (await other.visit(path)).html
        rules = cast("dict[str, RepositoryRules]", dashboard.context.repositories)
        rules[NAME] = replace(rules[NAME], takeover=False)
        assert offered not in (await browser.visit(path)).html, "the operator has forbidden it"
        rules[NAME] = replace(rules[NAME], takeover=True)
        newer = await dashboard.add(id="newer00001", attempt=2, thread=1)
        assert offered not in (await browser.visit(path)).html, "the command would be about the newer one"
        assert offered in (await browser.visit(f"/jobs/{newer.id}")).html


async def test_a_follow_up_carries_on_with_advice(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    async with dashboard.browser("alice") as browser:
        await browser.visit(path)
        await browser.fill_in(f"{path}/follow-up", {"advice": "Mind the last chunk."})
        assert "Attempts" in browser.page.text
    newest = max(await dashboard.jobs(), key=lambda job: job.attempt)
    assert (newest.attempt, newest.follows, newest.requested_by) == (2, ID, "alice")
    assert "Mind the last chunk." in newest.prompt


async def go_for_a_note(browser: Browser, path: str) -> None:
    """To the page of a note, by way of GitHub."""
    await browser.visit(path)
    asked = await browser.visit(f"{path}/note")
    await browser.choose(asked, "alice")


async def test_people_see_title_and_branch_of_a_pull_request_before_they_write_its_note(dashboard: Dashboard) -> None:
    path = await add_report(dashboard, base_branch="release/1.2")
    async with dashboard.browser("alice") as browser:
        page = await browser.visit(path)
        assert "“Fix: It is <b>broken</b>” → release/1.2." in page.text
        await go_for_a_note(browser, path)
        assert "it is “Fix: It is <b>broken</b>”." in browser.page.text
        assert "Exactly this one, for branch release/1.2: digest" in browser.page.text


async def test_a_note_becomes_the_persons_own_comment_once_and_the_token_goes(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser, path)
        assert "as your comment" in browser.page.text
        pen, fields = browser.cookies()["ptq-pen"], browser.fields(f"{path}/note")
        assert "ghu_" not in pen
        page = await browser.send(f"{path}/note", {**fields, "note": "lgtm"})
        assert (page.status, "needs 30" in page.text) == (409, True)
        page = await browser.send(f"{path}/note", {**fields, "note": f"{NOTE}\n\n/ptq cancel"})
        assert (page.status, "other commands" in page.text) == (409, True)
        mail = f"{NOTE}\n\nОт: bob <notifications@github.com>\n\n{NOTE}"
        page = await browser.send(f"{path}/note", {**fields, "note": mail})
        assert (page.status, "an e-mail from GitHub" in page.text) == (409, True)
        assert dashboard.github.issue(NAME, 1).comments == []
        await browser.send(f"{path}/note", {**fields, "note": NOTE, "title": 'Keep the "last" “chunk”'})
        assert "Your note was posted" in browser.page.text
        assert "ptq-pen" not in browser.cookies()
        assert (await browser.send(f"{path}/note", {**fields, "note": NOTE})).status == 403
    (comment,) = dashboard.github.issue(NAME, 1).comments
    assert comment.user.login == "alice"
    assert comment.body == f"/ptq pr {'ab' * 6} --title \"Keep the 'last' 'chunk'\"\n\n{NOTE}"
    ended = [exchange for exchange in dashboard.github.exchanges if exchange.path.startswith("/applications/")]
    assert len(ended) == 2


async def test_a_note_goes_to_no_other_repository_that_took_the_name(dashboard: Dashboard) -> None:
    path, github = await add_report(dashboard), dashboard.github
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser, path)
        github.rename_repository(NAME, "gadgets")
        github.add_repository(NAME, dashboard.visitor.git_dir)
        github.set_permission(NAME, "alice", "write")
        await github.open_issue(NAME, "Mine", "", "mallory")
        dashboard.clock.forward(56 * 60)  # Its tokens are renewed.
        await browser.fill_in(f"{path}/note", {"note": NOTE})
        assert "Your note was posted" in browser.page.text
    assert [len(github.issue(name, 1).comments) for name in ("octo/gadgets", NAME)] == [1, 0]


TYPED = "Mind the family \U0001f468\u200d\U0001f469, <b>tags</b> & AKIAIOSFODNN7EXAMPLE, which is no key.\n\tAnd a tab."
"""Text that pages write out or redact where somebody else wrote it."""


def read_texts(page: Page) -> dict[str, str]:
    """What stands in the text areas of a page, by their label's first words or their name."""
    found = re.findall(r"<textarea([^>]*)>\n(.*?)</textarea>", page.html, re.DOTALL)
    return {(re.search(r'name="(\w+)"', marks) or [marks, "kept"])[1]: unescape(text) for marks, text in found}


def name_wrong_fields(page: Page) -> list[str | None]:
    return [attrs.get("name") for _, attrs in page.tags if "aria-invalid" in attrs]


async def test_a_refused_launch_shows_the_form_again_as_it_was_sent_with_the_reason_at_the_field(
    dashboard: Dashboard,
) -> None:
    async with dashboard.browser("alice") as browser:
        await browser.visit("/launch")
        sent = {**browser.fields("/launch"), "repository": NAME, "issue": "99", "preset": "fix", "advice": TYPED}
        sent |= {"model": "opus", "anyway": "on"}
        page = await browser.send("/launch", sent)
        assert (page.status, name_wrong_fields(page)) == (409, ["issue"])
        assert f"There is no issue #99 in {NAME}." in page.text, "GitHub is not to blame"
        assert read_texts(page) == {"advice": TYPED}
        assert browser.fields("/launch")["occasion"] == sent["occasion"], "sent twice, it is asked for once"
        values = {attrs.get("name"): attrs.get("value") for tag, attrs in page.tags if tag == "input"}
        assert (values["issue"], values["model"], "checked" in str(page.tags)) == ("99", "opus", True)
        assert [attrs for tag, attrs in page.tags if tag == "option" and "selected" in attrs]
        number = await dashboard.github.open_issue(NAME, "Broken", "It is.", by="bob")
        refused = await browser.send("/launch", {**sent, "issue": str(number), "agent": "gpt"})
        assert name_wrong_fields(refused) == ["agent"]
        assert "Unknown agent; available: mine." in refused.text
        refused = await browser.send("/launch", {**sent, "issue": str(number), "max_turns": "many", "model": ""})
        assert name_wrong_fields(refused) == ["max_turns"]
        assert "--max-turns needs a whole number, such as 20." in refused.text


async def test_a_refused_follow_up_keeps_its_text_and_names_no_command(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    await dashboard.github.close_issue(NAME, 1, by="bob")
    async with dashboard.browser("alice") as browser:
        await browser.visit(path)
        page = await browser.fill_in(f"{path}/follow-up", {"advice": TYPED})
        assert (page.status, name_wrong_fields(page), read_texts(page)) == (409, ["anyway"], {"advice": TYPED})
        assert "This issue is closed." in page.text
        assert "/ptq" not in page.text
        await browser.fill_in(f"{path}/follow-up", {"advice": TYPED, "anyway": "on"})
        assert "queued" in browser.page.text


async def test_a_refused_note_stands_in_the_form_again_next_to_the_diff_that_it_approves(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser, path)
        shown = browser.page
        assert "+++ size < 3" in shown.text
        assert browser.fields(f"{path}/note")["digest"] in shown.text
        page = await browser.fill_in(f"{path}/note", {"note": "lgtm, \u202eand", "title": "Keep <it>"})
        assert (page.status, name_wrong_fields(page)) == (409, ["note"])
        assert read_texts(page) == {"note": "lgtm, \u202eand"}
        assert 'value="Keep &lt;it&gt;"' in page.html
        assert "Your note is too short" in page.text
        assert "/ptq pr" not in page.text
        assert "+++ size < 3" in page.text
        await browser.fill_in(f"{path}/note", {"note": NOTE})
        assert "Your note was posted" in browser.page.text


async def test_a_session_that_has_ended_keeps_what_was_typed_and_a_form_of_another_site_is_never_shown(
    dashboard: Dashboard,
) -> None:
    path = await add_report(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser, path)
        fields = {**browser.fields(f"{path}/note"), "note": NOTE}
        browser.session.cookie_jar.clear()
        page = await browser.send(f"{path}/note", fields)
        assert (page.status, read_texts(page)) == (403, {"kept": NOTE})
        assert f"/sign-in?next={path}/note" in page.links()
        assert "Your session has ended." in page.text
        assert NOTE not in (await browser.send(f"{path}/note", fields, origin="https://evil.example")).html
        await browser.sign_in("alice")
        page = await browser.send(f"{path}/note", fields)
        assert (page.status, read_texts(page)) == (403, {"note": NOTE}), "the form of the earlier session"
        assert NOTE not in (await browser.send(f"{path}/note", fields, origin="https://evil.example")).html


async def test_the_link_of_a_report_asks_people_to_sign_in_and_leads_to_the_form(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    async with dashboard.browser() as browser:
        asked = await browser.visit(f"{path}/note")
        asked = await browser.choose(asked, "alice")
        await browser.choose(asked, "alice")
        assert browser.offers(f"{path}/note")
        assert (await browser.visit("/jobs/nothing/note")).status == 404


async def test_the_token_for_a_note_that_is_not_posted_is_revoked_at_the_next_one_and_at_sign_out(
    dashboard: Dashboard,
) -> None:
    def count_revoked() -> int:
        return sum(exchange.path.startswith("/applications/") for exchange in dashboard.github.exchanges)

    path = await add_report(dashboard)
    other = await dashboard.add(make_report(job_id="other00001"), id="other00001", thread=2, state=JobState.SUCCEEDED)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser, path)
        before = count_revoked()
        await go_for_a_note(browser, f"/jobs/{other.id}")
        assert count_revoked() == before + 1
        await browser.fill_in("/sign-out")
        assert count_revoked() == before + 2


async def write_much(dashboard: Dashboard, number: int) -> None:
    """More than the installation may write in a minute."""
    for _ in range(100):
        await dashboard.context.github.create_comment(NAME, number, "So much to say.", WritePriority.REPORT)


@pytest.mark.parametrize(("branch", "is_updated"), [("main", True), ("release", False)])
async def test_people_read_that_a_note_adds_to_a_pull_request_that_is_open(
    dashboard: Dashboard, branch: str, is_updated: bool
) -> None:
    path = await add_report(dashboard)
    async with dashboard.database.write() as connection:
        before = make_job(id="before0001", repository=NAME, thread=1, attempt=7, base_branch=branch)
        await job_rows.insert_job(connection, replace(before, state=JobState.SUCCEEDED))
        pull = casebook.Pull(before.id, "d", "note", "alice", "", "branch", NOON, next_attempt_at=NOON, number=9)
        await casebook.save_pull(connection, pull)
    async with dashboard.browser("alice") as browser:
        page = await browser.visit(path)
        assert (
            "while it is open, pull request #9 gets a commit instead, and keeps its title" in page.text
        ) is is_updated
        await go_for_a_note(browser, path)
        assert ("While pull request #9 is open, your note adds a commit to it" in browser.page.text) is is_updated
        assert ("; an open one keeps its title." in browser.page.text) is is_updated


@pytest.mark.slow
async def test_a_form_that_is_sent_twice_at_once_posts_one_note_and_takes_no_turn_of_ours(dashboard: Dashboard) -> None:
    path, other = await add_report(dashboard), await dashboard.github.open_issue(NAME, "Another", "", "alice")
    with pytest.raises(OverBudget):
        await write_much(dashboard, other)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser, path)
        fields = {**browser.fields(f"{path}/note"), "note": NOTE}
        await asyncio.gather(*(browser.send(f"{path}/note", fields) for _ in range(3)))
    assert [comment.user.login for comment in dashboard.github.issue(NAME, 1).comments] == ["alice"]


async def test_a_note_whose_answer_is_lost_is_found_and_not_asked_for_again(dashboard: Dashboard) -> None:
    dashboard.github.faults.add("POST", "/repos/octo/widgets/issues/1/comments", "lose_answer")
    path = await add_report(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser, path)
        fields = {**browser.fields(f"{path}/note"), "note": NOTE}
        await browser.send(f"{path}/note", fields)
        assert "Your note was posted" in browser.page.text
    assert len(dashboard.github.issue(NAME, 1).comments) == 1


async def test_a_note_is_posted_for_nobody_else(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    async with dashboard.browser("alice") as browser:
        asked = await browser.visit(f"{path}/note")
        page = await browser.choose(asked, "bob")
        assert (page.status, "a different user" in page.text) == (403, True)
        await go_for_a_note(browser, path)
        pen = browser.cookies()["ptq-pen"]
        async with dashboard.browser("carol") as other:
            dashboard.github.set_permission(NAME, "carol", "write")
            other.session.cookie_jar.update_cookies({"ptq-pen": pen})
            await other.visit("/jobs")
            csrf = other.fields("/sign-out")["csrf"]
            assert (await other.send(f"{path}/note", {"csrf": csrf, "note": NOTE})).status == 403
    assert dashboard.github.issue(NAME, 1).comments == []


async def test_leave_to_post_a_note_is_for_an_hour_and_for_one_job(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    async with dashboard.browser("alice") as browser:
        await go_for_a_note(browser, path)
        fields = {**browser.fields(f"{path}/note"), "note": NOTE}
        dashboard.clock.forward(NOTE_COOKIE_LASTS.total_seconds() + 1)
        page = await browser.send(f"{path}/note", fields)
        assert (page.status, read_texts(page)) == (403, {"note": NOTE})
        assert f"{path}/note" in page.links(), "the way to another hour"
        await go_for_a_note(browser, path)
        other = await dashboard.add(
            make_report(job_id="other00001"), id="other00001", thread=2, state=JobState.SUCCEEDED
        )
        assert (await browser.send(f"/jobs/{other.id}/note", fields)).status == 403
    assert dashboard.github.issue(NAME, 1).comments == []


def add_commit(dashboard: Dashboard) -> None:
    """Let the base branch move on."""
    git = dashboard.visitor.git
    author = ("-c", "user.name=octo", "-c", "user.email=octo@example.org")
    git("update-ref", "refs/heads/main", git(*author, "commit-tree", "main^{tree}", "-p", "main", "-m", "Go on"))


@pytest.mark.slow
async def test_a_rebase_is_started_once_by_a_button_and_by_the_rules_of_the_thread(dashboard: Dashboard) -> None:
    path = await add_report(dashboard)
    form = f"{path}/rebase"
    async with dashboard.browser("alice") as browser:
        await browser.visit(path)
        page = await browser.fill_in(form)
        assert (page.status, "there is nothing to rebase" in page.text) == (409, True)
        add_commit(dashboard)
        await browser.visit(path)
        fields = browser.fields(form)
        page = await browser.send(form, {**fields, "onto": "no-such-branch"})
        assert (page.status, "Enter an existing branch, or the full SHA" in page.text) == (409, True)
        assert len(await dashboard.jobs()) == 1
        await browser.send(form, {**fields, "onto": " main "})
        where = browser.path
        assert "queued" in browser.page.text
        await browser.send(form, {**fields, "onto": " main "})
        assert browser.path == where, "sent twice, it is asked for once"
    newest = max(await dashboard.jobs(), key=lambda job: job.attempt)
    assert (newest.preset, newest.attempt, newest.follows, newest.requested_by) == ("rebase", 2, ID, "alice")
    assert (newest.kind, newest.base_branch, where) == ("rebase", "main", f"/jobs/{newest.id}?started")
