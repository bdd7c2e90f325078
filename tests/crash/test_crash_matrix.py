"""The service is killed by another process at any step of a whole story: the story ends as if nothing had happened.

A story without a mishap is recorded first; every commit, every request and every SSH operation in it is a point to be
killed at. So a step that is new in the service is new here as well. `make test` takes four points, the same ones each
time. `make crash` takes all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.crash.installation import Installation, Pair
from tests.crash.matrix import LEAST_POINTS, PAIRS, TAKEN, TAKES_ALL, Matrix, note_outcome, open_database
from tests.crash.points import Point, find_pauses
from tests.crash.whole_story import live_through

TIMEOUT_S = 7200 if TAKES_ALL else 600


class Share:
    """One test's part of the points, and what came of them."""

    def __init__(self, matrix: Matrix, stories: Sequence[list[Point]], folder: Path, kind: type[Installation]) -> None:
        """Each story has at least one point."""
        self.matrix = matrix
        self.outcome: Counter[str] = Counter()
        self.failures: list[str] = []
        self._stories = stories
        self._folder = folder
        self._kind = kind
        self._known = {point.name for point in matrix.points}

    async def take(self) -> None:
        """Live through every story, or through the first whose points are reached."""
        for points in self._stories:
            await self._take_one(points)
            if not TAKES_ALL and (self.failures or self.outcome["reached"]):
                break

    async def _take_one(self, points: list[Point]) -> None:
        """Live through one story; and once more, killed again, for each step that was only taken because of it."""
        after = await self._live_through(points)
        for again in after if TAKES_ALL else ():
            if again.name not in self._known and self.matrix.is_first_to_see(again):
                await self._live_through([*points, again])

    async def _live_through(self, points: list[Point]) -> list[Point]:
        """What the service did after the last of these points."""
        self.outcome["runs"] += 1
        folder = self._folder / str(self.outcome["runs"])
        try:
            async with open_database(self.matrix.server, folder) as url:
                installation = await live_through(folder, url, points, self._kind)
            if self.matrix.server:
                assert not [*folder.glob("*.db*")], "nothing was left in SQLite"
        except Exception as error:
            told = [" and then ".join(map(str, points)), repr(error), *getattr(error, "__notes__", ())]
            self.failures.append("\n".join(told))
            return []
        reached = {*installation.fate.reached, *(point for point in points if point.when == "lost")}
        self.outcome["reached" if len(reached) == len(points) else "never reached"] += 1
        self.outcome["answers lost"] += sum(point.when == "lost" for point in points)
        self.outcome["killed again"] += len(reached) == 2
        return installation.replica.points(installation.replica.lives) if installation.replica.lives > 1 else []

    def require_no_failure(self) -> None:
        assert not self.failures, f"PTQ_CRASH_SEED={self.matrix.seed}\n" + "\n\n".join(self.failures)
        assert self.outcome["reached"], "none of the points was reached"


@pytest.mark.slow(30)
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(("recording", "parts"), TAKEN, indirect=["recording"], ids=str)
async def test_a_kill_at_any_point_loses_nothing_and_repeats_nothing(
    parts: Sequence[int], matrix: Matrix, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    assert len(matrix.points) >= LEAST_POINTS
    share = Share(matrix, matrix.find_stories(parts), tmp_path, Installation)
    await share.take()
    note_outcome(record_property, matrix.database, matrix.points, matrix.seed, share.outcome, len(share.failures))
    share.require_no_failure()


@pytest.mark.slow(30)
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("recording", ["postgresql"], indirect=True)
@pytest.mark.parametrize("number", range(PAIRS))
async def test_a_replica_that_stood_still_while_another_took_over_writes_nothing_when_it_goes_on(
    number: int, matrix: Matrix, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    points = find_pauses(matrix.points)
    share = Share(matrix, [[point] for point in points[number::PAIRS]], tmp_path, Pair)
    await share.take()
    note_outcome(record_property, "two replicas", points, matrix.seed, share.outcome, len(share.failures))
    share.require_no_failure()
