"""Who sees what, and what of it they find."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from bot.web.dashboard.diffs import fold_diff
from bot.web.dashboard.job_page import list_phases
from bot.web.dashboard.listing import PAGE, PageFilter, name_worker, read_filter
from bot.web.dashboard.spend import SpendRow, sum_all
from handlers.text.repros import THE_ISSUE
from runner.changes.patch import list_lines
from runner.checks.verification import CheckKind, CheckRun, Side
from runner.db.schema import deliveries, jobs, pulls
from runner.model.job import JobKind, JobState
from runner.model.machines import Lease
from runner.rows import job_rows
from runner.rows.check_rows import add_checks, fetch_checks, save_runs
from runner.rows.holds import Hold, save_hold
from tests.support.dashboard import HIDDEN, Browser, Dashboard, open_dashboard
from tests.support.jobs import NOON, SPELLED, make_job
from tests.support.meters import make_meter, make_usage
from tests.support.site import PATCH, make_report

PULL = {"digest": "ab", "note": "", "approver": "alice", "note_url": "", "branch": "b", "created_at": NOON}
PULL |= {"next_attempt_at": NOON, "attempts": 0, "drops_edits": False}
CONFIDENTIAL = "**Outcome:** security concern\n\nAnybody may read the words of others."


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Dashboard]:
    async with open_dashboard(tmp_path) as dashboard:
        yield dashboard


def jobs_on(browser: Browser) -> list[str]:
    return [link.removeprefix("/jobs/") for link in browser.page.links() if link.startswith("/jobs/")]


@pytest.mark.slow
async def test_a_private_repositorys_job_is_for_whoever_may_read_there(dashboard: Dashboard) -> None:
    await dashboard.add(make_report(job_id="hidden0001"), id="hidden0001", private=True, repository=HIDDEN)
    await dashboard.add(id="hidden0002", private=True, repository=HIDDEN, kind=JobKind.TASK, series=1, name="task1")
    await dashboard.add(id="public0001")
    seen = {
        None: {"public0001"},
        "bob": {"public0001"},
        "carol": {"public0001", "hidden0001"},
        "alice": {"public0001", "hidden0001", "hidden0002"},
        "root": {"public0001", "hidden0001", "hidden0002"},
    }
    for login, expected in seen.items():
        async with dashboard.browser(login) as browser:
            await browser.visit("/jobs")
            assert set(jobs_on(browser)) == expected, login
            for job_id in ("hidden0001", "hidden0002", "public0001"):
                for path in ("", "/patch", "/log/agent", "/files/report.md", "/note"):
                    page = await browser.visit(f"/jobs/{job_id}{path}", follow=False)
                    if job_id not in expected:
                        missing = await browser.visit(f"/jobs/nobody{path}", follow=False)
                        there, not_there = page.html.replace(job_id, ""), missing.html.replace("nobody", "")
                        # People who are not signed in are asked to sign in, also if there is no such job.
                        status = 303 if path == "/note" and login is None else 404
                        assert (page.status, there, page.headers.keys()) == (status, not_there, missing.headers.keys())
                assert (await browser.visit(f"/jobs/{job_id}")).status == (200 if job_id in expected else 404)
            overview = (await browser.visit("/")).html
            assert ("hidden0001" in overview) == ("hidden0001" in expected)


@pytest.mark.slow
async def test_a_job_from_when_its_repository_was_private_is_for_people_with_write_access_once_it_is_public(
    dashboard: Dashboard,
) -> None:
    await dashboard.add(make_report(job_id="hidden0001"), id="hidden0001", private=True, repository=HIDDEN)
    await dashboard.add(id="public0001", private=False, repository=HIDDEN, thread=8)
    dashboard.github.set_private(HIDDEN, False)
    for login, is_shown in {"bob": False, "carol": False, "alice": True, "root": True}.items():
        async with dashboard.browser(login) as browser:
            assert (await browser.visit("/jobs/hidden0001")).status == (200 if is_shown else 404), login
            for path in ("/jobs", "/"):
                await browser.visit(path)
                assert ("hidden0001" in jobs_on(browser), "public0001" in jobs_on(browser)) == (is_shown, True)


@pytest.mark.slow
async def test_nothing_is_shown_to_strangers_where_the_operator_says_so(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, public=False) as dashboard:
        job = await dashboard.add()
        async with dashboard.browser() as stranger, dashboard.browser("bob") as bob:
            for path in ("/", "/jobs", f"/jobs/{job.id}", f"/jobs/{job.id}/patch"):
                assert (await stranger.visit(path)).status == 404
                assert "Sign in with GitHub" in stranger.page.text
            assert (await stranger.visit("/healthz")).status == 200
            status = json.loads((await stranger.visit("/status")).html)
            assert (status["machines"], status["jobs"]) == ([], {"queued": 1})
            assert json.loads((await bob.visit("/status")).html)["machines"] == []
            for path in ("/", "/jobs", "/launch"):
                assert "gpu-1" not in (await bob.visit(path)).html, "everybody can sign in"
            async with dashboard.browser("alice") as alice:
                assert json.loads((await alice.visit("/status")).html)["machines"]
                for path in ("/", "/jobs", "/launch"):
                    assert "gpu-1" in (await alice.visit(path)).html
            assert (await bob.visit(f"/jobs/{job.id}")).status == 200, "everybody may read a public repository"


@pytest.mark.slow
async def test_what_is_confidential_stays_with_operators(dashboard: Dashboard) -> None:
    job = await dashboard.add(make_report(body=CONFIDENTIAL), state=JobState.FAILED)
    for login, sees in ((None, False), ("alice", False), ("root", True)):
        async with dashboard.browser(login) as browser:
            for path in ("", "/patch", "/files/report.md"):
                page = await browser.visit(f"/jobs/{job.id}{path}")
                assert ("words of others" in page.html or "size < 3" in page.html) == sees, (login, path)
            assert ("failed</span>" in (await browser.visit("/jobs")).html) == sees
            assert ("security concern, confidential" in browser.page.text) == sees
            assert (job.id in (await browser.visit("/jobs?state=failed")).html) == sees


@pytest.mark.slow
async def test_a_job_of_a_confidential_issue_stays_with_operators_while_it_runs_too(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, public_logs=True) as dashboard:
        job = await dashboard.add(state=JobState.RUNNING, started_at=NOON, confidential=True)
        ended = await dashboard.add(id="ended00001", thread=8, state=JobState.FAILED, confidential=True)
        dashboard.spool.append(job.id, "agent", b"anyone may empty the till\n")
        for login, sees in ((None, False), ("alice", False), ("root", True)):
            async with dashboard.browser(login) as browser:
                for path in ("", "/log/agent"):
                    page = await browser.visit(f"/jobs/{job.id}{path}")
                    assert ("empty the till" in page.html) == sees, (login, path)
                assert "sse-connect" not in (await browser.visit(f"/jobs/{job.id}")).html, (
                    "a stream is the same for all"
                )
                assert ("empty" in (await browser.visit(f"/jobs/{job.id}/log/agent/events")).html) is False
                assert ("failed</span>" in (await browser.visit("/jobs")).html) == sees
                assert (ended.id in (await browser.visit("/jobs?state=failed")).html) == sees
                assert ("Only the operator" in (await browser.visit(f"/jobs/{job.id}/actions")).html) != sees


@pytest.mark.slow
@pytest.mark.parametrize("body", SPELLED)
async def test_a_concern_in_any_spelling_is_withheld_in_lists(dashboard: Dashboard, body: str) -> None:
    hidden = await dashboard.add(make_report(job_id="hidden0001", body=body), id="hidden0001", state=JobState.SUCCEEDED)
    await dashboard.add(make_report(job_id="another001"), id="another001", attempt=2, state=JobState.SUCCEEDED)
    for login, sees in (("alice", False), ("root", True)):
        async with dashboard.browser(login) as browser:
            for path in ("/jobs", "/jobs/another001"):
                rows = re.split(r"<tr|<li", (await browser.visit(path)).html)
                assert any("succeeded" in row for row in rows if hidden.id in row) == sees, (login, path)


@pytest.mark.slow
async def test_withheld_runs_do_not_shorten_the_pages_of_a_filter(dashboard: Dashboard) -> None:
    for number in range(PAGE + 1):
        body = CONFIDENTIAL if number == PAGE else "fix staged"
        job_id = f"job{number:03}"
        await dashboard.add(make_report(job_id=job_id, body=body), id=job_id, thread=number + 1, state=JobState.FAILED)
        dashboard.clock.at += timedelta(seconds=1)
    newest = {f"job{number:03}" for number in range(PAGE)}
    async with dashboard.browser("alice") as browser:
        assert set(re.findall(r"/jobs/(job\d+)", (await browser.visit("/jobs?state=failed")).html)) == newest


async def test_deliveries_and_spend_are_for_operators_alone(dashboard: Dashboard) -> None:
    row = {"event": "issues", "lane": "octo/widgets#7", "body": b"{}", "received_at": NOON, "next_attempt_at": NOON}
    async with dashboard.database.write() as connection:
        await connection.execute(deliveries.insert().values(id="d-1", state="failed", attempts=5, error="<b>x", **row))
        await connection.execute(deliveries.insert().values(id="../d-2", state="done", attempts=1, **row))
    job = await dashboard.add()
    async with dashboard.database.write() as connection:
        await job_rows.save_meter(connection, make_meter(job.id, turns=1, cost_usd=1.5))
    other = await dashboard.add(id="unpriced01", agent="mystery", thread=8)
    async with dashboard.database.write() as connection:
        await job_rows.save_meter(connection, make_meter(other.id))
    for login in (None, "alice"):
        async with dashboard.browser(login) as browser:
            for path in ("/deliveries", "/spend"):
                assert (await browser.visit(path)).status == 404
            csrf = browser.fields("/sign-out")["csrf"] if login else ""
            assert (await browser.send("/deliveries/d-1/replay", {"csrf": csrf})).status == 404
    async with dashboard.browser("root") as browser:
        assert "d-2" in (await browser.visit("/deliveries")).text
        assert browser.offers("/deliveries/..%2Fd-2/replay"), "an id leads nowhere else"
        page = await browser.visit("/deliveries?failed")
        assert ("d-1" in page.text, "d-2" in page.text, "<b>x" in page.text) == (True, False, True)
        assert (await browser.send("/deliveries/d-1/replay", {"csrf": "wrong"})).status == 403
        await browser.visit("/deliveries")
        await browser.fill_in("/deliveries/d-1/replay")
        assert "Replay d-1" not in browser.page.html, "it waits to be worked"
        page = await browser.visit("/spend")
        assert ("at least $1.50" in page.text, "2026-03-01" in page.text) == (True, True)
        (row,) = re.findall(r"<tr><th scope=\"row\">mystery</th>(.*?)</tr>", page.html)
        assert re.findall(r"<td[^>]*>(.*?)</td>", row) == ["unknown", "1", "1", "unknown", "0.0"]


@pytest.mark.slow
async def test_jobs_are_found_by_filters_and_by_words(dashboard: Dashboard) -> None:
    await dashboard.add(id="one", thread=7, state=JobState.FAILED, machine="gpu-1", preset="diagnose")
    await dashboard.add(id="two", thread=8, requested_by="Alice")
    await dashboard.add(id="three", thread=9, agent="other", state=JobState.RUNNING)
    queries = {
        "repository=OCTO/widgets": {"one", "two", "three"},
        "repository=octo/none": set(),
        "state=failed": {"one"},
        "state=active": {"two", "three"},
        "preset=diagnose": {"one"},
        "agent=other": {"three"},
        "machine=gpu-1": {"one"},
        "who=@alice": {"two"},
        "search=%238": {"two"},
        "search=widgets%239": {"three"},
        "search=broken": {"one", "two", "three"},
        "search=%25": set(),
        "search=two": {"two"},
        "state=failed&preset=fix": set(),
        "before=nonsense": {"one", "two", "three"},
        "before=0001-01-01T00:00%2B14:00~one": {"one", "two", "three"},
        "before=9999-12-31T23:59-14:00~one": {"one", "two", "three"},
        "search=%00": set(),
        "state=%00'--": set(),
    }
    async with dashboard.browser() as browser:
        for query, expected in queries.items():
            assert (await browser.visit(f"/jobs?{query}")).status == 200
            assert set(jobs_on(browser)) == expected, query


def test_a_job_without_an_agent_is_listed_under_who_works_on_it() -> None:
    assert [name_worker(kind, "script") for kind in (JobKind.VERIFY, JobKind.RELEASE, JobKind.AGENT)] == [
        *("ptq-bot itself", "a person", "script")
    ]


@pytest.mark.slow
async def test_a_list_goes_on_where_its_page_ended_whatever_comes_meanwhile(dashboard: Dashboard) -> None:
    async with dashboard.database.write() as connection:
        for number in range(1, 2 * PAGE + 2):
            at = NOON + timedelta(minutes=number // 3)
            job = make_job(id=f"j{number:03}", thread=number, created_at=at, state=JobState.FAILED)
            await job_rows.insert_job(connection, job)
    async with dashboard.browser() as browser:
        seen, path = [], "/jobs?state=failed"
        while path:
            await browser.visit(path)
            seen += jobs_on(browser)
            path = next((link for link in browser.page.links() if "before=" in link), "")
            new = make_job(id=f"new{len(seen)}", thread=500 + len(seen), created_at=NOON + timedelta(days=1))
            async with dashboard.database.write() as connection:
                await job_rows.insert_job(connection, replace(new, state=JobState.FAILED))
        assert seen == [f"j{number:03}" for number in range(2 * PAGE + 1, 0, -1)]


async def test_what_agents_write_is_no_instruction_to_the_page(dashboard: Dashboard) -> None:
    hostile = '"><a hx-get="/spend" hx-trigger="load" sse-connect="/x" data-hx-post="/launch" style="x">b</a>'
    hostile += '<button data-copy="x">c</button>'
    report = make_report(body=hostile, worklog=hostile, repro=hostile, patch=PATCH.replace("chunks.py", hostile))
    job = await dashboard.add(report, state=JobState.FAILED, failure=hostile, preset=hostile)
    async with dashboard.browser("alice") as browser:
        for path in (f"/jobs/{job.id}", "/jobs", "/"):
            page = await browser.visit(path)
            tags = [attributes for _, attributes in page.tags if attributes.get("id") != "live"]
            names = {name for attributes in tags for name in attributes}
            active = {name for name in names if name.startswith(("hx-", "sse-", "data-hx", "on", "style"))}
            assert active <= {"hx-disable"}
            assert [attrs["data-copy"] for _, attrs in page.tags if "data-copy" in attrs] in ([], ["takeover"])
        page = await browser.visit(f"/jobs/{job.id}/files/report.md")
        assert (page.headers["Content-Type"], page.headers["X-Content-Type-Options"]) == (
            "text/plain; charset=utf-8",
            "nosniff",
        )
        assert page.headers["Content-Disposition"].startswith("attachment")


@pytest.mark.slow
async def test_only_whoever_holds_an_environment_reads_the_way_in(dashboard: Dashboard) -> None:
    job = await dashboard.add(machine="gpu-1", state=JobState.SUCCEEDED)
    hold = Hold(job.id, "alice", "ssh-ed25519 AAAA", NOON, NOON + timedelta(hours=8), admitted_at=NOON)
    async with dashboard.database.write() as connection:
        await job_rows.insert_lease(connection, Lease("gpu-1", 0, job.id), NOON)
        await save_hold(connection, hold)
    dashboard.github.set_permission("octo/widgets", "carol", "write")
    for login, reads in ((None, False), ("bob", False), ("carol", False), ("alice", True), ("root", True)):
        async with dashboard.browser(login) as browser:
            page = await browser.visit(f"/jobs/{job.id}")
            assert ("ptq@gpu.internal" in page.html) == reads, login
    dashboard.github.set_permission("octo/widgets", "alice", "read")
    async with dashboard.browser("alice") as browser:
        assert "gpu.internal" not in (await browser.visit(f"/jobs/{job.id}")).html


async def test_a_list_says_what_came_out_for_those_who_may_know_it(dashboard: Dashboard) -> None:
    spent: dict[str, Any] = {"started_at": NOON, "ended_at": NOON + timedelta(seconds=200), "state": JobState.SUCCEEDED}
    await dashboard.add(make_report(job_id="open000001", body="**Outcome:** fix staged"), id="open000001", **spent)
    await dashboard.add(make_report(job_id="hidden0001", body=CONFIDENTIAL), id="hidden0001", thread=8, **spent)
    await dashboard.add(id="verified01", thread=9, preset="verify", **spent)
    await dashboard.add(id="checking01", thread=10, preset="verify", state=JobState.VERIFYING)
    fails = CheckRun(1, False, "AssertionError\n")
    async with dashboard.database.write() as connection:
        for job_id in ("verified01", "checking01"):
            await add_checks(connection, job_id, [(CheckKind.ISSUE, THE_ISSUE, "import chunks\n")])
            (check,) = await fetch_checks(connection, job_id)
            await save_runs(connection, replace(check, runs={Side.BASE: (fails,) * 3}))
        for job_id in ("open000001", "hidden0001"):
            await connection.execute(pulls.insert().values(job_id=job_id, number=12, **PULL))
    dashboard.clock.forward(3 * 60 + 5)
    for path in ("/jobs", "/"):
        async with dashboard.browser("alice") as browser:
            rows = (await browser.visit(path)).html.split("<tr>")
            (opened,) = (row for row in rows if "/jobs/open000001" in row)
            (hidden,) = (row for row in rows if "/jobs/hidden0001" in row)
            (verified,) = (row for row in rows if "/jobs/verified01" in row)
            assert "still reproduces" in verified
            for part in ("fix staged", "/widgets/pull/12", ">3 min ago<", "2026-03-01 12:00:00 UTC", "3 min 20 s"):
                assert part in opened, part
            assert [row for row in rows if "/jobs/checking01" in row and "reproduce" in row] == []
            for part in ("concern", "/pull/", "3 min 20 s", "succeeded"):
                assert part not in hidden, part


def test_a_diff_is_folded_by_file() -> None:
    files = fold_diff(list_lines(PATCH + PATCH.replace("chunks.py", "a b/c d.py")))
    assert [(file.name, file.count("plus"), file.count("minus")) for file in files] == [
        ("chunks.py", 1, 1),
        ("a b/c d.py", 1, 1),
    ]
    assert all(file.unfolded for file in files)
    long = fold_diff(list_lines(PATCH + "+x\n" * 1000))
    assert [file.unfolded for file in long] == [False]


def test_the_phases_of_a_job_follow_from_its_moves() -> None:
    states = {0: JobState.QUEUED, 10: JobState.PREPARING, 30: JobState.RUNNING, 40: JobState.FAILED}
    moves = [(NOON + timedelta(seconds=second), state) for second, state in states.items()]
    until = NOON + timedelta(seconds=100)
    ended = [(phase.state, phase.words) for phase in list_phases(moves, until, active=False)]
    assert ended == [("queued", "10 s"), ("preparing", "20 s"), ("running", "10 s")]
    active = list_phases(moves[:-1], until, active=True)
    assert [(phase.state, phase.words) for phase in active][-1] == ("running", "1 min 10 s")


def test_a_filter_travels_in_an_address_and_back() -> None:
    wanted = PageFilter(repository="octo/widgets", search="a&b #7", state="failed")
    assert wanted.query(before="x") == "repository=octo%2Fwidgets&state=failed&search=a%26b+%237&before=x"
    assert read_filter({"search": " " + "x" * 1000, "other": "y"}) == PageFilter(search="x" * 200)
    hostile = dict.fromkeys(("repository", "who", "search", "state", "before"), "a\0b")
    assert "\0" not in read_filter(hostile).query(), "PostgreSQL takes no NUL"


def test_money_that_nobody_knows_is_in_no_sum() -> None:
    runs = [SpendRow("2026-03-01", "a/b", "mine", make_usage(10, 0, 5, cost)) for cost in (1.0, None, 2.0)]
    (day,) = sum_all(runs)["Day"].values()
    assert (day.known_usd, day.unpriced, day.tokens) == (3.0, 1, 45)
    assert day.cost_usd is None


async def test_the_page_of_another_attempt_does_not_say_how_a_withheld_one_ended(dashboard: Dashboard) -> None:
    concern = make_report(job_id="00000000a1", body="## Security concern\n\nThe parser runs what it reads.\n")
    await dashboard.add(concern, id="00000000a1", attempt=1, state=JobState.FAILED)
    await dashboard.add(make_report(job_id="00000000a2"), id="00000000a2", attempt=2, state=JobState.SUCCEEDED)
    for login, state in ((None, "ended"), ("alice", "ended"), ("root", "failed")):
        async with dashboard.browser(login) as browser:
            page = await browser.visit("/jobs/00000000a2")
            assert f'/jobs/00000000a1">1</a> fix, {state}' in page.html


async def test_what_tells_pages_of_news_says_nothing_about_a_withheld_attempt(tmp_path: Path) -> None:
    concern = make_report(job_id="00000000a1", body="## Security concern\n\nThe parser runs what it reads.\n")
    marks = []
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
        async with open_dashboard(tmp_path / place) as dashboard:
            dashboard.database.secret = place.encode()  # Each installation makes one of its own.
            await dashboard.add(concern, id="00000000a1", attempt=1, state=JobState.FAILED)
            job = await dashboard.add(id="00000000a2", attempt=2, state=JobState.SUCCEEDED)
            for state in (JobState.FAILED, JobState.CANCELLED):
                async with dashboard.database.write() as connection:
                    await connection.execute(update(jobs).where(jobs.c.id == "00000000a1").values(state=state))
                async with dashboard.browser() as browser:
                    stream = (await browser.visit(f"/jobs/{job.id}/log/agent/events")).html
                marks += re.findall("event: standing\ndata: (.*)", stream)
    assert len(marks) == 4
    assert marks[0] == marks[1], "it is the same however the withheld one ended"
    assert marks[0] != marks[2], "nobody without the installation's secret can compute it"


@pytest.mark.slow
async def test_readers_of_a_public_attempt_learn_nothing_of_a_private_one(dashboard: Dashboard) -> None:
    await dashboard.add(id="00000000a1", attempt=1, private=True, preset="diagnose", state=JobState.FAILED)
    await dashboard.add(id="00000000a2", attempt=2, follows="00000000a1", state=JobState.SUCCEEDED)
    await dashboard.add(id="00000000a3", attempt=3, private=True, preset="diagnose", state=JobState.FAILED)
    for login, sees in ((None, False), ("bob", False), ("alice", True), ("root", True)):
        async with dashboard.browser(login) as browser:
            page = await browser.visit("/jobs/00000000a2")
            assert page.status == 200
            assert ("00000000a1" in page.html, "diagnose" in page.html) == (sees, sees)
            assert not browser.offers("/jobs/00000000a2/follow-up"), "it is not the newest attempt"
