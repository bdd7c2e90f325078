"""What the bench of environments makes of what it measured: the table, and what must hold. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MAX_READY_S = 0.5
MAX_SMOKE_S = 2.0
MAX_AT_ONCE_S = 3.0
MAX_GONE_S = 0.2
MIN_RATIO = 30.0
"""Over the predecessor's recipe."""

UNTOUCHED = "as before"


@dataclass(frozen=True, slots=True)
class Times:
    """One environment, in seconds."""

    ready: float
    """From the wish for it until it can be used."""
    with_smoke_test: float
    """The same, until the smoke test has succeeded."""
    gone: float
    """From the wish to have it removed until it is."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to make environments, and how often it was measured."""

    name: str
    warm: Sequence[Times] = ()
    cold: Sequence[Times] = ()
    """With nothing of the disk in memory; empty where that cannot be had."""
    extra_bytes: int = 0
    inodes: int = 0
    base: str = ""
    """What became of the base when an environment was written to in every way."""
    impossible: str = ""
    """Why there is nothing to say about it."""


def middle(times: Sequence[Times]) -> Times:
    """The median of each."""
    return Times(
        median(one.ready for one in times),
        median(one.with_smoke_test for one in times),
        median(one.gone for one in times),
    )


def find_environment_s(log: bytes) -> float:
    """What the log of a preparation says that the environment alone took."""
    found = re.search(rb"\[The environment took ([0-9.]+) s\.\]", log)
    assert found, log
    return float(found[1])


def render_table(rows: Sequence[Row]) -> str:
    """A table in Markdown, with what a cold disk makes of it in brackets."""
    lines = [
        "| | ready s (cold) | with smoke test s (cold) | gone s (cold) | extra MB | inodes | the base after writes |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        if row.impossible:
            lines.append(f"| {row.name} | {row.impossible} | | | | | |")
            continue
        warm, cold = middle(row.warm), middle(row.cold) if row.cold else None
        cells = [
            f"{getattr(warm, name):.2f} ({f'{getattr(cold, name):.2f}' if cold else '-'})"
            for name in ("ready", "with_smoke_test", "gone")
        ]
        about = [f"{row.extra_bytes / 1e6:.1f}", str(row.inodes), row.base]
        lines.append(f"| {' | '.join([row.name, *cells, *about])} |")
    return "\n".join(lines)


def judge(ours: Row, recipe: Row, at_once_s: float, jobs: int) -> list[tuple[bool, str]]:
    """What must hold for ours, each with whether it does."""
    mine = middle(ours.warm)
    ratio = middle(recipe.warm).ready / mine.ready
    return [
        (mine.ready <= MAX_READY_S, f"ready in {mine.ready:.2f} s, at most {MAX_READY_S} is wanted"),
        (ratio >= MIN_RATIO, f"{ratio:.0f} times faster than the recipe, at least {MIN_RATIO:.0f} is wanted"),
        (
            mine.with_smoke_test <= MAX_SMOKE_S,
            f"with its smoke test in {mine.with_smoke_test:.2f} s, at most {MAX_SMOKE_S} is wanted",
        ),
        (at_once_s <= MAX_AT_ONCE_S, f"{jobs} jobs at once in {at_once_s:.2f} s, at most {MAX_AT_ONCE_S} is wanted"),
        (mine.gone <= MAX_GONE_S, f"gone in {mine.gone:.2f} s, at most {MAX_GONE_S} is wanted"),
        (ours.base == UNTOUCHED, f"the base is {ours.base} when a job has written in every way"),
    ]
