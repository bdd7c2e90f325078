"""What an answer took, out of its bytes: of every API, in any pieces, whole or cut off."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.gateway.usage import MAX_LINE, AnswerReader, Count, read_count
from runner.agents.prices import Price, find_price
from tests.support.meters import make_usage
from tests.support.model_endpoint import Say, Sse, chat_events, messages_events, responses_events

TAKEN = Count(1000, output_tokens=100)


def render(events: Iterable[Sse]) -> bytes:
    return b"".join(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in events)


STREAMS = {
    "messages": render(messages_events(Say("Well"), "m", 0)),
    "responses": render(responses_events(Say("Well"), [], 0)),
    "chat": render(chat_events(Say("Well"), "m", 0)) + b"data: [DONE]\n\n",
}


def read(stream: bytes, *, streams: bool = True, whole: bool = True) -> AnswerReader:
    reader = AnswerReader(streams=streams)
    reader.feed(stream)
    if whole:
        reader.finish()
    return reader


@pytest.mark.parametrize("api", STREAMS)
@given(cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_a_stream_says_the_same_in_whatever_pieces_it_comes(api: str, cuts: list[int]) -> None:
    stream, reader = STREAMS[api], AnswerReader(streams=True)
    bounds = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    for begin, end in pairwise(bounds):
        reader.feed(stream[begin:end])
    assert (reader.count, reader.is_final) == (TAKEN, True)


@pytest.mark.parametrize("api", STREAMS)
def test_of_a_stream_that_was_cut_all_is_assumed_that_it_could_have_said(api: str) -> None:
    stream, asked = STREAMS[api], Count(5000, output_tokens=32_000)
    for end in range(0, stream.rindex(b"usage"), 50):
        reader = read(stream[:end], whole=False)
        assert not reader.is_final
        computed = reader.estimate(asked)
        assert computed.input_tokens in (1000, 5000)
        assert computed.output_tokens == 32_000


def test_an_answer_that_never_began_is_assumed_to_have_taken_all_that_was_asked_for() -> None:
    asked = Count(5000, output_tokens=32_000)
    assert AnswerReader(streams=True).estimate(asked) == asked


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ({"usage": {"input_tokens": 7, "output_tokens": 3}}, Count(7, output_tokens=3)),
        (
            {
                "usage": {
                    **{"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 10},
                    **{"cache_creation_input_tokens": 100, "cache_creation": {"ephemeral_1h_input_tokens": 60}},
                }
            },
            Count(111, 10, 40, 60, 2),
        ),
        (
            {"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}},
            Count(9, 4, output_tokens=2),
        ),
        (
            {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 2}},
            Count(9, 4, output_tokens=2),
        ),
    ],
)
def test_an_answer_that_is_no_stream_is_read_whole(answer: dict[str, object], count: Count) -> None:
    body = json.dumps(answer).encode()
    reader = AnswerReader(streams=False)
    reader.feed(body[:5])
    reader.feed(body[5:])
    assert not reader.is_final
    reader.finish()
    assert (reader.count, reader.is_final) == (count, True)


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"usage"',
        b'data: ["usage"]',
        b'data: {"usage": 3}',
        b'data: {"usage": {"input_tokens": "many"}}',
        b'data: {"usage": {"input_tokens": -5, "output_tokens": 1e300}}',
        b'\xff "usage"',
        b'data: "usage"' + b"[" * 10**5,
    ],
)
def test_nonsense_counts_for_nothing(line: bytes) -> None:
    reader = read(line + b"\n\n")
    assert reader.count == Count()


def test_a_line_without_end_takes_no_memory_without_end() -> None:
    reader = AnswerReader(streams=True)
    for _ in range(40):
        reader.feed(b"x" * 2**20)
    assert len(reader._rest) <= MAX_LINE + 2**20
    reader.feed(b"\n" + STREAMS["messages"])
    assert reader.count == TAKEN


def test_a_long_prompt_and_a_written_cache_cost_what_openai_adds_for_them() -> None:
    details = {"cached_tokens": 100_000, "cache_write_tokens": 200_000}
    count = read_count({"usage": {"input_tokens": 300_000, "input_tokens_details": details, "output_tokens": 1_000}})
    assert count == Count(300_000, 100_000, 200_000, output_tokens=1_000)
    cost = count.take(find_price("gpt-5.6", {})).cost_usd
    assert cost == pytest.approx((200_000 * 4.0 * 2 * 1.25 + 100_000 * 0.4 * 2 + 1_000 * 20.0 * 1.5) / 1e6)
    chat = {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cache_write_tokens": 5}, "completion_tokens": 2}}
    assert read_count(chat) == Count(9, 0, 5, output_tokens=2)


def test_money_is_computed_with_what_a_cache_saves_and_what_it_costs_to_fill() -> None:
    price = Price(input=10.0, cached=1.0, output=50.0)
    count = Count(input_tokens=1_000, cached_tokens=300, written_tokens=100, written_hour_tokens=50, output_tokens=20)
    dollars = (550 * 10 + 300 * 1 + 100 * 12.5 + 50 * 20 + 20 * 50) / 1e6
    taken = count.take(price)
    assert taken == replace(make_usage(1_000, 300, 20, taken.cost_usd), turns=1)
    assert taken.cost_usd == pytest.approx(dollars)
    assert count.take(None) == replace(make_usage(1_000, 300, 20, None), turns=1, unpriced_turns=1)
