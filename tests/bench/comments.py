"""How long it takes from the answer to a delivery until the status comment stands on the issue."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from bot.demo.playground import LABEL, MAINTAINER, STRANGER
from bot.demo.repository import ISSUE_BODY, ISSUE_TITLE, NAME
from tests.bench.load import PATIENCE_S, LoadFailed
from tests.bench.servers import Installation

SERVE = (sys.executable, "-m", "tests.bench.serve")
SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")
"""An agent that keeps the machine busy, so that the jobs behind it wait and cost nothing."""

NO_LIMIT = 1_000_000
"""GitHub's limits would be all that is measured."""

REST_S = 0.05
"""Between two issues."""


async def measure_comments(folder: Path, core: int, count: int) -> list[float]:
    """Seconds for each of so many issues that are labelled one after the other."""
    async with Installation(folder, core, SERVE, SLEEPER) as installation:
        installation.as_server([])
        limits = installation.github.limits
        limits.requests_per_hour = limits.content_per_minute = limits.content_per_hour = NO_LIMIT
        return [await _measure_one(installation) for _ in range(count)]


async def _measure_one(installation: Installation) -> float:
    github = installation.github
    number = await github.open_issue(NAME, ISSUE_TITLE, ISSUE_BODY, STRANGER)
    await github.label_issue(NAME, number, LABEL, MAINTAINER)
    answered_at = time.perf_counter()
    if (status := github.deliveries[-1].status_code) != 202:
        raise LoadFailed(f"a label was answered with {status}")
    while not any("<!-- ptq:job=" in comment.body for comment in github.issue(NAME, number).comments):
        await asyncio.sleep(0.001)
        if time.perf_counter() - answered_at > PATIENCE_S:
            raise LoadFailed(
                f"issue {number} got no status comment: {installation.watched.written.read_text()[-2000:]}"
            )
    seconds = time.perf_counter() - answered_at
    await asyncio.sleep(REST_S)
    return seconds
