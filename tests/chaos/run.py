"""One chaos run: issues are labelled while everything breaks; then all is fixed, and the rest comes to its end."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bot.demo.playground import LABEL, MAINTAINER, STRANGER
from bot.demo.repository import ISSUE_BODY, ISSUE_TITLE, NAME
from tests.chaos.arena import Arena
from tests.chaos.mishaps import Mishaps
from tests.chaos.verdict import (
    Progress,
    Story,
    Verdict,
    count_done,
    find_percentile,
    judge,
    list_folders,
    list_ours,
    look,
)
from tests.support.world import NOTE


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
    """How long things break at most, on a machine as fast as usual; they do until most jobs have ended."""
    still_s: float = 240.0
    """The run ends when nothing has come of it for so long, on a machine as fast as usual. While it moves, it takes as
    long as its machine needs."""


@dataclass
class Outcome:
    """What came of a run."""

    plan: Plan
    verdict: Verdict
    stories: list[Story]
    mishaps: dict[str, int]
    slowness: float
    began: float
    """Of the clock by which stories are timed."""
    took_s: float
    settled_s: float
    recovered_s: list[float] = field(default_factory=list)
    """For each kill of a replica: how long until GitHub next heard of us."""

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean

    def render(self) -> str:
        rows = [("seed", str(self.plan.seed)), ("jobs", str(len(self.stories)))]
        rows.append(("in slow motion, for this machine", f"{self.slowness:.1f} times"))
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
        last_pull_s = max((story.pull_at for story in self.stories if story.pull_at), default=self.began) - self.began
        rows.append(("from the start to the last pull request", f"{last_pull_s:.1f} s"))
        rows.append(("from the last mishap to the end of everything", f"{self.settled_s:.1f} s"))
        rows.append(("the whole run", f"{self.took_s:.0f} s"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


async def run_chaos(folder: Path, database_url: str, plan: Plan) -> Outcome:
    """Run it, and judge it."""
    began = time.monotonic()
    kills: list[float] = []
    writes: list[float] = []
    arena = Arena(folder, database_url=database_url, draw=random.Random(plan.seed))
    async with arena:
        arena.github.observers.append(lambda exchange: writes.append(time.monotonic()) if _writes(exchange) else None)
        # The arena draws once for each connection, so it must not share this one.
        draw = random.Random(plan.seed)
        mishaps = Mishaps(arena, draw, plan.pause_s, lambda: kills.append(time.monotonic()))
        stories: list[Story] = []
        breaking, break_s = asyncio.create_task(mishaps.run()), plan.break_s * arena.slowness
        broken_from = time.monotonic()
        telling = [asyncio.create_task(_tell(arena, plan, stories, number)) for number in range(plan.jobs)]

        def has_broken_enough() -> bool:
            if breaking.done():
                breaking.result()
            most = sum(story.report_at is not None for story in stories) >= 0.85 * plan.jobs
            return most or time.monotonic() - broken_from > break_s

        still_s = plan.still_s * arena.slowness
        await _wait_while_it_moves(still_s, lambda: count_done(arena, stories), has_broken_enough)
        breaking.cancel()
        with suppress(asyncio.CancelledError):
            await breaking
        fixed = time.monotonic()
        telling_all = asyncio.gather(*telling)
        if await _wait_while_it_moves(still_s, lambda: count_done(arena, stories), telling_all.done):
            telling_all.result()
            await _wait_while_it_moves(still_s, lambda: -len(list_folders(arena)), lambda: not list_folders(arena))
        settled_s = time.monotonic() - fixed
        telling_all.cancel()
        verdict = judge(arena, stories)
        verdict.fallen_replicas = sum(replica.fell for replica in arena.replicas)
    recovered = [min((at - kill for at in writes if at > kill), default=float("inf")) for kill in kills]
    took_s = time.monotonic() - began
    counted = dict(mishaps.counted)
    return Outcome(plan, verdict, stories, counted, arena.slowness, began, took_s, settled_s, recovered)


def _writes(exchange: object) -> bool:
    return getattr(exchange, "method", "") in ("POST", "PATCH") and "access_tokens" not in getattr(exchange, "path", "")


async def _wait_while_it_moves(still_s: float, count: Callable[[], int], is_over: Callable[[], bool]) -> bool:
    """Wait until it is over, for as long as it moves. Whether it is over."""
    progress = Progress(still_s)
    while not is_over():
        if not progress.note(count(), time.monotonic()):
            return False
        await asyncio.sleep(0.5)
    return True


async def _tell(arena: Arena, plan: Plan, stories: list[Story], place: int) -> None:
    await asyncio.sleep(place * plan.interval_s * arena.slowness)
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
    (report,) = (body for body in bodies if "ptq:report=" in body)
    found = re.search(r"/ptq pr ([0-9a-f]{12,64})", report)
    assert found, report
    return found[1]
