"""What a pull request is made of, and where: as the repository's table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.demo.github import Pull
from bot.demo.repository import NAME
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

AGENT = WRITE_REPORT + FIX


async def approve(world: World, *, title: str = "") -> Pull:
    """An issue, a job, a report and a note, and the pull request that comes of them."""
    await world.open_issue()
    await world.label()
    await world.wait_for_report()
    await world.comment(f"/ptq pr {world.digest()}{title}\n\n{NOTE}")
    return await world.wait_for_pull()


async def test_a_note_that_would_open_one_too_many_names_the_open_ones_and_may_come_again(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=AGENT, repository_toml="max_open_pulls = 1") as world:
        first = await approve(world)
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        note = f"/ptq pr {world.digest()}\n\n{NOTE}"
        await world.comment(note)
        await world.wait_for_reply(f"(#{first.number}), and 1 are the most")
        assert world.pulls() == [first]
        await world.github.close_issue(NAME, first.number, by="maintainer")
        await world.comment(note)
        await world.wait(lambda: world.pulls()[1:] or None, "the second pull request")
        await world.wait_for_reply("Draft pull request #")
        await world.settle()
        assert len(world.pulls()) == 2
