"""A short chaos run; `make chaos` is the long one, with the figures of `docs/reliability.md`."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.chaos.arena import USUAL_START_S, choose_slowness
from tests.chaos.replica import CLAIM_S, make_pace
from tests.chaos.run import Plan, run_chaos
from tests.chaos.verdict import Progress, count_overlaps, find_percentile
from tests.support.postgres import Server

SEED = 169
BREAKS = {
    "GitHub failed or lost an answer",
    "delivery doubled, delayed or dropped",
    "replica killed",
    "replica stopped beyond its claims",
}
"""What breaks in the first four seconds with this seed, before any job can have ended."""


@pytest.mark.slow(30)
@pytest.mark.timeout(420)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
async def test_nothing_is_lost_and_nothing_happens_twice_while_everything_breaks(
    tmp_path: Path, postgres: Server
) -> None:
    name = await postgres.create()
    try:
        plan = Plan(SEED, jobs=3, every=2, pause_s=(0.3, 1.5), break_s=6.0)
        outcome = await run_chaos(tmp_path, postgres.url(name), plan)
        print(outcome.render())
        assert outcome.is_clean, outcome.render()
        assert outcome.mishaps.keys() >= BREAKS, outcome.render()
    finally:
        await postgres.drop(name)
        gc.collect()  # Connections that were cut in mid-air are nobody else's to complain of.


def test_agents_overlap_when_more_are_at_work_than_there_are_slots() -> None:
    def note(job: str, what: str, at: float, machine: str = "gpu-1") -> Mapping[str, object]:
        return {"job": job, "what": what, "machine": machine, "at": at}

    two = [note("a", "start", 1), note("b", "start", 2), note("a", "end", 3), note("c", "start", 4)]
    assert count_overlaps(two) == 0
    assert count_overlaps([*two, note("d", "start", 5)]) == 1
    assert count_overlaps([*two, note("d", "start", 5, "gpu-2")]) == 0


def test_a_run_that_moves_may_take_as_long_as_it_needs() -> None:
    progress = Progress(still_s=10.0)
    assert all(progress.note(done, at=9.0 * done) for done in range(100))
    assert progress.note(99, at=900.0)
    assert not progress.note(99, at=901.0)


def test_a_slow_machine_breaks_things_in_slow_motion_and_a_fast_one_as_ever() -> None:
    assert choose_slowness(0.5 * USUAL_START_S) == 1.0
    assert choose_slowness(3 * USUAL_START_S) == 3.0
    assert make_pace(3.0).claim_s == 3 * make_pace(1.0).claim_s == 3 * CLAIM_S


def test_what_only_goes_to_and_fro_does_not_move() -> None:
    progress = Progress(still_s=10.0)
    assert [progress.note(-at % 2, at=float(at)) for at in range(12)] == [*[True] * 11, False]


def test_a_percentile_is_one_of_the_values() -> None:
    assert find_percentile([], 0.5) == 0.0
    assert find_percentile([3, 1, 2], 0.5) == 2
    assert find_percentile([3, 1, 2], 0.99) == 3
