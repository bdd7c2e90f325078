"""A cancel overtakes what is slow on its issue, and yet is never lost to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.world import WRITE_REPORT, open_world

pytestmark = pytest.mark.slow


async def test_a_cancel_right_behind_the_label_ends_the_job_that_the_label_starts(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + "time.sleep(60)\n") as world:
        await world.open_issue()
        await world.label()  # Slow: permission, timeline and thread are asked for.
        await world.comment("/ptq cancel")
        job = await world.wait_for_job("cancelled")
        assert job.cancelled_by == "maintainer"
        await world.settle()
        assert not any("nothing to cancel" in reply.lower() for reply in world.replies())
