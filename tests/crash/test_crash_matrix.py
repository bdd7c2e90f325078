"""The service is killed by another process, amid any step of a whole story: the story ends as if nothing had happened.

A story without a mishap is recorded first; every commit, every request and every SSH operation in it is a point to be
killed at. So a step that is new in the service is new here as well. `make test` takes a sample, `make crash` all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.matrix import LEAST_POINTS, SHARES, TAKES_ALL, Matrix, note_outcome, open_database
from tests.crash.points import Point
from tests.crash.tale import live_through

TIMEOUT_S = 7200 if TAKES_ALL else 240


class Share:
    """One test's part of the points."""

    def __init__(self, matrix: Matrix, folder: Path) -> None:
        self.matrix = matrix
        self.outcome: Counter[str] = Counter()
        self.failures: list[str] = []
        self._folder = folder
        self._known = {point.name for point in matrix.points}

    async def take(self, point: Point) -> None:
        """Live through one point; and once more, killed again, for each step that was only taken because of it."""
        after = await self._live_through([point])
        unknown = [again for again in after if again.name not in self._known]
        for again in unknown if TAKES_ALL else ():
            await self._live_through([point, again])
        self._known |= {again.name for again in unknown}

    async def _live_through(self, points: list[Point]) -> list[Point]:
        """What the service did after the last of these points."""
        self.outcome["runs"] += 1
        folder = self._folder / str(self.outcome["runs"])
        try:
            async with open_database(self.matrix.server, folder) as url:
                installation = await live_through(folder, url, points)
        except Exception as error:
            told = [" and then ".join(map(str, points)), repr(error), *getattr(error, "__notes__", ())]
            self.failures.append("\n".join(told))
            return []
        killed_at = installation.fate.killed_at
        kinds = ["lost" if points[0].when == "lost" else "killed", "killed again"]
        reached = len(killed_at) + (points[0].when == "lost")
        self.outcome.update(kinds[:reached])
        self.outcome["never reached"] += reached < len(points)
        return installation.replica.points(installation.replica.lives)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("number", range(SHARES))
async def test_a_kill_at_any_point_loses_nothing_and_repeats_nothing(
    number: int, matrix: Matrix, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    assert len(matrix.points) >= LEAST_POINTS
    share = Share(matrix, tmp_path)
    for point in matrix.share(number):
        await share.take(point)
        if not TAKES_ALL and (share.failures or share.outcome["killed"] + share.outcome["lost"]):
            break
    note_outcome(record_property, matrix, share.outcome, len(share.failures))
    assert not share.failures, f"PTQ_CRASH_SEED={matrix.seed}\n" + "\n\n".join(share.failures)
    assert share.outcome["killed"] + share.outcome["lost"], "none of the points was reached"
