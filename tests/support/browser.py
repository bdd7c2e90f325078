"""A real Chromium: one for each worker, and in it a profile of its own for each page that a test opens."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, FloatRect, Locator, Page, Playwright, async_playwright
from playwright.async_api import TimeoutError as NoAnswer

from tests.support.descriptions import find_axe

PATIENCE_S = 120.0
"""How long anything on a page may take to come: machines have other work."""

CONNECT_S = 60.0
"""How long Chromium may take to answer a connection; twice that is within any test's time."""

PHONE, TABLET, DESKTOP, WIDE = 390, 820, 1280, 1920
"""Widths in pixels."""

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
"""What the documents show. `make pictures` takes them, which needs a font with emoji."""

PICTURED, HIGH = 990, 800
"""How many pixels wide and high a picture is, unless it is of a part of a page."""

Scheme = Literal["light", "dark"]

REFUSED = "the server responded with a status of 4"
"""What Chromium says of an answer of 4xx."""

LOOKS: tuple[tuple[Scheme, int], ...] = (("light", WIDE), ("light", DESKTOP), ("dark", TABLET), ("dark", PHONE))
"""How pages are looked at: colour scheme and width. Whether a page fits depends on its width, so each comes once."""

MEASURED = (("light", DESKTOP), ("dark", PHONE))
"""Where axe-core is asked, which takes long."""

# https://github.com/dequelabs/axe-core/blob/develop/doc/API.md
BARRIERS = """async () => typeof axe === "undefined" ? null :
  (await axe.run({ resultTypes: ["violations"] })).violations.flatMap(({ id, help, nodes }) =>
    nodes.map(({ html, failureSummary }) => `${id}: ${help}: ${html} ${failureSummary}`))"""
"""What axe-core finds; null where it is not there."""

OVERHANG = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

MISFITS = f"""() => [{OVERHANG}, [...document.querySelectorAll("button, .state")].filter((it) => {{
  const range = document.createRange();
  range.selectNodeContents(it);
  return it.innerText && !/\\s/.test(it.innerText.trim()) && range.getClientRects().length > 1;
}}).map((it) => it.innerText)]"""
"""The overhang, and the buttons and states of one word that are broken over two lines."""

NAME_FOLDERS = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    node.data = node.data.replace(/[^\\s"'=]*[/]bin[/]python3?(?=\\s)/g, "python3");
    node.data = node.data.replace(/[^\\s"'=]*[/]pytest-of-[^/]+[/]pytest-[0-9]+[/][^/]+[/]/g, "/srv/");
  }
}"""
"""Shows folders and the Python of the tests as if they were an operator's."""

OURS = "127.0.0.1"
"""The only host from which pages may load anything."""

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first one has no windows, and needs a third less processor time."""

_OPTIONS = (
    "--headless=new",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--remote-debugging-port=0",
    "--no-startup-window",  # Whoever connects waits for every page that there is, and its "New Tab" may not answer.
)


def find_chromium() -> str | None:
    """The browser that `PTQ_TEST_CHROMIUM` names, or else one on the PATH."""
    return os.environ.get("PTQ_TEST_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, and why."""
    if find_chromium() is None:
        terminalreporter.write_line(
            "Chromium is missing: what needs a browser was skipped (package chromium-headless-shell)"
        )


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address by which this worker's Chromium is steered.

    Skips the test where there is no browser, or fails it where `PTQ_TEST_REQUIRE_CHROMIUM` says so.
    """
    program = find_chromium()
    if program is None:
        (pytest.fail if os.environ.get("PTQ_TEST_REQUIRE_CHROMIUM") == "1" else pytest.skip)("Chromium is missing")
    profile = tmp_path_factory.mktemp("chromium")
    options = [*_OPTIONS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with (profile / "log").open("wb") as log:
        process = subprocess.Popen([program, *options], stdout=log, stderr=log, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{_wait_for_port(process, profile)}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], profile: Path) -> int:
    told, deadline = profile / "DevToolsActivePort", time.monotonic() + PATIENCE_S
    while not (told.exists() and "\n" in told.read_text()):
        assert process.poll() is None, f"Chromium has ended: {(profile / 'log').read_text(errors='replace')}"
        assert time.monotonic() < deadline, "Chromium never listened"
        time.sleep(0.02)
    return int(told.read_text().split()[0])


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """The worker's Chromium, to open pages in.

    The program that steers it is started once, too, so its tests share a loop, and have the mark
    `asyncio(loop_scope="session")`.
    """
    async with async_playwright() as playwright:
        connected = await _connect(playwright, chromium)
        yield connected
        await connected.close()


async def _connect(playwright: Playwright, address: str) -> Browser:
    """A connection to Chromium; another one where it takes the first and never answers, as it rarely does."""
    with suppress(NoAnswer):
        return await playwright.chromium.connect_over_cdp(address, timeout=CONNECT_S * 1000)
    return await playwright.chromium.connect_over_cdp(address, timeout=CONNECT_S * 1000)


@asynccontextmanager
async def open_page(
    browser: Browser,
    *,
    width: int = DESKTOP,
    scheme: Scheme = "light",
    is_refused: bool = False,
    has_scripts: bool = True,
) -> AsyncIterator[Page]:
    """A page whose visitor nobody knows yet. Afterwards nothing may have gone wrong on it: no script, no request but
    those that are to be refused, and nothing that its own policy forbids."""
    context = await browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=has_scripts
    )
    context.set_default_timeout(PATIENCE_S * 1000)
    complaints: list[str] = []
    context.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    context.on("request", lambda request: complaints.extend(find_foreign(request.url)))
    try:
        yield await context.new_page()
        assert [complaint for complaint in complaints if not (is_refused and REFUSED in complaint)] == []
    finally:
        await context.close()


def find_foreign(url: str) -> list[str]:
    """A complaint if a request goes to another host."""
    is_ours = urlsplit(url).hostname == OURS or urlsplit(url).scheme in ("about", "blob", "data")
    return [] if is_ours else [f"loads from elsewhere: {url}"]


async def measure_overhang(page: Page) -> int:
    """How many pixels of a page lie beyond its right edge: it scrolls sideways where there are any."""
    overhang: int = await page.evaluate(OVERHANG)
    return overhang


async def take_picture(page: Page, name: str, first: Locator | None = None, last: Locator | None = None) -> None:
    """Take a picture for the documents, if `make pictures` asks for them: of what fits from the `first` element on, or
    of the whole part of the page that ends with the `last` one."""
    if os.environ.get("PTQ_REWRITE_PICTURES") != "1":
        return
    size = page.viewport_size
    assert size
    is_dark = await page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    await page.set_viewport_size({"width": PICTURED, "height": HIGH})
    await page.emulate_media(color_scheme="light")
    await page.evaluate(NAME_FOLDERS)
    first = first or page.locator("body")
    await first.evaluate("it => scrollTo(0, it.getBoundingClientRect().top + scrollY - 12)")
    path = PICTURES / f"{name}.png"
    above, below = await first.bounding_box(), await last.bounding_box() if last else None
    if above and below:
        height = below["y"] + below["height"] + 12 - above["y"]
        clip: FloatRect = {"x": above["x"], "y": above["y"], "width": above["width"], "height": height}
        await page.screenshot(path=path, clip=clip)
    else:
        await page.screenshot(path=path)
    await page.set_viewport_size(size)
    await page.emulate_media(color_scheme="dark" if is_dark else "light")


async def unfold(page: Page) -> None:
    """Open everything on a page that is folded."""
    await page.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true; })")


async def show_parts(page: Page) -> None:
    """Show the parts of a page below each other, as a browser does that cannot make tabs of them."""
    await page.evaluate("document.querySelectorAll('.panel').forEach((it) => { it.style.display = 'block'; })")


async def find_faults(page: Page, name: str) -> list[str]:
    """What of a page some people cannot use: what hangs over its right edge, and what the rules of axe-core forbid.

    The page is left on a phone in the dark. `PTQ_TEST_PICTURES` names a folder for pictures.
    """
    faults = []
    for scheme, width in LOOKS:
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size({"width": width, "height": 900})
        found = await _find_barriers(page) if (scheme, width) in MEASURED else []
        overhang, words = await page.evaluate(MISFITS)
        found += [f"{overhang} pixels hang over"] if overhang > 0 else []
        found += [f"the word {word} is broken" for word in words]
        faults += [f"{name}-{scheme}-{width}: {fault}" for fault in found]
        if folder := os.environ.get("PTQ_TEST_PICTURES"):
            await page.screenshot(path=Path(folder) / f"{name}-{scheme}-{width}.png", full_page=True)
    return faults


async def _find_barriers(page: Page) -> list[str]:
    barriers: list[str] | None = await page.evaluate(BARRIERS)
    if barriers is None:
        # The next pages of this visitor come with it: to send it to each takes three times as long.
        await page.context.add_init_script(path=find_axe())
        await page.evaluate(_load_axe())
        barriers = await page.evaluate(BARRIERS)
    assert barriers is not None
    return barriers


@cache
def _load_axe() -> str:
    """The script of axe-core. Its value is nothing that a page could send."""
    return f"{find_axe().read_text()}; undefined"
