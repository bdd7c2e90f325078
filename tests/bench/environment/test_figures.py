from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.environment.figures import (
    UNTOUCHED,
    Row,
    Times,
    find_environment_s,
    judge,
    middle,
    render_table,
)

GOOD = Row("ours", [Times(0.2, 1.0, 0.1)], [Times(0.4, 2.0, 0.1)], 100_000, 15, UNTOUCHED)
RECIPE = Row("recipe", [Times(12.0, 13.0, 1.0)], base="3 files changed by 60 writes")


def test_the_middle_is_the_median_of_each_figure() -> None:
    assert middle([Times(1, 9, 5), Times(2, 1, 5), Times(30, 2, 6)]) == Times(2, 2, 5)


def test_what_the_environment_alone_took_is_read_from_the_log() -> None:
    assert find_environment_s(b"[This job is sealed.]\n[The environment took 0.02 s.]\n$ true\n") == 0.02


def test_the_table_has_a_line_for_each_way_also_for_one_that_cannot_be_gone() -> None:
    lines = render_table(
        [GOOD, replace(GOOD, name="warm alone", cold=[]), Row("reflink", impossible="no")]
    ).splitlines()
    assert lines[2:] == [
        "| ours | 0.20 (0.40) | 1.00 (2.00) | 0.10 (0.10) | 0.1 | 15 | as before |",
        "| warm alone | 0.20 (-) | 1.00 (-) | 0.10 (-) | 0.1 | 15 | as before |",
        "| reflink | no | | | | | |",
    ]


@pytest.mark.parametrize(
    ("ours", "at_once_s", "missed"),
    [
        (GOOD, 3.0, []),
        (replace(GOOD, warm=[Times(0.51, 1.0, 0.1)]), 1.0, ["ready in 0.51 s", "24 times"]),
        (replace(GOOD, warm=[Times(0.5, 1.0, 0.1)]), 1.0, ["24 times"]),
        (replace(GOOD, warm=[Times(0.2, 2.1, 0.1)]), 1.0, ["with its smoke test"]),
        (replace(GOOD, warm=[Times(0.2, 1.0, 0.3)]), 1.0, ["gone in 0.30 s"]),
        (GOOD, 3.1, ["20 jobs at once in 3.10 s"]),
        (replace(GOOD, base="1 files changed by 60 writes"), 1.0, ["the base is 1 files changed"]),
    ],
)
def test_each_target_can_be_missed(ours: Row, at_once_s: float, missed: list[str]) -> None:
    found = [words for holds, words in judge(ours, RECIPE, at_once_s, 20) if not holds]
    assert len(found) == len(missed)
    assert all(words.startswith(begin) for words, begin in zip(found, missed, strict=True))
