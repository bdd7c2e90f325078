"""`make bench-setup`: from a fresh clone to a first report by the pages of set-up alone, as the documents say, timed.

A Chromium that types letter by letter and clicks plays somebody new. What they would read and think is in no time.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import async_playwright, expect

from bot.demo.loopback import find_free_port
from tests.bench import needs
from tests.support.browser import find_chromium
from tests.support.newcomer import Newcomer, read_told

ROOT = Path(__file__).parents[2]
PATIENCE_S = 900.0
USUAL_PORT = 8080


@dataclass
class Terminal:
    """A command that runs, and what it has said so far."""

    process: asyncio.subprocess.Process
    said: str = ""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        """Take what it says until it ends."""
        assert self.process.stdout
        while line := await self.process.stdout.readline():
            self.said += line.decode(errors="replace")
            self._news.set()

    async def wait_for(self, words: str) -> str:
        """All that it has said, once these words are in it. Raises `TimeoutError`."""
        async with asyncio.timeout(PATIENCE_S):
            while words not in self.said:
                if self.process.returncode is not None:
                    raise RuntimeError(f"it has ended: {self.said}")
                self._news.clear()
                await self._news.wait()
        return self.said


@asynccontextmanager
async def run(program: Path, *arguments: str, folder: Path) -> AsyncIterator[Terminal]:
    """A command of ours in a terminal of its own, which ends it by Ctrl-C."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program, *arguments, cwd=folder, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    terminal = Terminal(process)
    listening = asyncio.create_task(terminal.listen())
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await listening


def install(folder: Path) -> Path:
    """Clone and install as the README says; the program."""
    clone, environment = folder / "ptq-bot", folder / "ptq-bot" / ".venv"
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], **quiet)  # type: ignore[call-overload]
    subprocess.run([sys.executable, "-m", "venv", environment], **quiet)  # type: ignore[call-overload]
    pip = [environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", "constraints.txt", "."], cwd=clone, **quiet)  # type: ignore[call-overload]
    return environment / "bin" / "ptq-bot"


def is_free(port: int) -> bool:
    """Whether nobody listens there."""
    return subprocess.run(["bash", "-c", f"</dev/tcp/127.0.0.1/{port}"], capture_output=True).returncode != 0


@asynccontextmanager
async def sit_down(terminals: tuple[Terminal, Terminal]) -> AsyncIterator[Newcomer]:
    """Somebody new with a browser, who has read both terminals."""
    demo, setup = terminals
    told = read_told(await demo.wait_for("A maintainer labels"))
    address = next(word for word in (await setup.wait_for("Press Ctrl-C")).split() if "token=" in word)
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    expect.set_options(timeout=PATIENCE_S * 1000)  # The doctor tries a first job on the machine.
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=options)
        newcomer = Newcomer(await browser.new_page(), told, by_keys=True)
        await newcomer.open(address, "app")
        yield newcomer
        await browser.close()


async def set_up(program: Path, folder: Path) -> list[tuple[str, str]]:
    """The way from the first command to the report, as rows of what was counted."""
    here = folder / "here"
    here.mkdir()
    port = None if is_free(USUAL_PORT) else find_free_port()
    async with AsyncExitStack() as stack:
        began = time.monotonic()
        demo = await stack.enter_async_context(run(program, "demo", "--setup", folder=folder))
        setup = await stack.enter_async_context(run(program, "setup", folder=here))
        async with sit_down((demo, setup)) as newcomer:
            ready = time.monotonic()
            await newcomer.set_up(port)
        written = time.monotonic()
        await stack.enter_async_context(run(program, "serve", "--config", "ptq.toml", folder=here))
        await demo.wait_for("has put the label")
        labelled = time.monotonic()
        print((await demo.wait_for("The first report is there")).splitlines()[-2], file=sys.stderr)
        reported = time.monotonic()
    return [
        ("until the pages stand there", f"{ready - began:.0f} s"),
        ("pages, from the first to the end of set-up", f"{written - ready:.0f} s"),
        ("until the service takes deliveries, and the label is on", f"{labelled - written:.0f} s"),
        ("from the label to the report", f"{reported - labelled:.0f} s"),
        ("first command to report", f"{reported - began:.0f} s"),
        ("pages seen", str(newcomer.pages)),
        ("clicks", str(newcomer.clicks)),
        ("fields typed", str(newcomer.fields)),
        ("commands typed", "3, and 3 to install"),
    ]


def main() -> int:
    """Install, set up, print: the exit status."""
    if not needs.may_run([needs.chromium(), needs.quiet_machine(), needs.memory(1_000)]):
        return 2
    with tempfile.TemporaryDirectory(prefix="ptq-newcomer-", ignore_cleanup_errors=True) as folder:
        began = time.monotonic()
        program = install(Path(folder))
        installed = time.monotonic()
        rows = [("clone, virtual environment, installation", f"{installed - began:.0f} s")]
        rows += asyncio.run(set_up(program, Path(folder)))
    print("| what | how much |\n|---|---|")
    print("\n".join(f"| {what} | {how_much} |" for what, how_much in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
