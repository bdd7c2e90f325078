"""The verdict on a story is worth something: it notices what was lost, and what happened twice."""

from __future__ import annotations

import pytest

from tests.crash.matrix import Recording


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("recording", ["sqlite"], indirect=True)
def test_the_verdict_notices_what_was_lost_and_what_happened_twice(recording: Recording) -> None:
    assert recording.tried == 11, "each of four comments twice and not at all, and three more"
    assert recording.unnoticed == []
