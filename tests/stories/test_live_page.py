"""A job's page that is open while the job ends, in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from bot.web.live_channel import BEHIND
from runner.model.job import JobState
from runner.rows import job_rows
from tests.support.browser import PATIENCE_S, PHONE, measure_overhang, open_page
from tests.support.jobs import NOON
from tests.support.site import Site, open_site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


async def test_a_page_shows_how_a_worklog_grows_and_how_a_log_that_it_has_missed_ends(
    tmp_path: Path, browser: Browser
) -> None:
    expect.set_options(timeout=PATIENCE_S * 1000)
    async with open_site(tmp_path, public_url="") as site:
        await check_that_a_worklog_grows_where_its_reader_is_and_fits_on_a_phone(site, browser)
        await check_that_a_page_that_has_missed_the_end_of_a_log_takes_the_stored_one(site, browser)


async def check_that_a_worklog_grows_where_its_reader_is_and_fits_on_a_phone(site: Site, browser: Browser) -> None:
    lines = "## Look\n\n" + "".join(f"Line {number}.\n\n" for number in range(100))
    wide = f"## Done\n\n```\n{'wide ' * 100}\n```\n\n| {'cell | ' * 40}\n|{'---|' * 40}\n\n{'x' * 300}\n"
    async with open_page(browser, width=PHONE) as page:
        job = await site.add(state=JobState.RUNNING)
        await site.write_worklog(job, "1", lines)
        await page.goto(f"{site.url}/jobs/{job.id}#worklog")
        # Its first event replaces the worklog, and with it what is being scrolled to.
        await site.write_worklog(job, "2", f"{lines}It is live.\n\n")
        await expect(page.get_by_text("It is live.")).to_be_visible()
        await page.get_by_text("Line 50.").scroll_into_view_if_needed()
        before = await page.get_by_text("Line 50.").bounding_box()
        await site.write_worklog(job, "3", lines + wide)
        await expect(page.get_by_role("heading", name="Done")).to_be_visible()
        assert await page.get_by_text("Line 50.").bounding_box() == before
        assert await measure_overhang(page) == 0


async def check_that_a_page_that_has_missed_the_end_of_a_log_takes_the_stored_one(site: Site, browser: Browser) -> None:
    async with open_page(browser) as page:
        job = await site.add(id="ending0001", thread=8, state=JobState.COLLECTING)
        site.spool.append(job.id, "collect", b"one\n")
        await page.goto(f"{site.url}/jobs/{job.id}")
        await expect(page.locator("#logs")).to_contain_text("one")
        await expect(page.locator("[hidden][sse-swap=next]")).to_have_count(1)
        await site.keep_log(job, "collect", b"one\n" + b"more\n" * BEHIND + b"the last line\n")
        async with site.database.write() as connection:
            await job_rows.move_job(connection, job, JobState.SUCCEEDED, NOON)
        await expect(page.locator("#logs")).to_contain_text("the last line")
        await expect(page.locator("#state")).to_contain_text("succeeded")
        await expect(page.locator("[sse-connect]")).to_have_count(0)
