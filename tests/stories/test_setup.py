"""A new operator sets ptq-bot up by its pages alone, against the stand-in.

`test_walk` goes on from there to a job and its pull request.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Route, expect

from bot.config.settings import load_settings
from bot.demo.repository import NAME
from bot.demo.sshd import DEFAULT_PATH
from bot.demo.tryout import Tryout
from bot.setup.answers import Answers
from tests.support.browser import PATIENCE_S, find_faults, open_page
from tests.support.gate import Gate
from tests.support.installer import Operator, make_no_pip, open_setup, serve_setup
from tests.support.openapi import load_openapi

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.iterdir()}


async def begin_set_up(tryout: Tryout, folder: Path) -> Answers:
    """Everything before a machine's host key is confirmed; nothing was sent to the machine."""
    async with open_setup(folder) as operator:
        assert "Still missing" in (await operator.post("/finish/write")).text
        await operator.create_app(tryout.github.url)
        assert urlsplit((await operator.open("/")).url).path == "/repositories"
        await operator.choose_repository(tryout.github.url)
        looked = await operator.look_at(tryout)
        assert "ssh-ed25519 SHA256:" in looked.text
        assert not operator.setup.state.answers.machines
        assert not tryout.workspace.exists(), "nothing was sent there"
        return operator.setup.state.answers


async def add_machine(operator: Operator, tryout: Tryout, folder: Path) -> None:
    """Confirm the host key that the page shows."""
    shown, looked_at = await operator.open("/machines"), operator.setup.state.answers.looked_at
    assert looked_at
    assert shown.hidden("host_key") == looked_at.host_key
    tried = await operator.post("/machines/confirm", {"host_key": shown.hidden("host_key")})
    assert "machine-1 ready" in tried.text
    assert "git version" in tried.text
    assert "test job passed" in tried.text
    assert not [*tryout.workspace.glob("trial-*")]
    (kept,) = operator.setup.state.answers.machines
    assert kept.programs["git"].startswith("git version")
    hosts = (folder / "ptq-known-hosts").read_bytes()
    assert hosts.split()[:3] == tryout.ssh.known_hosts_file.read_bytes().split()[:3]
    assert modes(folder) == {0o600}


async def finish_set_up(operator: Operator, tryout: Tryout, folder: Path) -> None:
    """Add an agent, write the file, and leave."""
    await operator.add_agent(sys.executable)
    config = folder / "ptq.toml"
    page = await operator.open("/finish")
    assert [page.hidden(f"{scope}_usd") for scope in ("job", "user_day", "repository_month")] == ["10", "50", "500"]
    assert "such as 10 or 2.50" in (await operator.post("/finish/write", {"job_usd": "ten"})).text
    assert page.hidden("operators") == "maintainer", "the owner of the App"
    config.write_text("mine")
    assert "Replace the existing file" in (await operator.post("/finish/write")).text
    assert config.read_text() == "mine"
    written = await operator.post("/finish/write", {"replace": "yes"})
    assert f"ptq-bot serve --config {config}" in written.text
    for label in ("ptq", "ptq:fix"):
        assert f"gh label create {label} -R {tryout.github.url}/{NAME}" in written.text
    assert f'href="{tryout.github.url}/{NAME}/labels"' in written.html
    assert "when maintainer has signed in" in written.text
    assert 'operators = ["maintainer"]' in config.read_text()
    said = written.text
    assert "App ptq-bot (" in said
    assert "FAILED" not in said
    app = operator.setup.state.answers.app
    assert app is not None
    assert app.webhook_secret in config.read_text()
    assert app.webhook_secret not in (await operator.open("/finish")).html
    assert modes(folder) - {0o755} == {0o600}
    ended = await operator.post("/finish/end")
    assert "You can close this page" in ended.text
    assert operator.setup.ended.is_set()
    assert not operator.setup.state.files.path.exists()


async def test_an_interrupted_set_up_goes_on_to_a_configuration_that_works(tmp_path: Path) -> None:
    folder, programs = tmp_path / "here", tmp_path / "programs"
    async with Tryout(tmp_path / "tryout", f"{programs}:{DEFAULT_PATH}") as tryout:
        tryout.github.observers.append(load_openapi().check)
        before = await begin_set_up(tryout, folder)
        async with open_setup(folder) as operator:
            assert operator.setup.state.answers == before
            assert urlsplit((await operator.open("/")).url).path == "/machines"
            await add_machine(operator, tryout, folder)
            make_no_pip(programs)
            await finish_set_up(operator, tryout, folder)
        assert load_settings(folder / "ptq.toml").dashboard.operators == {"maintainer"}, "the owner of the App"
        assert tryout.github.complaints == []


async def stand_still(route: Route) -> None:
    """The page as it is, without its reload."""
    answer = await route.fetch()
    await route.fulfill(response=answer, headers={k: v for k, v in answer.headers.items() if k != "refresh"})


async def test_a_page_that_shows_what_set_up_does_reloads_itself_and_suits_everybody(
    tmp_path: Path, browser: Browser
) -> None:
    expect.set_options(timeout=PATIENCE_S * 1000)
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
        await page.get_by_label("Work folder on the machine").fill("/proc/ptq")  # The test ends early there.
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
        await expect(page.get_by_text("make /proc/ptq writable for the account").first).to_be_visible()
