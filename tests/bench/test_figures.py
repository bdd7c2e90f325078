from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.figures import (
    BEDEVERE,
    MAX_P99_MS,
    MIN_RATIO,
    OURS,
    PROBOT,
    Figures,
    find_percentile,
    find_ratio,
    judge,
    render_table,
    summarize,
)
from tests.bench.load import PAYLOAD_SIZE, Round, is_whole, make_payloads, make_requests

GOOD = Figures(rate=900.0, p50_ms=5.0, p99_ms=9.0, cpu_s=0.5, memory_mb=100.0)
FIGURES = {PROBOT: replace(GOOD, rate=1000.0, memory_mb=120.0), OURS: GOOD, BEDEVERE: GOOD}


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (100, 100), (0, 1)])
def test_a_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert find_percentile([*range(100, 0, -1)], percent) == value


def test_figures_are_medians_of_rounds_and_what_the_deliveries_took_together() -> None:
    rounds = [Round(1.0, [0.001] * 100), Round(1.0, [0.002] * 200), Round(10.0, [0.5] * 200)]
    assert summarize(rounds, cpu_s=1.0, peak=5_000_000) == Figures(100.0, 2.0, 2.0, 2.0, 5.0)


def test_the_ratio_compares_rounds_that_stood_next_to_each_other() -> None:
    ours = [Round(1.0, [0.1] * count) for count in (80, 40, 9)]
    theirs = [Round(1.0, [0.1] * count) for count in (100, 50, 10)]
    assert find_ratio(ours, theirs) == 0.8


def test_the_table_has_a_line_for_each_server() -> None:
    table = render_table(FIGURES, {PROBOT: 1.0, OURS: 0.9, BEDEVERE: 0.9})
    assert table.splitlines()[3] == "| ptq-bot | 900 | 0.90 | 5.0 | 9.0 | 0.50 | 100 |"
    assert len(table.splitlines()) == 5


@pytest.mark.parametrize(
    ("ratio", "ours", "failing"),
    [
        (MIN_RATIO, GOOD, []),
        (MIN_RATIO - 0.01, GOOD, ["throughput"]),
        (MIN_RATIO, replace(GOOD, p99_ms=MAX_P99_MS), ["p99"]),
        (MIN_RATIO, replace(GOOD, memory_mb=120.0), ["memory"]),
    ],
)
def test_each_threshold_can_be_missed(ratio: float, ours: Figures, failing: list[str]) -> None:
    verdicts = judge({**FIGURES, OURS: ours}, ratio)
    assert [words.split()[0] for holds, words in verdicts if not holds] == failing


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok", True),
        (b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\no", False),
        (b"HTTP/1.1 202 Accepted\r\nContent-Le", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nok\n\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nok\n\r\n", False),
    ],
)
def test_an_answer_is_whole_by_its_length_or_its_last_chunk(answer: bytes, whole: bool) -> None:
    assert is_whole(answer) is whole


def test_no_delivery_id_is_sent_twice() -> None:
    (request,) = make_requests("/webhook", "secret", [b"{}"])
    first, second = request.with_id(), request.with_id()
    assert first != second
    assert first.endswith(b"\r\n\r\n{}")


def test_every_payload_has_the_size_that_the_bench_speaks_of() -> None:
    payloads = make_payloads(101)
    assert {len(payload) for payload in payloads} == {PAYLOAD_SIZE}
    assert len(set(payloads)) == 101
