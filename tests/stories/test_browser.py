"""The demo's story in a real Chromium, as a newcomer plays it by `ptq-bot demo --play`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from bot.demo.playground import LABEL, MAINTAINER, STRANGER
from bot.demo.repository import NAME
from tests.support import program
from tests.support.browser import PATIENCE_S, PHONE, PICTURED, Scheme, measure_overhang, open_page, take_picture
from tests.support.world import NOTE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

SCHEMES: tuple[Scheme, ...] = ("light", "dark")

expect.set_options(timeout=PATIENCE_S * 1000)


async def be(page: Page, login: str) -> None:
    await page.locator(".menu summary").click()
    await page.get_by_role("button", name=re.compile(f"{login}\\b")).click()
    await expect(page.locator(".menu summary")).to_contain_text(login)


async def comment(page: Page, words: str) -> None:
    await page.keyboard.insert_text(words)
    await page.get_by_role("button", name="Comment", exact=True).click()


async def read_pages(browser: Browser, addresses: Sequence[str]) -> None:
    """Open each on a phone, in light and then in dark: none scrolls sideways, and nothing goes wrong."""
    async with open_page(browser, width=PHONE) as page:
        for address in addresses:
            answer = await page.goto(address)
            assert answer, address
            assert answer.ok, address
            for scheme in SCHEMES:
                await page.emulate_media(color_scheme=scheme)
                assert await measure_overhang(page) == 0, address


@pytest.mark.slow(20)
async def test_a_newcomer_plays_the_whole_story_in_a_browser(tmp_path: Path, browser: Browser) -> None:
    with program.start(tmp_path, "demo", "--play", TMPDIR=str(tmp_path)) as demo:
        demo.wait_for("configuration ")
        places = dict(re.findall(r"^ +the (\w+) +(\S+)", demo.text(), re.MULTILINE))
        async with open_page(browser, width=PICTURED) as page:
            # Without windows, Chromium takes no click for a permission.
            await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
            await page.goto(places["issue"])
            await expect(page.locator("#body")).to_have_count(0)
            put_on = page.get_by_role("button", name=f"Put the label {LABEL} on")
            await be(page, STRANGER)
            await expect(page.locator("#body")).to_be_visible()
            await expect(put_on).to_have_count(0)

            await be(page, MAINTAINER)
            await put_on.click()
            command = page.locator(".block", has_text="/ptq pr ")
            await command.get_by_role("button", name="Copy").click()
            report, job = page.locator("article", has=command), page.locator('a[href*="/jobs/"]').first
            await expect(report).to_contain_text("Fix staged")
            await take_picture(page, "report", report, report.locator("ul").first)
            digest = (await command.locator("pre").inner_text()).split()[-1]

            address = await job.get_attribute("href") or ""
            await job.click()
            await expect(page.locator("body")).to_contain_text("succeeded")
            await expect(page.locator("body")).to_contain_text(digest)
            await take_picture(page, "job")
            await page.go_back()

            await page.locator("#body").press("Control+V")
            await page.keyboard.insert_text(f"\n\n{NOTE}")
            await take_picture(page, "note", command)
            await comment(page, "")
            await page.get_by_role("link", name="#2", exact=True).click()
            await expect(page.locator(".state")).to_have_text("Draft")
            await expect(page.locator("article").first).to_contain_text(NOTE)
            added = page.locator("tr.plus", has_text="range(0, len(items), size)")
            await expect(added).to_be_visible()
            await take_picture(page, "pull")
            commit = await page.locator("#change .rows a").get_attribute("href") or ""

        site = places["issue"].removesuffix(f"/{NAME}/issues/1")
        paths = ("", "/issues", "/issues/new", "/issues/1", "/pulls", "/pull/2")
        pages = [site, f"{site}{commit}", *(f"{site}/{NAME}{path}" for path in paths), places["jobs"], address]
        await read_pages(browser, pages)
