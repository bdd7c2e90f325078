"""A maintainer's day on the dashboard, in a real Chromium: a launch, a log that grows, a note, a draft pull request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from bot.demo.playground import MAINTAINER
from github_standin.standin import CLIENT_ID, CLIENT_SECRET
from tests.support.browser import PATIENCE_S, PHONE, measure_overhang, open_page
from tests.support.world import FIX, NOTE, WRITE_REPORT, open_world

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOML = f"""
[dashboard]
client_id = "{CLIENT_ID}"
client_secret = "{CLIENT_SECRET}"
operators = ["{MAINTAINER}"]
"""
GROWING = """
release = pathlib.Path(os.environ['PTQ_OUTPUT_DIR']) / 'release'
print('the first line', flush=True)
while not release.exists():
    time.sleep(0.05)
release.unlink()
print('the second line', flush=True)
"""
AGENT = WRITE_REPORT + GROWING + FIX


async def sign_in(page: Page, url: str) -> None:
    await page.goto(f"{url}/jobs")
    await page.get_by_role("link", name="Sign in with GitHub").click()
    await page.get_by_role("button", name=re.compile(f"{MAINTAINER}$")).click()
    await expect(page.locator(".who")).to_contain_text(f"@{MAINTAINER}")


async def test_a_maintainer_does_everything_from_the_dashboard(tmp_path: Path, browser: Browser) -> None:
    expect.set_options(timeout=PATIENCE_S * 1000)
    async with open_world(tmp_path, on_real_machine=True, agent=AGENT, more_toml=TOML) as world:
        url = world.playground.service.url
        await world.open_issue()
        async with open_page(browser, width=PHONE, scheme="dark") as page:
            await sign_in(page, url)

            await page.get_by_role("link", name="Launch").click()
            await page.get_by_label("Issue", exact=True).fill(str(world.number))
            await page.get_by_label("Preset").select_option("fix")
            await page.get_by_role("button", name="Launch").click()

            # Nobody loads this page anew: what comes from here on comes by itself.
            await expect(page.locator("#log-agent")).to_contain_text("the first line")
            await expect(page.locator("#log-agent")).to_be_visible()
            await expect(page.locator("#state")).to_contain_text("running")
            await expect(page.locator("#steps")).to_contain_text("running")
            await expect(page).to_have_title(re.compile("running$"))
            await page.get_by_label("Search this log").fill("FIRST")
            await expect(page.locator("#found")).to_have_text("1 of 1")
            await expect(page.get_by_role("button", name="Cancel the job")).to_be_visible()
            (job,) = await world.jobs()
            (world.playground.folder / "machine/workspace/jobs" / job.id / "files/output/release").touch()
            await expect(page.locator("#log-agent")).to_contain_text("the second line")
            await expect(page.locator("#offers").get_by_role("link", name="Open the pull request")).to_be_visible()
            await expect(page.get_by_role("button", name="Cancel the job")).to_have_count(0)
            await expect(page).to_have_title(re.compile("succeeded$"))
            await expect(page.locator("#diff .plus").first).to_be_attached()
            await expect(page.locator("#log")).to_be_visible()
            await page.locator("#state").get_by_role("link", name="View result").click()

            await expect(page.locator("#report").get_by_role("heading")).not_to_have_count(0)
            await page.get_by_role("link", name="Diff", exact=True).click()
            await expect(page.locator("#diff .plus").first).to_be_visible()
            await expect(page.locator("#report")).to_be_hidden()

            await page.get_by_role("link", name="Open the pull request").click()
            await page.get_by_role("button", name=re.compile(f"{MAINTAINER}$")).click()
            await page.get_by_label("Your note").fill(NOTE)
            await page.get_by_role("button", name="Post the note").click()
            await expect(page.locator("main")).to_contain_text("Your note was posted")
            pull = await world.wait_for_pull()
            assert NOTE in pull.body
            for path in ("", "/jobs", f"/jobs/{job.id}", "/launch", "/deliveries", "/spend"):
                await page.goto(f"{url}{path}")
                assert await measure_overhang(page) == 0, path
