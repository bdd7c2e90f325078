"""`make bench-lists`: how long the list of jobs takes with 10,000 jobs, beside a list of one page of them.

What counts is the ratio, for machines differ: the page is the same, so what is more is what the number of jobs costs.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from statistics import median

from bot.dashboard.listing import PAGE
from runner.job import JobState
from runner.schema import cases, jobs
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
            issue_number=number,
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


async def ask(site: Site, query: str) -> float:
    """What one page takes of a processor, in milliseconds: others may be using the machine, and the client's part is
    small."""
    began = time.process_time()
    async with site.session.get(f"{site.url}/jobs{query}") as answer:
        assert answer.status == 200
        await answer.read()
    return (time.process_time() - began) * 1e3


async def measure(folder: Path) -> dict[str, tuple[float, float]]:
    """The median of each query with few and with many jobs, asked in turn."""
    async with open_site(folder / "few") as few, open_site(folder / "many") as many:
        await fill(few, PAGE)
        await fill(many, MANY)
        measured = {}
        for name, query in QUERIES.items():
            times = [(await ask(few, query), await ask(many, query)) for _ in range(ROUNDS + 1)][1:]
            measured[name] = (median(one for one, _ in times), median(other for _, other in times))
        return measured


def main() -> int:
    """Print what was measured; 1 when a threshold is missed."""
    with tempfile.TemporaryDirectory() as folder:
        measured = asyncio.run(measure(Path(folder)))
    print(f"| list | {PAGE} jobs, ms | {MANY:,} jobs, ms | ratio |\n| --- | --- | --- | --- |")
    for name, (few_ms, many_ms) in measured.items():
        print(f"| {name} | {few_ms:.1f} | {many_ms:.1f} | {many_ms / few_ms:.2f} |")
    newest = measured["newest"]
    slow = [name for name, (_, many_ms) in measured.items() if many_ms > MAX_MS]
    print(f"over {MAX_MS:.0f} ms: {', '.join(slow) or 'none'}; the newest page is to stay within {MAX_RATIO:.0f} times")
    return 1 if slow or newest[1] / newest[0] > MAX_RATIO else 0


if __name__ == "__main__":
    sys.exit(main())
