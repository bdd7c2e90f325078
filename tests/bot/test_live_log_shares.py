"""Nobody takes all live logs: each reader has a share of the streams."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from runner.model.job import JobState
from tests.support.dashboard import Browser, open_dashboard


@pytest.mark.slow
async def test_strangers_leave_half_of_the_streams_to_people_who_sign_in_and_nobody_takes_all(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, max_streams=4) as dashboard, AsyncExitStack() as streams:
        job = await dashboard.add(state=JobState.RUNNING)
        stranger, alice, bob = [
            await streams.enter_async_context(dashboard.browser(who)) for who in (None, "alice", "bob")
        ]

        async def open_stream(browser: Browser) -> int:
            url = f"{dashboard.url}/jobs/{job.id}/log/agent/events"
            return (await streams.enter_async_context(browser.session.get(url))).status

        assert [await open_stream(stranger) for _ in range(3)] == [200, 200, 503]
        assert [await open_stream(alice) for _ in range(2)] == [200, 503], "a share of 3 %, at least one"
        assert await open_stream(bob) == 200
