"""A job's page that is open while the job ends, in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from bot.web.live_channel import BEHIND
from runner.model.job import JobState
from runner.rows import job_rows
from tests.support.browser import PATIENCE_S, open_page
from tests.support.jobs import NOON
from tests.support.site import open_site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_a_page_that_has_missed_the_end_of_a_log_takes_the_stored_one(tmp_path: Path, browser: Browser) -> None:
    expect.set_options(timeout=PATIENCE_S * 1000)
    async with open_site(tmp_path, public_url="") as site, open_page(browser) as page:
        job = await site.add(state=JobState.COLLECTING)
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
