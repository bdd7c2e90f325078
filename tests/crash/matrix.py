"""The points of this run of pytest: recorded once, shared by all workers, drawn with one seed.

`make test` always takes the same few points. `PTQ_CRASH_SEED` draws others. `PTQ_CRASH=all` takes every point, and
records them once for each database. The end of pytest's output has the results.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.crash.points import Point, find_lost_answers, spread
from tests.crash.whole_story import live_through, try_the_verdict
from tests.support.postgres import Server
from tests.support.world import World

TAKES_ALL = os.environ.get("PTQ_CRASH") == "all"
DATABASES = ("sqlite", "postgresql")
SHARES = 40 if TAKES_ALL else 3
"""How many parts the points have."""
TAKEN = [*product(DATABASES, zip(range(SHARES)))] if TAKES_ALL else [("sqlite", (0,)), ("postgresql", (1, 2))]
"""The database and the parts of the points of each test. Of several parts, each story has a point of each."""
PAIRS = 40 if TAKES_ALL else 1
"""Tests with two replicas."""
SEED = 6805
"""Of the sample in `make test`: kills before a commit, after one, and between a command for a machine and its answer.
The replica that stands still does so before a commit, where it has PostgreSQL's lock."""
LEAST_POINTS = 40
PROPERTY = "crash matrix"


@dataclass(frozen=True)
class Recording:
    """A story in which nothing went wrong, and how the verdict on it was tried."""

    database: str
    points: list[Point]
    tried: int
    """How many faults were put into its end, one after the other: something was lost, or was there twice."""
    unnoticed: list[str]
    """The faults that the verdict did not notice."""


@dataclass(frozen=True)
class Matrix:
    """What can be run on one database, in the order in which it is taken."""

    database: str
    server: Server | None
    seed: int
    points: list[Point]
    recorded: list[Point]
    """The order in which they come in a story."""
    folder: Path
    """Where the workers leave notes for each other."""

    def find_stories(self, parts: Sequence[int]) -> list[list[Point]]:
        """The points of each story of these parts."""
        places = {point: place for place, point in enumerate(self.recorded)}
        places |= {replace(point, when="lost"): place for point, place in places.items() if point.when == "before"}
        together = zip(*(self.points[part::SHARES] for part in parts), strict=False)
        return [sorted(points, key=lambda point: places[point]) for points in together]

    def is_first_to_see(self, point: Point) -> bool:
        """Whether this point, which was not recorded, is now met for the first time by any worker."""
        name = hashlib.sha256(f"{point.when} {point.name}".encode()).hexdigest()
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


@asynccontextmanager
async def open_database(server: Server | None, folder: Path) -> AsyncIterator[str]:
    """The address of a new, empty database, on PostgreSQL's server or in a file, for as long as the block lasts."""
    if server is None:
        yield f"sqlite+aiosqlite:///{folder / 'ptq.db'}"
        return
    name = await server.create()
    try:
        yield server.url(name)
    finally:
        await server.drop(name)


@pytest.fixture(scope="session")
def crash_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(params=DATABASES)
def recording(request: pytest.FixtureRequest, crash_folder: Path) -> Recording:
    """The story on each database. The first test that asks for it records it, for all workers.

    A sample is recorded on SQLite alone, because nearly all points are the same on both.
    """
    kind: str = request.param
    is_on_server = TAKES_ALL and kind == "postgresql"
    server: Server | None = request.getfixturevalue("postgres") if is_on_server else None
    folder = crash_folder / (f"crash-{kind}" if TAKES_ALL else "crash")
    note = folder.with_suffix(".json")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            note.write_text(json.dumps(asyncio.run(record(server, folder))))
    fields = json.loads(note.read_text())
    points = [Point(**point) for point in fields.pop("points")]
    return Recording(kind, points, **fields)


@pytest.fixture
def matrix(recording: Recording, request: pytest.FixtureRequest, crash_folder: Path) -> Matrix:
    """The points of the story, in the order in which they are taken."""
    server: Server | None = request.getfixturevalue("postgres") if recording.database == "postgresql" else None
    seed, points = read_seed(crash_folder), recording.points
    folder = crash_folder / f"crash-{recording.database}"
    spreading = spread([*points, *find_lost_answers(points)], seed)
    return Matrix(recording.database, server, seed, spreading, points, folder)


async def record(server: Server | None, folder: Path) -> dict[str, Any]:
    """All fields of a `Recording` except `database`."""
    async with open_database(server, folder) as url:
        installation = await live_through(folder, url, [])
    world = World(installation)
    world.number = 1
    noticed = try_the_verdict(world, installation)
    points = [asdict(point) for point in installation.replica.points(1)]
    return {"points": points, "tried": len(noticed), "unnoticed": [what for what in noticed if not noticed[what]]}


def read_seed(folder: Path) -> int:
    note = folder / "crash-seed"
    if given := os.environ.get("PTQ_CRASH_SEED"):
        return int(given)
    if not TAKES_ALL:
        return SEED
    with (folder / "crash-seed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            note.write_text(str(secrets.randbelow(10**6)))
    return int(note.read_text())


def note_outcome(
    note: Callable[[str, object], None],
    where: str,
    points: Sequence[Point],
    seed: int,
    outcome: Mapping[str, int],
    failed: int,
) -> None:
    """Let what became of a share travel with the test's result to whoever writes the summary."""
    fields = {"where": where, "points": len(points), "seed": seed}
    note(PROPERTY, json.dumps({**fields, "outcome": {**outcome, "failed": failed}}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was run, and how to draw the same again."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    shares = [json.loads(str(text)) for one in reports for name, text in one.user_properties if name == PROPERTY]
    for where in sorted({share["where"] for share in shares}):
        sums: Counter[str] = Counter()
        for share in shares:
            if share["where"] == where:
                sums.update(share["outcome"])
                of, seed = share["points"], share["seed"]
        said = ", ".join(f"{name} {number}" for name, number in sorted(sums.items()) if number)
        terminalreporter.write_line(f"crash matrix on {where}, {of} points: {said} (PTQ_CRASH_SEED={seed})")
