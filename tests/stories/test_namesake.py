"""A repository is renamed, and somebody creates another one with its old name, which `ptq.toml` still has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from bot.config.settings import load_settings
from bot.demo.playground import STRANGER
from bot.demo.repository import NAME
from bot.doctor.examination import examine
from bot.operations.repositories import accept_repository
from handlers.cases.known_repositories import fetch_numbers
from runner.db.schema import deliveries
from tests.support.hook import open_hook
from tests.support.world import World, open_world

pytestmark = pytest.mark.slow


async def wait_until_known(world: World) -> None:
    async with asyncio.timeout(world.patience_s):
        while NAME not in await _fetch_known(world):
            await asyncio.sleep(0.02)


async def _fetch_known(world: World) -> dict[str, int]:
    async with world.playground.service.context.db.read() as connection:
        return await fetch_numbers(connection)


async def test_a_new_repository_with_the_old_name_has_no_rights_until_the_operator_accepts_it(tmp_path: Path) -> None:
    async with open_hook() as hook, open_world(tmp_path, more_toml=f'[notify]\nurl = "{hook.url}"') as world:
        settings = load_settings(world.playground.config)
        await wait_until_known(world)
        world.github.rename_repository(NAME, "gadgets")
        (finding,) = [one for one in await examine(world.playground.config) if one.check == "name"]
        assert (finding.words[:26], finding.fix) == (
            "it is called octo/gadgets ",
            'write [repos."octo/gadgets"] in ptq.toml',
        )
        world.github.add_repository(NAME, world.playground.git_dir)
        world.github.set_permission(NAME, STRANGER, "admin")
        await world.open_issue()
        await world.label(by=STRANGER)
        await world.comment("/ptq fix", by=STRANGER)
        await world.wait(lambda: hook.heard or None, "a notification")
        await world.settle()
        assert (await world.jobs(), world.replies()) == ([], [])
        async with world.playground.service.context.db.read() as connection:
            errors = (await connection.execute(select(deliveries.c.error))).scalars().all()
        assert [error and error.split(":")[0] for error in errors] == [f"another repository is called {NAME}"] * 2
        assert [one["kind"] for one in hook.heard] == ["namesake"]
        (finding,) = [one for one in await examine(world.playground.config) if one.check == "name"]
        assert finding.words.startswith(f"another repository is called {NAME} by now")
        assert finding.fix.endswith(f"ptq-bot repositories accept {NAME}")

        assert "is the repository" in await accept_repository(settings, NAME)
        assert not [one for one in await examine(world.playground.config) if one.check == "name"]
        await world.comment("/ptq status", by=STRANGER)
        await world.wait_for_reply("<!-- ptq:reply=")
