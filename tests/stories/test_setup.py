"""A new operator sets ptq-bot up by its pages alone, against the stand-in, and gets a first report."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from bot.app import Service
from bot.config.settings import load_settings
from bot.demo.playground import PACE
from bot.demo.tryout import Tryout
from tests.support.browser import PATIENCE_S as BROWSER_PATIENCE_S
from tests.support.browser import find_faults, open_page
from tests.support.gate import Gate
from tests.support.installer import open_setup, serve_setup
from tests.support.openapi import load_openapi
from tests.support.world import PATIENCE_S

pytestmark = pytest.mark.slow


async def test_from_nothing_to_a_first_report_by_the_pages_alone(tmp_path: Path, unused_tcp_port: int) -> None:
    config = tmp_path / "here" / "ptq.toml"
    async with Tryout(tmp_path / "tryout") as tryout:
        tryout.github.observers.append(load_openapi().check)
        async with open_setup(config.parent) as operator:
            await operator.create_app(tryout.github.url)
            await operator.choose_repository(tryout.github.url)
            looked = await operator.look_at(tryout)
            await operator.post("/machines/confirm", {"host_key": looked.hidden("host_key")})
            await operator.add_agent(sys.executable)
            await operator.post("/finish/write")
            await operator.post("/finish/end")
        # The port that set-up proposes may be somebody's, where tests run side by side.
        text = config.read_text().replace("port = 8080", f"port = {unused_tcp_port}")
        config.write_text(text.replace("verify = {", "verify = { runs = 0,"))  # That takes its time elsewhere.
        async with Service(load_settings(config), PACE) as service:
            tryout.github.webhook_url = f"{service.url}/webhook"
            async with asyncio.timeout(PATIENCE_S):
                await tryout.label_once_it_answers()
                address = await tryout.wait_for_report()
        report = next(
            comment.body
            for comment in tryout.github.issue("octo/widgets", tryout.number).comments
            if address.endswith(f"#issuecomment-{comment.id}")
        )
        assert "### Fix staged" in report
        assert load_settings(config).dashboard.operators == {"maintainer"}, "the owner of the App"
        assert "+    for start in range(0, len(items), size):" in report
        assert tryout.github.complaints == []


async def stand_still(route: Route) -> None:
    """The page as it is, without its reload."""
    answer = await route.fetch()
    await route.fulfill(response=answer, headers={k: v for k, v in answer.headers.items() if k != "refresh"})


async def test_a_page_that_shows_what_set_up_does_reloads_itself_and_suits_everybody(
    tmp_path: Path, browser: Browser
) -> None:
    expect.set_options(timeout=BROWSER_PATIENCE_S * 1000)
    async with (
        Tryout(tmp_path / "tryout") as tryout,
        Gate(tryout.ssh.port) as gate,
        serve_setup(tmp_path / "here") as (setup, address),
        open_page(browser) as page,
    ):
        await page.goto(address)
        await page.goto(f"{setup.state.our_url}/machines")
        await page.get_by_label("Host", exact=True).fill(f"{tryout.ssh.user}@127.0.0.1:{gate.port}")
        await page.get_by_label("SSH private key").fill(str(tryout.ssh.client_key_file))
        await page.get_by_label("Work folder on the machine").fill(str(tryout.workspace))
        await page.get_by_role("button", name="Connect").click()
        await expect(page.get_by_role("status")).to_contain_text("Connecting to")
        (await gate.meet()).set()
        await page.get_by_role("button", name="Key matches: test this machine").click()
        (await gate.meet()).set()
        passing = await gate.meet()
        await expect(page.get_by_role("status")).to_contain_text("Testing machine-1: Python. Then: disk and GPUs")
        await page.route("**/machines", stand_still)
        await page.goto(f"{setup.state.our_url}/machines")
        assert await find_faults(page, "machines, tested") == []
        await page.unroute("**/machines")
        await page.goto(f"{setup.state.our_url}/machines")
        gate.is_open = True
        passing.set()
        await expect(page.get_by_text("ready", exact=True)).to_be_visible()
