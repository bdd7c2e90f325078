"""One chaos run: issues are labelled while everything breaks; then all is mended, and the rest comes to its end."""

from __future__ import annotations

import asyncio
import random
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bot.demo.playground import LABEL, MAINTAINER, STRANGER
from bot.demo.repository import ISSUE_BODY, ISSUE_TITLE, NAME
from tests.chaos.arena import Arena
from tests.chaos.mishaps import Mishaps
from tests.chaos.verdict import Story, Verdict, find_percentile, judge, list_ours, look
from tests.support.world import NOTE

SETTLE_S = 240.0
"""How long everything may take to come to its end once nothing breaks any more."""


@dataclass(frozen=True)
class Plan:
    """What is run: the same seed breaks the same things in the same order, though not at the same moments."""

    seed: int
    jobs: int
    every: int = 4
    """Each so many-th issue gets a pull request."""
    interval_s: float = 0.4
    """Between two labels."""
    pause_s: tuple[float, float] = (0.5, 3.0)
    """Between two mishaps, at least and at most."""
    break_s: float = 3600.0
    """How long things break at most; they do until most jobs have ended."""


@dataclass
class Outcome:
    """What came of a run."""

    plan: Plan
    verdict: Verdict
    stories: list[Story]
    mishaps: dict[str, int]
    took_s: float
    settled_s: float
    recovered_s: list[float] = field(default_factory=list)
    """For each kill of a replica: how long until GitHub next heard of us."""

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean

    def render(self) -> str:
        rows = [("seed", str(self.plan.seed)), ("jobs", str(len(self.stories)))]
        rows += [(name, str(count)) for name, count in sorted(self.mishaps.items())]
        rows += self.verdict.rows()
        times = {
            "label to status comment": [s.status_at - s.labelled_at for s in self.stories if s.status_at],
            "label to report": [s.report_at - s.labelled_at for s in self.stories if s.report_at],
            "kill to the next word on GitHub": self.recovered_s,
        }
        for name, values in times.items():
            figures = [find_percentile(values, share) for share in (0.5, 0.99)] + [max(values, default=0.0)]
            rows.append((f"{name}: p50, p99, most", ", ".join(f"{value:.1f} s" for value in figures)))
        rows.append(("from the last mishap to the end of everything", f"{self.settled_s:.1f} s"))
        rows.append(("the whole run", f"{self.took_s:.0f} s"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


async def run_chaos(folder: Path, database_url: str, plan: Plan) -> Outcome:
    """Run it, and judge it."""
    draw = random.Random(plan.seed)
    began = time.monotonic()
    kills: list[float] = []
    writes: list[float] = []
    arena = Arena(folder, database_url=database_url, draw=draw)
    async with arena:
        arena.github.observers.append(lambda exchange: writes.append(time.monotonic()) if _writes(exchange) else None)
        mishaps = Mishaps(arena, draw, plan.pause_s, lambda: kills.append(time.monotonic()))
        stories: list[Story] = []
        await _wait_until_up(arena)
        breaking = asyncio.create_task(mishaps.run())
        telling = [asyncio.create_task(_tell(arena, plan, stories, number)) for number in range(plan.jobs)]
        while _share_reported(stories) * len(stories) < 0.85 * plan.jobs:
            if breaking.done():
                breaking.result()
            await asyncio.sleep(0.5)
            if time.monotonic() - began > plan.break_s:
                break
        breaking.cancel()
        with suppress(asyncio.CancelledError):
            await breaking
        mended = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*telling)
                await _wait_until_clean(arena)
        settled_s = time.monotonic() - mended
        for task in telling:
            task.cancel()
        verdict = judge(arena, stories)
        verdict.fallen_replicas = sum(replica.fell for replica in arena.replicas)
    recovered = [min((at - kill for at in writes if at > kill), default=float("inf")) for kill in kills]
    return Outcome(plan, verdict, stories, dict(mishaps.counted), time.monotonic() - began, settled_s, recovered)


def _writes(exchange: object) -> bool:
    return getattr(exchange, "method", "") in ("POST", "PATCH") and "access_tokens" not in getattr(exchange, "path", "")


def _share_reported(stories: list[Story]) -> float:
    return sum(story.report_at is not None for story in stories) / max(1, len(stories))


async def _wait_until_up(arena: Arena) -> None:
    """The first one makes the tables, and a repository counts from then on: what is labelled earlier is too early."""
    async with asyncio.timeout(60):
        for replica in arena.replicas:
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", replica.port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)


async def _tell(arena: Arena, plan: Plan, stories: list[Story], place: int) -> None:
    await asyncio.sleep(place * plan.interval_s)
    number = await arena.github.open_issue(NAME, ISSUE_TITLE, ISSUE_BODY, STRANGER)
    story = Story(number, place % plan.every == 0, time.monotonic())
    stories.append(story)
    await arena.github.label_issue(NAME, number, LABEL, MAINTAINER)
    asked = False
    while not story.is_over:
        await asyncio.sleep(0.1)
        look(arena, story)
        if story.wants_pull and story.report_at and not asked:
            digest = _find_digest(list_ours(arena, number))
            await arena.github.comment(NAME, number, f"/ptq pr {digest}\n\n{NOTE}", MAINTAINER)
            asked = True


def _find_digest(bodies: list[str]) -> str:
    found = next(re.search(r"/ptq pr ([0-9a-f]{12,64})", body) for body in bodies if "ptq:report=" in body)
    assert found
    return found[1]


async def _wait_until_clean(arena: Arena) -> None:
    while any([*(machine.workspace / "jobs").glob("*")] for machine in arena.machines):
        await asyncio.sleep(0.2)
