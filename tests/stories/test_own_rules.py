"""What a repository says of itself in `.github/ptq.toml` holds for whatever comes later, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

RULES = ".github/ptq.toml"


async def give_note_during_an_outage(world: World, rules: str) -> None:
    """A note is accepted; the repository changes its rules before GitHub lets it be carried out."""
    await world.open_issue()
    await world.label()
    await world.wait_for_report()
    world.github.faults.add("GET", "/repos/octo/widgets/pulls", 503, times=8)
    await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
    await world.wait(lambda: any(seen.status == 503 for seen in world.github.exchanges) or None, "the outage")
    world.commit({RULES: rules})


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ('who_may_open = "admin"\n', "maintainer no longer has admin access"),
        ('who_may_open = "nobody"\n', "line 1, who_may_open"),
    ],
)
async def test_a_note_is_carried_out_by_the_rules_of_that_moment(tmp_path: Path, rules: str, words: str) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX) as world:
        await give_note_during_an_outage(world, rules)
        assert words in await world.wait_for_reply("Could not open the pull request")
        await world.settle()
        assert world.pulls() == []


async def test_a_note_waits_while_github_does_not_say_what_the_rules_are(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX) as world:
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        world.github.faults.add("GET", f"/repos/octo/widgets/contents/{RULES}", 503, times=8)
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        await world.wait_for_pull()
