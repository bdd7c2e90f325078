"""`docs/http.md`, held against what the service answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import aiohttp

from bot.web.auth.auth_config import AuthConfig
from bot.web.auth.oauth import GitHubOAuth, OAuthApp
from bot.web.pages import ARTIFACTS, Pages
from handlers.context import Context
from runner.steps.spool import Spool
from tests.support.jobs import NOON, open_database
from tests.support.site import AGENTS

ROOT = Path(__file__).parents[2]
MANUAL = (ROOT / "docs" / "http.md").read_text()
BESIDE_PAGES = {"POST /webhook", "* /gateway/..."}
"""What the composition root adds to the pages."""


async def list_routes(folder: Path) -> set[str]:
    """What the pages answer where people may sign in, as the document writes it."""
    async with open_database(folder) as database, aiohttp.ClientSession() as session:
        oauth = GitHubOAuth(session, OAuthApp("id", "a secret", "http://web", "http://api"))
        github = cast("Any", None)  # Nothing is asked.
        context = Context(github, database, {}, {}, "http://127.0.0.1", (), lambda: NOON, lambda: None)
        pages = Pages(context, Spool(folder / "spool"), {}, AGENTS, auth=AuthConfig(oauth))
        return {
            f"{route.method} {re.sub(r'{(.+?)}', lambda part: part[1].upper(), route.path)}" for route in pages.routes()
        }


async def test_every_address_is_in_the_reference_and_nothing_else(tmp_path: Path) -> None:
    documented = re.findall(r"^\| `((?:[A-Z]+|\*) \S+)` \| \S", MANUAL, re.MULTILINE)
    assert set(documented) == await list_routes(tmp_path) | BESIDE_PAGES
    assert len(documented) == len(set(documented))


def test_what_the_composition_root_adds_is_still_two_addresses() -> None:
    source = (ROOT / "bot" / "app.py").read_text()
    added = re.findall(r'add_(?:post|get|put|delete|route)\((?:"\*", )?(f?"[^"]+")', source)
    assert added == ['"/webhook"', 'f"{PREFIX}/{{path:.*}}"']


def test_every_file_of_a_job_is_named() -> None:
    assert all(f"`{name}`" in MANUAL for name in ARTIFACTS)
