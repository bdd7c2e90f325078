"""What bounds the lines of the log that others can cause."""

from __future__ import annotations

from runner.line_limit import MAX_LINES, MINUTE_S, LineLimit


def test_after_a_minute_it_says_how_many_lines_were_left_out_and_admits_others() -> None:
    said: list[int] = []
    limit = LineLimit(said.append)
    assert [limit.admit() for _ in range(MAX_LINES + 2)].count(True) == MAX_LINES
    assert said == []
    limit._since -= MINUTE_S + 1
    assert limit.admit()
    assert said == [2]


def test_at_its_end_it_says_once_how_many_lines_were_left_out() -> None:
    said: list[int] = []
    limit = LineLimit(said.append)
    for _ in range(MAX_LINES + 7):
        limit.admit()
    limit.end()
    limit.end()
    assert said == [7]
