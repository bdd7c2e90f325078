"""Somebody in front of the pages of set-up: a plain HTTP client that posts forms as a browser does."""

from __future__ import annotations

import asyncio
import html
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from bot.demo.repository import NAME
from bot.demo.tryout import AGENT, Tryout
from bot.listener import HttpListener
from bot.setup.server import Setup

SILENCE_S = 5.0

MAKES_NO_PIP = f"""#!/bin/sh
[ "$1 $2" != "-m venv" ] || set -- "$@" --without-pip
exec {sys.executable} "$@"
"""
"""A machine's `python3`. To install pip takes three seconds for each virtual environment. `test_setup` has it once."""


def make_no_pip(folder: Path) -> Path:
    """Put a `python3` that makes virtual environments without pip into this folder; the folder, for a `PATH`."""
    folder.mkdir(exist_ok=True)
    (folder / "python3").write_text(MAKES_NO_PIP)
    (folder / "python3").chmod(0o755)
    return folder


@dataclass(frozen=True)
class Seen:
    """An answer. `text` is what stands on the page, as somebody reads it."""

    status: int
    url: str
    headers: Mapping[str, str]
    html: str

    @property
    def text(self) -> str:
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", self.html)).split())

    def hidden(self, name: str) -> str:
        found = re.search(rf'name="{name}" value="([^"]*)"', self.html)
        assert found, f"no {name} in {self.text}"
        return html.unescape(found[1])


@dataclass
class Operator:
    setup: Setup
    session: aiohttp.ClientSession
    address: str
    """What the terminal shows, token and all."""

    @property
    def url(self) -> str:
        return self.setup.state.our_url

    async def open(self, path: str, **headers: str) -> Seen:
        url = path if path.startswith("http") else f"{self.url}{path}"
        async with self.session.get(url, headers=headers) as answer:
            return Seen(answer.status, str(answer.url), answer.headers, await answer.text())

    async def post(self, path: str, form: Mapping[str, str] | None = None, **headers: str) -> Seen:
        """Send a form of ours, with its word, go where it leads, and wait until set-up has done what it asks."""
        return await self.follow(await self.send(path, form, **headers))

    async def follow(self, seen: Seen) -> Seen:
        """What a page shows once it reloads itself no more."""
        while "Refresh" in seen.headers:
            while self.setup.state.underway:  # A browser waits for as long as the page says.
                await asyncio.sleep(0.02)
            seen = await self.open(seen.url)
        return seen

    async def send(self, path: str, form: Mapping[str, str] | None = None, **headers: str) -> Seen:
        """Send a form of ours, and go where it leads."""
        fields = {"csrf": self.setup.access.csrf_token, **(form or {})}
        url = path if path.startswith("http") else f"{self.url}{path}"
        async with self.session.post(url, data=fields, headers=headers) as answer:
            return Seen(answer.status, str(answer.url), answer.headers, await answer.text())

    async def find_creation(self, web_url: str) -> dict[str, str]:
        """Say where GitHub is, post the manifest there, and return the form with which it asks for a yes."""
        place = {"web_url": web_url, "app_name": "ptq-bot", "public_url": "http://127.0.0.1:8080", "port": "8080"}
        page = await self.post("/app/place", place)
        asking = re.search(r'action="([^"]+/settings/apps/new[^"]+)"', page.html)
        assert asking, page.text
        asked = await self.post(html.unescape(asking[1]), {"manifest": page.hidden("manifest")})
        return {name: asked.hidden(name) for name in ("name", "manifest", "state", "owner")}

    async def create_app(self, web_url: str) -> Seen:
        """The whole way to GitHub and back."""
        return await self.post(f"{web_url}/settings/apps/manifest", await self.find_creation(web_url))

    async def choose_repository(self, web_url: str) -> Seen:
        await self.post(f"{web_url}/apps/ptq-bot/installations/new", {"repository": NAME})
        await self.open("/repositories")
        script = {f"tests:{NAME}": "python -m unittest", f"script:{NAME}": "PYTHONPATH=. python"}
        labels = {"diagnose_label": "ptq", "fix_label": "ptq:fix"}
        return await self.post("/repositories", {"repository": NAME, **script, **labels})

    async def look_at(self, tryout: Tryout, **changes: str) -> Seen:
        return await self.follow(await self.send_machine(tryout, **changes))

    async def send_machine(self, tryout: Tryout, **changes: str) -> Seen:
        """The form for the machine of the tryout; what it shows at once."""
        ssh = tryout.ssh
        form = {
            "address": f"{ssh.user}@127.0.0.1:{ssh.port}",
            "name": "machine-1",
            "client_key_file": str(ssh.client_key_file),
            "workspace": str(tryout.workspace),
            "slots": "1",
        }
        return await self.send("/machines/look", {**form, **changes})

    async def add_agent(self, python: str) -> Seen:
        return await self.post("/agents/add", {"kind": "command", "name": "script", "command": f"{python} {AGENT}"})


@asynccontextmanager
async def serve_setup(folder: Path) -> AsyncIterator[tuple[Setup, str]]:
    """A set-up in this folder, which goes on with what is there, and the address that its terminal shows."""
    folder.mkdir(exist_ok=True)
    setup = Setup(folder / "ptq.toml", SILENCE_S)
    listener = HttpListener(setup.application(), 0.2)
    port = urlsplit(await listener.open("127.0.0.1", 0)).port
    try:
        yield setup, setup.set_port(port or 0)
    finally:
        await listener.close()
        await setup.close()


@asynccontextmanager
async def open_setup(folder: Path, *, inside: bool = True) -> AsyncIterator[Operator]:
    """In front of a set-up in this folder; `inside` has opened its address."""
    # Browsers keep cookies of addresses, too.
    jar = aiohttp.CookieJar(unsafe=True)
    async with serve_setup(folder) as (setup, address), aiohttp.ClientSession(cookie_jar=jar) as session:
        operator = Operator(setup, session, address)
        if inside:
            assert (await operator.open(operator.address)).status == 200
        yield operator
