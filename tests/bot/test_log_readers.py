"""A log may tell of a security concern before any report does: who may read it, on every path that leads there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runner.model.job import Job, JobState
from runner.model.jobd_answers import Worklog
from runner.rows import job_rows
from runner.rows.worklogs import save_worklog
from tests.bot.test_live_log import Follower
from tests.support.dashboard import HIDDEN, Browser, Dashboard, open_dashboard
from tests.support.jobs import NOON
from tests.support.site import make_report

SIGN_IN = "Sign in to see the log: you need write access to octo/widgets."
NO_RIGHT = "You need write access to octo/widgets to see the log."
NO_LOGS = "This service shows no logs without sign-in: ask its operator."
FOUND = "anyone may empty the till"
CHECKED = "the script fails on base"
LOGS = ("prepare", "agent", "collect")
LEFT = make_report(body=" \n", worklog=FOUND, repro=f"print('{FOUND}')", patch=f"+{FOUND}\n", digest=None)
FILES = ("/patch", "/files/worklog.md", "/files/repro.py", "/files/change.patch")


async def fill(dashboard: Dashboard, state: JobState, repository: str = "octo/widgets") -> Job:
    """A job whose log and failure tell what it found. If it has ended, it has left no report, but all else."""
    is_active, is_private = state is JobState.RUNNING, repository == HIDDEN
    failure = None if is_active else f"the agent exited with status 1:\n{FOUND}"
    report = None if is_active else LEFT
    where = {"repository": repository, "private": is_private}
    job = await dashboard.add(report, state=state, failure=failure, started_at=NOON, **where)
    async with dashboard.database.write() as connection:
        await job_rows.add_event(connection, job.id, NOON, f"{state}: {failure}")
        await save_worklog(connection, job.id, Worklog("1", f"## {FOUND}\n", is_cut=False))
        for stage in (*LOGS, "check"):
            log = f"{CHECKED if stage == 'check' else FOUND}\n".encode()
            if is_active:
                dashboard.spool.append(job.id, stage, log)
            else:
                await job_rows.save_log(connection, job.id, stage, job_rows.compress_log(log))
    return job


async def check_reader(browser: Browser, job: Job, reason: str) -> None:
    """What somebody finds who sees a job; `reason` is why they may not read its log, empty if they may."""
    page = await browser.visit(f"/jobs/{job.id}")
    assert page.status == 200
    assert (FOUND in page.html, reason in page.text) == (not reason, True)
    assert CHECKED in page.html, "the service's own checks belong to the report"
    assert (await browser.visit(f"/jobs/{job.id}/log/check")).html == f"{CHECKED}\n"
    for stage in LOGS:
        raw = await browser.visit(f"/jobs/{job.id}/log/{stage}")
        assert (raw.status, raw.html) == ((403, f"{reason}\n") if reason else (200, f"{FOUND}\n"))
    for path in () if job.active else FILES:
        file = await browser.visit(f"/jobs/{job.id}{path}")
        assert (file.status, FOUND in file.html) == ((404, False) if reason else (200, True))


@pytest.mark.slow
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.FAILED], ids=str)
async def test_a_log_is_for_people_with_write_access(tmp_path: Path, state: JobState) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        job = await fill(dashboard, state)
        for login, reason in ((None, SIGN_IN), ("bob", NO_RIGHT), ("alice", ""), ("root", "")):
            async with dashboard.browser(login) as browser:
                await check_reader(browser, job, reason)


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.FAILED], ids=str)
@pytest.mark.parametrize("public_logs", [False, True])
async def test_where_nobody_can_sign_in_a_log_is_shown_if_the_operator_says_so(
    tmp_path: Path, state: JobState, public_logs: bool
) -> None:
    async with open_dashboard(tmp_path, signs_in=False, public_logs=public_logs) as dashboard:
        job = await fill(dashboard, state)
        async with dashboard.browser() as browser:
            await check_reader(browser, job, "" if public_logs else NO_LOGS)


@pytest.mark.slow
async def test_a_private_repositorys_log_is_for_people_with_write_access_in_any_case(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, public_logs=True) as dashboard:
        job = await fill(dashboard, JobState.FAILED, HIDDEN)
        for login, reason in (("carol", NO_RIGHT.replace("octo/widgets", HIDDEN)), ("alice", "")):
            async with dashboard.browser(login) as browser:
                await check_reader(browser, job, reason)


async def test_a_report_shows_what_belongs_to_it_and_leaves_the_log_where_it_is(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard, dashboard.browser() as browser:
        job = await dashboard.add(make_report(worklog="what was tried"), state=JobState.SUCCEEDED)
        page = await browser.visit(f"/jobs/{job.id}")
        for part in ("It is fixed.", "what was tried", "chunks.py", SIGN_IN):
            assert part in page.text
        assert (await browser.visit(f"/jobs/{job.id}/log/agent")).status == 403


async def test_what_a_failed_preparation_printed_last_is_for_all_who_see_the_job(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard, dashboard.browser() as browser:
        job = await dashboard.add(state=JobState.FAILED, failure="setup failed (exit status 1):\nno such package")
        page = await browser.visit(f"/jobs/{job.id}")
        assert "setup failed (exit status 1)" in page.text
        assert "no such package" in page.text


async def test_a_failed_run_says_at_the_top_of_its_page_what_its_agent_printed_last(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        job = await fill(dashboard, JobState.FAILED)
        for login, sees in (("bob", False), ("alice", True)):
            async with dashboard.browser(login) as browser:
                page = await browser.visit(f"/jobs/{job.id}")
                top, _, _ = page.text.partition("Summary")
                assert ("The last lines of the agent’s log" in top, top.count(FOUND)) == (sees, 2 * sees)


@asynccontextmanager
async def follow(browser: Browser, job: Job, stage: str) -> AsyncIterator[Follower]:
    async with browser.session.get(f"{browser.url}/jobs/{job.id}/log/{stage}/events") as reply:
        assert reply.status == 200
        yield Follower(reply)


@pytest.mark.slow
async def test_a_live_page_without_its_log_still_shows_how_the_job_stands(tmp_path: Path) -> None:
    async with (
        open_dashboard(tmp_path) as dashboard,
        dashboard.browser() as stranger,
        dashboard.browser("alice") as alice,
    ):
        job = await dashboard.add(state=JobState.COLLECTING)
        dashboard.spool.append(job.id, "collect", f"{FOUND}\n".encode())
        page = await stranger.visit(f"/jobs/{job.id}")
        assert [attrs["sse-connect"] for _, attrs in page.tags if "sse-connect" in attrs] == [
            f"/jobs/{job.id}/log/collect/events?from=0"
        ]
        async with follow(stranger, job, "collect") as closed, follow(alice, job, "collect") as opened:
            await opened.until_log(FOUND)
            assert "collecting" in (await closed.until("state")).text
            dashboard.spool.append(job.id, "check", f"{CHECKED}\n".encode())
            async with dashboard.database.write() as connection:
                await job_rows.move_job(connection, job, JobState.VERIFYING, NOON)
            section = (await closed.until("next")).data
            assert "Raw log" in section, "the log of the checks is for all who see the job"
            assert await closed.drain() == ["over"]
        assert not closed.log
        async with follow(stranger, job, "check") as checks:
            await checks.until_log(CHECKED)


@pytest.mark.slow
async def test_a_worklog_grows_only_on_the_pages_of_people_who_may_read_the_log(tmp_path: Path) -> None:
    async with (
        open_dashboard(tmp_path) as dashboard,
        dashboard.browser() as stranger,
        dashboard.browser("alice") as alice,
    ):
        job = await fill(dashboard, JobState.RUNNING)
        async with follow(stranger, job, "agent") as closed, follow(alice, job, "agent") as opened:
            assert (await opened.until("worklog")).text.split() == ["Worklog", *FOUND.split()]
            async with dashboard.database.write() as connection:
                await save_worklog(connection, job.id, Worklog("2", f"## {FOUND}\n\nTwice.\n", is_cut=False))
            assert "Twice." in (await opened.until("worklog")).text
            async with dashboard.database.write() as connection:
                await job_rows.move_job(connection, job, JobState.FAILED, NOON)
            assert "worklog" not in await closed.drain()


@pytest.mark.slow
async def test_the_next_log_is_as_closed_as_the_one_before(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard, dashboard.browser() as stranger:
        job = await dashboard.add(state=JobState.RUNNING)
        async with follow(stranger, job, "agent") as closed:
            await closed.until("state")
            async with dashboard.database.write() as connection:
                await job_rows.move_job(connection, job, JobState.COLLECTING, NOON, f"it failed:\n{FOUND}")
            seen = []
            while event := await closed.next():
                seen.append(event)
        assert [event.name for event in seen][-2:] == ["next", "over"]
        assert "sse-connect" in seen[-2].data
        assert "Raw log" not in seen[-2].data
        assert FOUND not in "".join(event.data for event in seen)
        assert "it failed" in "".join(event.data for event in seen)


async def test_no_log_is_opened_for_readers_who_may_not_read_it(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard, dashboard.browser() as stranger:
        job = await dashboard.add(state=JobState.RUNNING)
        (tmp_path / "spool" / f"{job.id}.agent.log").mkdir()  # Nobody can read it.
        async with follow(stranger, job, "agent") as closed:
            assert "running" in (await closed.until("state")).text
            async with dashboard.database.write() as connection:
                await job_rows.move_job(connection, job, JobState.FAILED, NOON)
            assert (await closed.until("end")).text.strip() == "Job finished: failed. View result"
