"""What people type into forms, in a real Chromium: kept until it was sent, and for nobody else."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.bot.test_dashboard_actions import add_report
from tests.support.browser import PATIENCE_S, open_page
from tests.support.dashboard import HIDDEN, Dashboard, open_dashboard
from tests.support.visitor import NAME
from tests.support.world import NOTE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


async def choose(page: Page, login: str) -> None:
    """Say on GitHub's page who one is."""
    await page.get_by_role("button", name=re.compile(f"{login}$")).click()


async def list_kept(page: Page) -> list[str]:
    """The names of what our pages keep in the storage of the browser."""
    names: list[str] = await page.evaluate("Object.keys(localStorage).concat(Object.keys(sessionStorage))")
    return [name for name in names if name.startswith("ptq-")]


async def wait_until_kept(page: Page) -> None:
    """Wait for the script of a page that has just been opened."""
    async with asyncio.timeout(PATIENCE_S):
        while not await list_kept(page):
            await asyncio.sleep(0.05)


async def test_a_typed_text_is_kept_for_its_author_and_its_target_until_it_is_sent(
    tmp_path: Path, browser: Browser
) -> None:
    expect.set_options(timeout=PATIENCE_S * 1000)
    async with open_dashboard(tmp_path) as dashboard:
        await check_that_a_note_outlives_its_session_for_its_author_alone_and_goes_once_it_is_posted(dashboard, browser)
        await check_that_a_link_does_not_choose_where_a_kept_text_goes(dashboard, browser)
        await check_that_what_is_typed_before_the_script_has_come_is_kept(dashboard, browser)


async def check_that_a_note_outlives_its_session_for_its_author_alone_and_goes_once_it_is_posted(
    dashboard: Dashboard, browser: Browser
) -> None:
    async with open_page(browser, is_refused=True) as page:
        path = await add_report(dashboard)
        form, note = f"{dashboard.url}{path}/note", page.get_by_label("Your note")
        await page.goto(form)
        await choose(page, "alice")
        await choose(page, "alice")
        await note.fill("Too short.")
        await expect(page.locator("#count")).to_have_text("8 of at least 30 letters")
        await page.get_by_role("button", name="Post the note").click()
        await expect(page.get_by_role("alert")).to_contain_text("too short")
        await note.fill(NOTE)
        await page.context.clear_cookies()
        await page.get_by_role("button", name="Post the note").click()
        await expect(page.get_by_role("alert")).to_contain_text("Your session has ended")

        await page.goto(f"{dashboard.url}/sign-in?next=/")
        await choose(page, "bob")
        await page.goto(form)
        await choose(page, "bob")
        await expect(note).to_have_value("")

        await page.context.clear_cookies()
        await page.goto(form)
        await choose(page, "alice")
        await choose(page, "alice")
        await expect(note).to_have_value(NOTE)
        await expect(page.locator(".kept")).to_be_visible()
        await page.get_by_role("button", name="Post the note").click()
        await expect(page.locator("main")).to_contain_text("Your note was posted")
        assert await list_kept(page) == []

        await page.goto(f"{dashboard.url}/launch")
        await page.get_by_label("Instructions").fill("Look at it.")
        assert await list_kept(page) == ["ptq-draft alice launch"]
        await page.reload()
        await expect(page.get_by_label("Instructions")).to_have_value("Look at it.")
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("link", name="Sign in with GitHub")).to_be_visible()
        assert await list_kept(page) == []


async def check_that_a_link_does_not_choose_where_a_kept_text_goes(dashboard: Dashboard, browser: Browser) -> None:
    async with open_page(browser) as page:
        repository, issue = page.locator("[name=repository]"), page.locator("[name=issue]")
        preset = page.locator("[name=preset]")
        await page.goto(f"{dashboard.url}/sign-in?next=/launch")
        await choose(page, "alice")
        await repository.select_option(HIDDEN)
        await issue.fill("7")
        await preset.select_option("diagnose")
        await page.get_by_label("Instructions").fill("The secret plan.")
        await wait_until_kept(page)
        for linked in (NAME, HIDDEN):
            await page.goto(f"{dashboard.url}/launch?repository={linked}&issue=12&preset=fix")
            await expect(page.get_by_label("Instructions")).to_have_value("The secret plan.")
            await expect(repository).to_have_value(HIDDEN)
            await expect(issue).to_have_value("7")
            await expect(preset).to_have_value("diagnose")
        await page.goto(f"{dashboard.url}/launch?repository={NAME}&issue=12")
        await page.get_by_role("button", name="Discard it").click()
        await expect(repository).to_have_value(NAME)
        await expect(issue).to_have_value("12")


async def check_that_what_is_typed_before_the_script_has_come_is_kept(dashboard: Dashboard, browser: Browser) -> None:
    has_typed = asyncio.Event()

    async def hold(route: Route) -> None:
        await has_typed.wait()
        await route.continue_()

    async with open_page(browser) as page:
        await page.route("**/static/drafts.js", hold)
        await page.goto(f"{dashboard.url}/sign-in?next=/launch")
        await choose(page, "alice")
        await page.get_by_label("Instructions").fill("At once.")
        assert await list_kept(page) == []
        has_typed.set()
        await wait_until_kept(page)
        await page.reload()
        await expect(page.get_by_label("Instructions")).to_have_value("At once.")
