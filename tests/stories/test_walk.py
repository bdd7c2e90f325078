"""From an empty folder to a draft pull request in a real Chromium: set-up, launch, live log, two notes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, expect

from bot.app import Service
from bot.config.settings import Settings, load_settings
from bot.demo.loopback import find_free_port
from bot.demo.playground import MAINTAINER, PACE
from bot.demo.repository import NAME
from bot.demo.sshd import DEFAULT_PATH
from bot.demo.tryout import Tryout
from tests.support.browser import PATIENCE_S, PHONE, find_faults, measure_overhang, open_page, take_picture
from tests.support.installer import make_no_pip, serve_setup
from tests.support.newcomer import Newcomer, read_told
from tests.support.openapi import load_openapi
from tests.support.world import FIX, NOTE, WRITE_REPORT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

PICTURED_PAGES = {"": "overview", "/jobs": "jobs", "/deliveries": "deliveries", "/spend": "spend"}
"""The pages whose pictures the documents show -> their names."""
PICTURED_STEPS = {
    "app": "setup-app",
    "machines, tried": "setup-machine",
    "repositories": "setup-repositories",
    "agents": "setup-agents",
    "finish, looked": "setup-doctor",
}
"""The same for the steps of set-up."""

GROWING = """
release = pathlib.Path(os.environ['PTQ_OUTPUT_DIR']) / 'release'
print('the first line', flush=True)
while not release.exists():
    time.sleep(0.05)
release.unlink()
print('the second line', flush=True)
"""


@pytest.mark.slow(30)
async def test_an_operator_sets_it_up_and_a_maintainer_gets_a_pull_request(tmp_path: Path, browser: Browser) -> None:
    expect.set_options(timeout=PATIENCE_S * 1000)
    script = tmp_path / "agent.py"
    script.write_text(WRITE_REPORT + GROWING + FIX)
    async with Tryout(tmp_path / "tryout", f"{make_no_pip(tmp_path / 'programs')}:{DEFAULT_PATH}") as tryout:
        tryout.github.observers.append(load_openapi().check)
        settings = await set_up(tmp_path / "here", tryout, f"{sys.executable} {script}", browser)
        async with (
            Service(settings, PACE) as service,
            open_page(browser, width=PHONE, scheme="dark", is_refused=True) as page,
        ):
            tryout.github.webhook_url = f"{service.url}/webhook"
            await sign_in(page, service.url)
            job_id = await launch(page, tryout)
            await follow_log(page, tryout.workspace / "jobs" / job_id / "files/output/release")
            await read_result(page)
            await write_notes(page, tryout)
            for path in ("", "/jobs", f"/jobs/{job_id}", "/launch", "/deliveries", "/spend"):
                await page.goto(f"{service.url}{path}")
                assert await measure_overhang(page) == 0, path
                if name := PICTURED_PAGES.get(path):
                    await take_picture(page, name)
        assert tryout.github.complaints == []


async def set_up(folder: Path, tryout: Tryout, agent: str, browser: Browser) -> Settings:
    """By the pages alone, with what the demo prints; what stands in `ptq.toml` then."""
    async with (
        serve_setup(folder) as (setup, address),
        open_page(browser, width=PHONE, scheme="dark", is_refused=True) as page,
    ):

        async def look(name: str) -> None:
            if picture := PICTURED_STEPS.get(name):
                await take_picture(newcomer.page, picture)
            assert await find_faults(newcomer.page, name) == []

        newcomer = Newcomer(page, {**read_told(tryout.describe()), "command": agent}, look)
        await newcomer.open(address, "app")
        await page.get_by_label("GitHub").fill(f"http://127.0.0.1:{find_free_port()}")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("[aria-invalid=true]")).to_be_visible()
        await look("app, refused")
        port = find_free_port()
        await newcomer.set_up(port)
        assert setup.ended.is_set()
    settings = load_settings(folder / "ptq.toml")
    assert (*settings.repos, settings.server.port) == (NAME, port)
    assert urlsplit(settings.github.api_url).netloc == urlsplit(tryout.github.url).netloc
    assert settings.dashboard.operators == {MAINTAINER}
    assert newcomer.fields <= 9, "seven where the usual port is free: nobody types more than this"
    return settings


async def sign_in(page: Page, url: str) -> None:
    await page.goto(f"{url}/jobs")
    await page.get_by_role("link", name="Sign in with GitHub").click()
    await page.get_by_role("button", name=re.compile(f"{MAINTAINER}$")).click()
    await expect(page.locator(".who")).to_contain_text(f"@{MAINTAINER}")


async def launch(page: Page, tryout: Tryout) -> str:
    """Start a job on the issue; its id."""
    await page.get_by_role("link", name="Launch").click()
    await page.get_by_label("Issue", exact=True).fill(str(tryout.number))
    await page.get_by_label("Preset").select_option("fix")
    await take_picture(page, "launch")
    async with page.expect_navigation(url=re.compile(r"/jobs/[0-9a-f]{10}")):
        await page.get_by_role("button", name="Launch").click()
    return urlsplit(page.url).path.rpartition("/")[2]


async def follow_log(page: Page, release: Path) -> None:
    """Nobody reloads this page: from here on, everything on it comes by itself."""
    await expect(page.locator("#log-agent")).to_contain_text("the first line")
    await expect(page.locator("#log-agent")).to_be_visible()
    await expect(page.locator("#state")).to_contain_text("running")
    await expect(page.locator("#steps")).to_contain_text("running")
    await expect(page).to_have_title(re.compile("running$"))
    await page.get_by_label("Search this log").fill("FIRST")
    await expect(page.locator("#found")).to_have_text("1 of 1")
    await expect(page.get_by_role("button", name="Cancel the job")).to_be_visible()
    await take_picture(page, "live-log", page.locator("#log"))
    release.touch()
    await expect(page.locator("#log-agent")).to_contain_text("the second line")
    await expect(page.locator("#offers").get_by_role("link", name="Open the pull request")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel the job")).to_have_count(0)
    await expect(page).to_have_title(re.compile("succeeded$"))
    await expect(page.locator("#diff .plus").first).to_be_attached()
    await expect(page.locator("#log")).to_be_visible()


async def read_result(page: Page) -> None:
    await page.locator("#state").get_by_role("link", name="View result").click()
    await expect(page.locator("#report").get_by_role("heading")).not_to_have_count(0)
    await page.get_by_role("link", name="Diff", exact=True).click()
    await expect(page.locator("#diff .plus").first).to_be_visible()
    await expect(page.locator("#report")).to_be_hidden()
    await take_picture(page, "diff")


async def write_notes(page: Page, tryout: Tryout) -> None:
    """The first one is too short; the second one opens the pull request, as GitHub shows it."""
    await page.get_by_role("link", name="Open the pull request").click()
    await page.get_by_role("button", name=re.compile(f"{MAINTAINER}$")).click()
    await page.get_by_label("Your note").fill("lgtm")
    await page.get_by_role("button", name="Post the note").click()
    await expect(page.get_by_role("alert")).to_contain_text("too short")
    await expect(page.get_by_label("Your note")).to_have_value("lgtm")
    await take_picture(page, "note-refused", page.get_by_role("alert"))
    await page.get_by_label("Your note").fill(NOTE)
    await page.get_by_role("button", name="Post the note").click()
    await expect(page.locator("main")).to_contain_text("Your note was posted")
    await page.goto(f"{tryout.github.url}/{NAME}/issues/{tryout.number}")
    await page.get_by_role("link", name=re.compile(r"#\d+$")).last.click()
    await expect(page.locator(".state")).to_have_text("Draft")
    await expect(page.locator("article").first).to_contain_text(NOTE)
    (pull,) = tryout.github.pulls(NAME)
    assert NOTE in pull.body
