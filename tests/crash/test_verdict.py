"""The verdict on a story is worth something: it notices what was lost, and what happened twice."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from bot.demo.repository import NAME
from tests.crash.installation import Installation
from tests.crash.matrix import open_database
from tests.crash.tale import judge, live_through
from tests.support.world import World


@pytest.mark.slow
async def test_the_verdict_notices_what_was_lost_and_what_happened_twice(tmp_path: Path) -> None:
    async with open_database(None, tmp_path / "story") as url:
        installation = await live_through(tmp_path / "story", url, [])
    world = World(installation)
    world.number = 1
    comments, issues = world.github.issue(NAME, 1).comments, world.github._world.repository(NAME).issues
    for number, comment in enumerate([*comments]):
        if comment.via_app:
            comments.append(copy.deepcopy(comment))
            expect_a_complaint(world, installation)
            comments.pop()
            del comments[number]
            expect_a_complaint(world, installation)
            comments.insert(number, comment)
    [pull] = world.pulls()
    issues[99] = copy.deepcopy(pull)
    expect_a_complaint(world, installation)
    del issues[99]
    world.git("branch", "ptq/another", "main")
    expect_a_complaint(world, installation)
    world.git("branch", "-D", "ptq/another")
    judge(world, installation)
    starts = tmp_path / "story" / "signs" / "starts"
    starts.write_text(starts.read_text() * 2)
    expect_a_complaint(world, installation)


def expect_a_complaint(world: World, installation: Installation) -> None:
    with pytest.raises(AssertionError):
        judge(world, installation)
