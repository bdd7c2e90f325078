"""Points: moments in the life of the service, by the name of what it does there and how often it has done it before."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

OCCURRENCES = 2
"""Polls and renewals repeat without end: what was done this often is no longer new."""
WRITES = ("POST /repos", "PATCH /repos")
"""How the names of what changes something on GitHub begin: each time counts, for each says something else."""


@dataclass(frozen=True, order=True)
class Point:
    """`when` is `before`, `sent` (a machine has the command, and no answer has come) or `after`.

    A point that is `lost` is no place to be killed at: there GitHub does what it is asked, and its answer is lost.
    """

    name: str
    when: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.when} [{self.name}] #{self.occurrence}"

    @property
    def kind(self) -> str:
        """What sort of step it is at, so that a sample can have something of each."""
        return f"{self.when} {self.name.split()[0]}"

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        return cls(**json.loads(text))


class Logbook:
    """Counts what is announced, writes each point to a file, and knows the one that is waited for."""

    def __init__(self, path: Path, awaited: Point | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._awaited = awaited
        self._seen: Counter[tuple[str, str]] = Counter()

    def note(self, when: str, name: str) -> bool:
        """Whether this is the point that is waited for."""
        self._seen[when, name] += 1
        point = Point(name, when, self._seen[when, name])
        os.write(self._file, f"{point.dump()}\n".encode())
        return point == self._awaited


def read_logbook(path: Path) -> list[Point]:
    """Every point of a run that counts, in the order in which they came."""
    points = map(Point.load, path.read_text().splitlines()) if path.exists() else ()
    return [point for point in points if point.occurrence <= OCCURRENCES or point.name.startswith(WRITES)]


def find_lost_answers(points: Iterable[Point]) -> list[Point]:
    """The same writes to GitHub, each with an answer that gets lost."""
    return [
        Point(point.name, "lost", point.occurrence)
        for point in points
        if point.when == "before" and point.name.startswith(WRITES)
    ]


def find_pauses(points: Iterable[Point]) -> list[Point]:
    """Those at which a process can stand still for long, and be overtaken meanwhile.

    Before a commit it holds the lock by which PostgreSQL lets one transaction write at a time, and has to lose it. But
    just before a request it has asked already whether its claim will last until the answer: that is the moment in
    which no claim can hold anybody back. Where an answer is lost, nobody stands still.
    """
    return [point for point in points if point.when in ("sent", "after") or point.name.startswith("commit ")]


def spread(points: Sequence[Point], seed: int) -> list[Point]:
    """The points in a random order in which every kind comes early: any beginning of it is a fair sample.

    Two recordings of a story differ in a few points. The others keep their order.
    """
    shuffled = sorted(points, key=lambda point: hashlib.sha256(f"{seed} {point}".encode()).digest())
    turn: Counter[str] = Counter()
    turns: list[tuple[int, int, Point]] = []
    for point in shuffled:
        turn[point.kind] += 1
        turns.append((turn[point.kind], len(turns), point))
    return [point for *_, point in sorted(turns)]
