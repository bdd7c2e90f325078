"""A real Chromium: one for each worker, and in it a profile of its own for each page that a test opens."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, Page, Playwright, async_playwright
from playwright.async_api import TimeoutError as NoAnswer

PATIENCE_S = 120.0
"""How long anything on a page may take to come: machines have other work."""

CONNECT_S = 60.0
"""How long Chromium may take to answer a connection; twice that is within any test's time."""

PHONE, DESKTOP, WIDE = 390, 1280, 1920
"""Widths in pixels."""

Scheme = Literal["light", "dark"]

REFUSED = "the server responded with a status of 4"
"""What Chromium says of an answer of 4xx."""

UNLABELLED = """() => [...document.querySelectorAll("input:not([type=hidden]), select, textarea, button")]
  .filter((it) => !(it.labels?.length || it.ariaLabel || (it.localName === "button" && it.innerText.trim())))
  .map((it) => it.outerHTML)"""

# https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
FAINT = """() => {
  const read = (css) => { const [r, g, b, a = 1] = css.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const lay = (top, under) => under.map((part, at) => top[at] * top[3] + part * (1 - top[3]));
  const shine = (colour) => colour
    .map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.background = "Canvas";
  const canvas = read(getComputedStyle(probe).backgroundColor).slice(0, 3);
  probe.remove();
  const measure = (element, colour, opacity) => {
    const above = [];
    for (let it = element; it; it = it.parentElement) above.unshift(getComputedStyle(it));
    let ground = canvas;
    for (const style of above) {
      ground = lay(read(style.backgroundColor), ground);
      opacity *= style.opacity;
    }
    const [r, g, b, a] = read(colour);
    const [darker, lighter] = [lay([r, g, b, a * opacity], ground), ground].map(shine).sort((one, two) => one - two);
    return (lighter + 0.05) / (darker + 0.05);
  };
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = [];
  while (words.nextNode()) {
    const element = words.currentNode.parentElement;
    if (!words.currentNode.data.trim() || !element.checkVisibility() || element.disabled) continue;
    const contrast = measure(element, getComputedStyle(element).color, 1);
    if (contrast < 4.5) faint.push(`${contrast.toFixed(2)}: ${words.currentNode.data.trim().slice(0, 60)}`);
  }
  for (const field of document.querySelectorAll("[placeholder]")) {
    const { color, opacity } = getComputedStyle(field, "::placeholder");
    const contrast = measure(field, color, opacity);
    if (contrast < 4.5) faint.push(`${contrast.toFixed(2)}: ${field.placeholder}`);
  }
  return faint;
}"""

_NAMES = ("chromium", "chromium-browser", "google-chrome")
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
        terminalreporter.write_line("Chromium is missing: what needs a browser was skipped (package chromium)")


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


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """The worker's Chromium, to open pages in."""
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
    try:
        yield await context.new_page()
        assert [complaint for complaint in complaints if not (is_refused and REFUSED in complaint)] == []
    finally:
        await context.close()


async def measure_overhang(page: Page) -> int:
    """How many pixels of a page lie beyond its right edge: it scrolls sideways where there are any."""
    overhang: int = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return overhang


async def find_faults(page: Page) -> list[str]:
    """What of a page some people cannot use, with everything on it unfolded: what hangs over its right edge, fields
    without a label, and words that stand out too little from what they stand on (WCAG AA)."""
    await page.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true; })")
    unlabelled: list[str] = await page.evaluate(UNLABELLED)
    faint: list[str] = await page.evaluate(FAINT)
    overhang = await measure_overhang(page)
    return [*([f"{overhang} pixels hang over"] if overhang else []), *unlabelled, *faint]
