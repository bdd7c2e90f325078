"""A cancel overtakes what is slow on its issue, and yet is never lost to it."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.bot.test_webhook_examples import deliver
from tests.support.world import WRITE_REPORT, open_world

pytestmark = pytest.mark.slow


async def test_a_cancel_ends_the_job_that_was_requested_before_it_and_no_later_one(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + "time.sleep(60)\n") as world:
        await world.open_issue()
        await world.label()  # Slow: permission, timeline and thread are asked for.
        await world.comment("/ptq cancel")
        job = await world.wait_for_job("cancelled")
        assert job.cancelled_by == "maintainer"
        await world.settle()
        assert not any("no job is running" in reply.lower() for reply in world.replies())

        (cancel,) = [sent for sent in world.github.deliveries if b'"body": "/ptq cancel"' in sent.payload]
        await world.comment("/ptq diagnose")
        await world.wait_for_job("running")
        said = len(world.replies())
        async with aiohttp.ClientSession() as session:
            url = f"{world.playground.service.url}/webhook"
            assert await deliver(session, url, "a-new-id", cancel.event, cancel.payload) == 200
        await world.comment("/ptq status")  # What came after a cancel waits for it.
        await world.wait(lambda: len(world.replies()) > said or None, "the status")
        assert (await world.wait_for_job("running")).cancel_requested_at is None
        await world.comment("/ptq cancel")
        await world.wait_for_report(2)
