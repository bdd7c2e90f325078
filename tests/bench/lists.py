"""`make bench-lists`: how long the list of jobs takes with 10,000 jobs, beside a list of one page of them.

Two clocks: what a page takes of a processor, at both ends of its connection, for others may be using the machine; and
how long the server takes for it, from the request to the answer that is ready to be sent. Beside both the ratio, for
machines differ: the page is the same, so what is more is what the number of jobs costs.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

from bot.web.dashboard.listing import PAGE
from runner.db.schema import cases, jobs
from runner.model.job import JobState
from tests.bench import needs
from tests.support.jobs import NOON, make_job
from tests.support.site import Site, open_site

MANY = 10_000
BRIEF = "Please look at it. " * 1_000
"""As long as briefs are: what is not shown should not be read."""

ROUNDS = 15
MAX_MS = 100.0
MAX_RATIO = 5.0

_LATE = (NOON + timedelta(minutes=MANY // 2)).isoformat().replace("+", "%2B")
QUERIES = {
    "newest": "",
    "by state": "?state=failed",
    "one of many": "?who=somebody",
    "none of them": "?agent=nobody",
    "words of a title": "?search=chunk+777",
    "in the middle": f"?before={_LATE}~x",
}


async def fill(site: Site, count: int) -> None:
    """Jobs that have ended, one an issue."""
    made = [
        make_job(
            id=f"{number:010}",
            thread=number,
            prompt=BRIEF,
            state=JobState.FAILED,
            requested_by="somebody" if number == 1 else "maintainer",
            created_at=NOON + timedelta(minutes=number),
        )
        for number in range(1, count + 1)
    ]
    issues = [
        {
            **{"key": job.case_key, "repository": job.repository, "issue_number": job.issue_number, "state": "idle"},
            **{"title": f"chunk {job.issue_number}", "created_at": NOON, "changed_at": NOON},
        }
        for job in made
    ]
    async with site.database.write() as connection:
        await connection.execute(jobs.insert(), [asdict(job) for job in made])
        await connection.execute(cases.insert(), issues)


class Took(NamedTuple):
    """What one page takes, in milliseconds."""

    processor: float
    """Of a processor, by server and client: the client's part is small."""
    server: float
    """By the clock, at the server."""


class Stopwatch:
    """Measures each answer of a server by the clock."""

    def __init__(self) -> None:
        self.last_ms = 0.0

    @web.middleware
    async def measure(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer, and remember how long that took."""
        began = time.perf_counter()
        answer = await handler(request)
        self.last_ms = (time.perf_counter() - began) * 1e3
        return answer


async def ask(site: Site, stopwatch: Stopwatch, query: str) -> Took:
    """Ask for one page."""
    began = time.process_time()
    async with site.session.get(f"{site.url}/jobs{query}") as answer:
        assert answer.status == 200
        await answer.read()
    return Took((time.process_time() - began) * 1e3, stopwatch.last_ms)


async def measure(folder: Path) -> dict[str, tuple[Took, Took]]:
    """The median of each query with few and with many jobs, asked in turn."""
    watch = Stopwatch()
    watched = [watch.measure]
    async with (
        open_site(folder / "few", middlewares=watched) as few,
        open_site(folder / "many", middlewares=watched) as many,
    ):
        await fill(few, PAGE)
        await fill(many, MANY)
        measured = {}
        for name, query in QUERIES.items():
            times = [(await ask(few, watch, query), await ask(many, watch, query)) for _ in range(ROUNDS + 1)][1:]
            measured[name] = (find_median([one for one, _ in times]), find_median([other for _, other in times]))
        return measured


def find_median(times: Sequence[Took]) -> Took:
    """Of each clock. Pure."""
    return Took(*map(median, zip(*times, strict=True)))


def main() -> int:
    """Print what was measured; 1 when a threshold is missed."""
    needs.may_run([needs.quiet_machine(), needs.memory(500)])
    with tempfile.TemporaryDirectory() as folder:
        measured = asyncio.run(measure(Path(folder)))
    columns = [f"{clock}, {jobs:,} jobs, ms" for clock in ("server", "processor") for jobs in (PAGE, MANY)]
    print(f"| list | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for name, (few, many) in measured.items():
        figures = (few.server, many.server, few.processor, many.processor)
        print(f"| {name} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")
    few, many = measured["newest"]
    slow = [name for name, (_, took) in measured.items() if max(took) > MAX_MS]
    print(f"over {MAX_MS:.0f} ms: {', '.join(slow) or 'none'}; the newest page is to stay within {MAX_RATIO:.0f} times")
    return 1 if slow or many.processor / few.processor > MAX_RATIO else 0


if __name__ == "__main__":
    sys.exit(main())
