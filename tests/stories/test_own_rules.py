"""What a repository says of itself in `.github/ptq.toml` holds for whatever comes later, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

RULES = ".github/ptq.toml"


@pytest.mark.slow(20)
async def test_a_note_is_carried_out_by_the_rules_of_that_moment(tmp_path: Path) -> None:
    """A note is accepted; the repository changes its rules before GitHub lets it be carried out."""
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX) as world:
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        note = f"/ptq pr {world.digest()}\n\n{NOTE}"

        async def give_note_during_an_outage(rules: str) -> None:
            outages = count_outages(world)
            world.github.faults.add("GET", "/repos/octo/widgets/pulls", 503, times=8)
            await world.comment(note)
            await world.wait(lambda: count_outages(world) > outages or None, "the outage")
            world.commit({RULES: rules})

        await give_note_during_an_outage('who_may_open = "admin"\n')
        words = "maintainer no longer has admin access"
        assert words in await world.wait_for_reply("Could not open the pull request")
        await world.settle()

        world.commit({RULES: ""})
        await give_note_during_an_outage('who_may_open = "nobody"\n')
        words = "line 1, who_may_open"
        assert words in await world.wait_for_reply("Could not open the pull request", 2)
        await world.settle()
        assert world.pulls() == []

        # While GitHub does not say what the rules are, a note waits for them.
        world.commit({RULES: 'who_may_open = "admin"\n'})
        world.github.faults.add("GET", f"/repos/octo/widgets/contents/{RULES}", 503, times=8)
        await world.comment(note)
        await world.wait_for_reply("you need admin access")
        await world.settle()
        assert world.pulls() == []
        world.commit({RULES: ""})
        await world.comment(note)
        await world.wait_for_pull()


def count_outages(world: World) -> int:
    return sum(seen.status == 503 for seen in world.github.exchanges)
