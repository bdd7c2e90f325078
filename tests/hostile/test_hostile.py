"""What `make hostile` judges by, and a short sample of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hostile.__main__ import Outcome, run
from tests.hostile.probe import PAUSE_S
from tests.hostile.texts import FRAGMENTS, FULL, list_texts


def test_there_are_many_texts_and_none_is_longer_than_github_takes() -> None:
    assert len(set(FRAGMENTS)) == len(FRAGMENTS)
    assert len(list_texts()) >= 120
    assert max(map(len, list_texts())) <= FULL


def test_a_stall_counts_for_all_who_would_have_asked_meanwhile() -> None:
    outcome = Outcome([(0.0, 0.01), (1.0, 10 * PAUSE_S)], [(0.9, 2.0, "a"), (5.0, 6.0, "b")], {}, 0)
    assert len(outcome.list_waits()) == 1 + 11
    assert outcome.find_worst(1) == [(10 * PAUSE_S, "a")]


@pytest.mark.slow(20)
async def test_a_long_text_goes_through_a_running_service_by_every_channel(tmp_path: Path) -> None:
    outcome = await run(tmp_path, min(os.sched_getaffinity(0)), ["@" * FULL])
    assert outcome.ends == {"succeeded": 1}
    assert outcome.unworked == 0
    assert outcome.answers
