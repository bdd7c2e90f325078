"""The pages of set-up in a real Chromium: somebody new types what the demo prints, on a narrow screen in the dark."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, expect

from bot.config.settings import load_settings
from bot.demo.loopback import find_free_port
from bot.demo.tryout import Tryout
from tests.support.browser import PATIENCE_S, PHONE, find_faults, open_page
from tests.support.installer import serve_setup
from tests.support.newcomer import Newcomer, read_told
from tests.support.openapi import load_openapi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def test_somebody_new_gets_through_with_what_the_demo_prints(tmp_path: Path, browser: Browser) -> None:
    expect.set_options(timeout=PATIENCE_S * 1000)
    async with Tryout(tmp_path / "tryout") as tryout, serve_setup(tmp_path / "here") as (setup, address):
        tryout.github.observers.append(load_openapi().check)
        async with open_page(browser, width=PHONE, scheme="dark", is_refused=True) as page:

            async def look(name: str) -> None:
                assert await find_faults(newcomer.page, name) == []

            newcomer = Newcomer(page, read_told(tryout.describe()), look)
            await newcomer.open(address, "app")
            await page.get_by_label("GitHub").fill(f"http://127.0.0.1:{find_free_port()}")
            await page.get_by_role("button", name="Save").click()
            await expect(page.locator("[aria-invalid=true]")).to_be_visible()
            await look("app, refused")
            await newcomer.set_up()
        assert tryout.github.complaints == []
        assert setup.ended.is_set()
        settings = load_settings(tmp_path / "here" / "ptq.toml")
        assert (*settings.repos, urlsplit(settings.github.api_url).netloc) == (
            "octo/widgets",
            urlsplit(tryout.github.url).netloc,
        )
    assert newcomer.fields <= 7, "whoever is new types no more than this"
