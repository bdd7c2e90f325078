"""What the bench makes of what it measured: figures, the table, and what must hold. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tests.bench.load import Round

MIN_RATIO = 0.7
"""Of Probot's throughput."""
MAX_P99_MS = 20.0

OURS, PROBOT, BEDEVERE = "ptq-bot", "Probot 14", "bedevere-style"


@dataclass(frozen=True, slots=True)
class Figures:
    """One server: the medians of its rounds, and what it took in all of them."""

    rate: float
    """Answers a second."""
    p50_ms: float
    p99_ms: float
    cpu_s: float
    """For 1000 deliveries, with all that is done about them after the answer."""
    memory_mb: float
    """At its peak."""


def find_percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values that at least so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def summarize(rounds: Sequence[Round], cpu_s: float, peak: int) -> Figures:
    """The figures of a server's rounds; `peak` is in bytes, `cpu_s` for all rounds together."""
    answered = sum(len(one.latencies) for one in rounds)
    return Figures(
        rate=median(one.rate for one in rounds),
        p50_ms=median(find_percentile(one.latencies, 50) for one in rounds) * 1000,
        p99_ms=median(find_percentile(one.latencies, 99) for one in rounds) * 1000,
        cpu_s=cpu_s * 1000 / answered,
        memory_mb=peak / 1e6,
    )


def find_ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> float:
    """Our throughput over theirs: the median over rounds that stood next to each other."""
    return median(our.rate / their.rate for our, their in zip(ours, theirs, strict=True))


def render_table(figures: Mapping[str, Figures], ratios: Mapping[str, float]) -> str:
    """A table in Markdown."""
    lines = [
        "| | answers/s | of Probot's | p50 ms | p99 ms | CPU s per 1000 | memory MB |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in figures.items():
        lines.append(
            f"| {name} | {one.rate:.0f} | {ratios[name]:.2f} | {one.p50_ms:.1f} | {one.p99_ms:.1f}"
            f" | {one.cpu_s:.2f} | {one.memory_mb:.0f} |"
        )
    return "\n".join(lines)


def judge(figures: Mapping[str, Figures], ratio: float) -> list[tuple[bool, str]]:
    """What must hold for ours, each with whether it does."""
    ours, probot = figures[OURS], figures[PROBOT]
    return [
        (ratio >= MIN_RATIO, f"throughput {ratio:.2f} of Probot's, at least {MIN_RATIO:.2f} is needed"),
        (ours.p99_ms < MAX_P99_MS, f"p99 {ours.p99_ms:.1f} ms, less than {MAX_P99_MS:.0f} is needed"),
        (
            ours.memory_mb < probot.memory_mb,
            f"memory {ours.memory_mb:.0f} MB, less than Probot's {probot.memory_mb:.0f} is needed",
        ),
    ]
