"""A new operator uses the set-up pages in a real Chromium: reads what the demo prints, types and clicks."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from playwright.async_api import Locator, Page, expect

TOLD = re.compile(
    r"^(?:\d\. \S.*?\s{2,})?\s*(GitHub|tests|an issue's script|host|SSH private key|folder|kind|command): +(\S.*)$"
)

Look = Callable[[str], Awaitable[None]]
"""Called with a name for each page, once it stands there."""


async def _pass_by(name: str) -> None:
    """Nobody looks."""


def read_told(text: str) -> dict[str, str]:
    """What `ptq-bot demo --setup` tells somebody to type, by what it calls it. Pure."""
    return {found[1]: found[2].strip() for line in text.splitlines() if (found := TOLD.match(line))}


@dataclass
class Newcomer:
    """Goes from page to page, and keeps count."""

    page: Page
    told: dict[str, str]
    look: Look = _pass_by
    by_keys: bool = False
    """Whether each letter is a key of its own, or a text comes at once."""
    pages: int = 0
    clicks: int = 0
    fields: int = 0
    seen: list[str] = field(default_factory=list)

    async def open(self, url: str, name: str) -> None:
        """Go to an address that a terminal shows."""
        await self.page.goto(url)
        await self._arrive(name)

    async def set_up(self, port: int | None = None) -> None:
        """Every step, from the first page to the last; `port` where the one that is proposed is somebody's."""
        await self.create_app(port)
        await self.choose_repository()
        await self.add_machine()
        await self.add_agent()
        await self.finish()

    async def create_app(self, port: int | None) -> None:
        """Say where GitHub is, and have it make the App."""
        await self._type("GitHub", self.told["GitHub"])
        if port:
            if await self.page.locator("details[open]", has_text="Another port").count() == 0:
                await self._press(self.page.get_by_text("Another port"))
            await self._type("Public URL of ptq-bot", f"http://127.0.0.1:{port}")
            await self._type("Port of the service on this host", str(port))
        await self._click("button", "Save", "app, kept")
        await self._click("button", "Create the App on GitHub", "GitHub asks")
        await self._click("button", re.compile("^Create GitHub App"), "app, created")

    async def choose_repository(self) -> None:
        """Install the App, and say how jobs are made."""
        await self._click("link", "Next: repositories", "repositories, none")
        async with self.page.expect_popup() as opening:
            await self._press(self.page.get_by_role("link", name="Install on GitHub"))
        ours, self.page = self.page, await opening.value
        await self.page.wait_for_load_state()
        await self._arrive("GitHub installs")
        await self._press(self.page.get_by_label("octo/widgets"))
        await self._click("button", "Install", "GitHub has installed")
        await self.page.close()
        self.page = ours
        await self._click("link", "Reload", "repositories")
        await self._type("Test command", self.told["tests"])
        await self._type("Command for an issue's script", self.told["an issue's script"])
        await self._click("button", "Save", "machines, none")

    async def add_machine(self) -> None:
        """Look at a machine, confirm its host key, and have it tried."""
        await self._type("Host", self.told["host"])
        await self._type("SSH private key", self.told["SSH private key"])
        await self._type("Work folder on the machine", self.told["folder"])
        # The page reloads itself while set-up works.
        await self._press(self.page.get_by_role("button", name="Connect"))
        await expect(self.page.get_by_role("button", name="Key matches: test this machine")).to_be_visible()
        await self._arrive("machines, host key")
        await self._press(self.page.get_by_role("button", name="Key matches: test this machine"))
        await expect(self.page.get_by_text("ready", exact=True)).to_be_visible()
        await self._arrive("machines, tried")
        await self._click("link", "Next: agents", "agents, none")

    async def add_agent(self) -> None:
        """Add the program that the demo names."""
        kind = self.page.get_by_role("radio", name=self.told["kind"])
        if not await kind.is_checked():
            await self._press(kind)
        await self._type("Command", self.told["command"])
        await self._click("button", "Add agent", "agents")
        await self._click("link", "Next: finish", "finish")

    async def finish(self) -> None:
        """Write the configuration, and wait for the doctor."""
        await self._press(self.page.get_by_role("button", name="Write ptq.toml"))
        # The page reloads until the doctor has finished.
        await expect(self.page.get_by_role("button", name="Check again")).to_be_visible()
        await self._arrive("finish, looked")
        await self._click("button", "Finish", "the end")
        await expect(self.page.get_by_text("Set-up has finished")).to_be_visible()

    async def _type(self, label: str, text: str) -> None:
        name = re.compile(rf"^{re.escape(label)}( optional)?$")
        typed = self.page.get_by_role("textbox", name=name).or_(self.page.get_by_role("spinbutton", name=name))
        await self._press(typed)
        await typed.fill("" if self.by_keys else text)
        if self.by_keys:
            await typed.press_sequentially(text)
        self.fields += 1

    async def _click(self, role: str, name: str | re.Pattern[str], arrives: str) -> None:
        async with self.page.expect_navigation():  # A click alone does not wait for where it leads.
            await self._press(self.page.get_by_role(role, name=name))  # type: ignore[arg-type]
        await self._arrive(arrives)

    async def _press(self, target: Locator) -> None:
        await target.click()
        self.clicks += 1

    async def _arrive(self, name: str) -> None:
        self.pages += 1
        self.seen.append(name)
        await self.look(name)
