"""What the dashboard does in a real Chromium without scripts, and what scripts add."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from playwright.async_api import Browser, expect

from handlers.rules import RepositoryRules
from runner.agents import AgentSpec
from runner.model.job import JobState
from runner.rows import job_rows
from tests.stories.test_dashboard_looks import be_root
from tests.support.browser import open_page
from tests.support.dashboard import HIDDEN, Dashboard, open_dashboard
from tests.support.jobs import NOON
from tests.support.site import make_report
from tests.support.visitor import NAME

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]

PARTS = ("summary", "diff", "checks", "worklog", "log", "files")


async def test_each_page_can_be_used_without_scripts_and_scripts_make_it_easier(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_dashboard(tmp_path, public_logs=True) as dashboard:
        await check_that_scripts_refresh_lists_search_logs_and_narrow_choices(dashboard, browser)
        await check_that_without_scripts_each_tab_shows_its_part_and_a_link_leads_into_one(dashboard, browser)
        await check_that_the_log_of_a_stage_is_folded_when_the_next_one_begins(dashboard, browser)


async def check_that_without_scripts_each_tab_shows_its_part_and_a_link_leads_into_one(
    dashboard: Dashboard, browser: Browser
) -> None:
    async with open_page(browser, has_scripts=False) as page:
        report = make_report(job_id="ended00001", worklog="looked", repro="chunked()")
        await dashboard.add(report, id="ended00001", thread=8, state=JobState.SUCCEEDED)
        url = f"{dashboard.url}/jobs/ended00001"
        for path, shown in (("", "summary"), ("#diff", "diff"), ("#repro", "files"), ("#elsewhere", "summary")):
            await page.goto("about:blank")
            await page.goto(f"{url}{path}")
            assert [part for part in PARTS if await page.locator(f"#{part}").is_visible()] == [shown], path
        for part in PARTS:
            await page.get_by_role("navigation", name="Parts of this job").locator(f"[href='#{part}']").click()
            assert [one for one in PARTS if await page.locator(f"#{one}").is_visible()] == [part]
        await page.goto(f"{url}#diff")
        await page.get_by_role("link", name="Side by side").click()
        await expect(page.locator(".sides .plus")).to_contain_text("size < 3")


async def check_that_the_log_of_a_stage_is_folded_when_the_next_one_begins(
    dashboard: Dashboard, browser: Browser
) -> None:
    async with open_page(browser) as page:
        job = await dashboard.add(id="begun00001", thread=9, state=JobState.PREPARING)
        dashboard.spool.append(job.id, "prepare", b"\x1e[Fetching the repository.]\n")
        await page.goto(f"{dashboard.url}/jobs/{job.id}")
        await expect(page.get_by_text("Fetching the repository.")).to_be_visible()
        async with dashboard.database.write() as connection:
            await job_rows.move_job(connection, job, JobState.RUNNING, NOON)
        dashboard.spool.append(job.id, "agent", b"I look.\n")
        await expect(page.get_by_text("I look.")).to_be_visible()
        await expect(page.get_by_text("Fetching the repository.")).to_be_hidden()
        await page.get_by_label("Search this log").fill("fetching")
        await expect(page.get_by_text("Fetching the repository.")).to_be_visible()


async def add_logged(dashboard: Dashboard) -> None:
    job = await dashboard.add(id="logged0001", state=JobState.FAILED)
    async with dashboard.database.write() as connection:
        lines = "".join(f"Line {number}\n" for number in range(300))
        await job_rows.save_log(connection, job.id, "agent", job_rows.compress_log(lines.encode()))


async def check_that_scripts_refresh_lists_search_logs_and_narrow_choices(
    dashboard: Dashboard, browser: Browser
) -> None:
    async with open_page(browser) as page:
        await page.goto(f"{dashboard.url}/sign-in?next=/jobs")
        await be_root(page)
        await expect(page.locator("#live")).to_contain_text("No jobs yet.")
        await page.clock.install()
        await page.reload()
        await add_logged(dashboard)
        await page.clock.fast_forward(11_000)
        await page.get_by_role("link", name=f"{NAME}#7").click()

        await page.get_by_role("link", name="Log", exact=True).click()
        await page.get_by_label("Search this log").fill("line 29")
        await expect(page.locator("#found")).to_have_text("1 of 11")
        await page.keyboard.press("Shift+Enter")
        await expect(page.locator("#found")).to_have_text("11 of 11")
        assert await page.evaluate("scrollY") > 1000

        rules = cast("dict[str, RepositoryRules]", dashboard.context.repositories)
        cast("dict[str, AgentSpec]", dashboard.context.agents)["other"] = AgentSpec("other", "command", ("true",))
        rules[NAME] = RepositoryRules(NAME, agent="other")
        await page.goto(f"{dashboard.url}/launch?repository={HIDDEN}")
        offered = "[...document.querySelector('[name=agent]').options].filter((it) => !it.closest('[hidden]')).length"
        await page.locator("[name=agent]").select_option("mine")
        await page.locator("[name=repository]").select_option(NAME)
        assert await page.locator("[name=agent]").input_value() == "", "the other repository has no such agent"
        assert await page.evaluate(offered) == 2
