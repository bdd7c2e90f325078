"""Reads the usage of a model's answer from the answer's bytes as they pass through. Pure.

https://docs.anthropic.com/en/api/messages-streaming · https://platform.openai.com/docs/api-reference/responses-streaming
https://platform.openai.com/docs/api-reference/chat/streaming
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from runner.agents.lines import count_of, parse_line, part
from runner.agents.prices import WRITTEN_HOUR_SURCHARGE, Price, compute_cost
from runner.model.usage import Usage

MAX_LINE = 8 * 1024 * 1024
"""The most bytes of a line, or of an answer that is not a stream. Longer ones are skipped."""

SKIPPED = b"\0"
"""Replaces the skipped bytes of a line. The rest of the line then cannot be parsed."""

ENDS = ("response.completed", "response.incomplete", "response.failed")
"""The last events of an answer in the Responses API."""

END_LINES = (b"event: message_stop", b"data: [DONE]")
"""The last lines of an answer in the Messages API and in the Chat API."""

LAST = ("message_delta", *ENDS)
"""The events with the final count. In the Chat API, events have no type, and the only count comes last."""

FREQUENT = b"abcdefghijklmnopqrstuvwxyz "
"""A token of ordinary text or code contains several of these bytes. Any other byte can be a token by itself."""


@dataclass(frozen=True, slots=True)
class Count:
    """The tokens of one request and its answer, which is one turn."""

    input_tokens: int = 0
    """All tokens of the request, including the cached and the written ones."""
    cached_tokens: int = 0
    written_tokens: int = 0
    """Written into a cache for minutes."""
    written_hour_tokens: int = 0
    output_tokens: int = 0

    def take(self, price: Price | None) -> Usage:
        """The usage with its cost. The cost is unknown without a price."""
        usage = Usage(
            turns=1,
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
        )
        if price is None:
            return usage.with_cost(None)
        price = price.for_prompt(self.input_tokens)
        surcharges = price.written_surcharge * self.written_tokens
        surcharges += WRITTEN_HOUR_SURCHARGE * price.input * self.written_hour_tokens
        return usage.with_cost(compute_cost(usage, price) + surcharges / 1e6)


def bound_tokens(text: bytes) -> int:
    """A bound for the tokens of a text: one token per byte, but 0.6 per byte that is in `FREQUENT`.

    The bound was measured with the tokenizer of Claude 2, the last tokenizer that Anthropic has published. Ordinary
    text and code have 0.4 times as many tokens as the bound, and random letters of any script 0.9 to 1.01 times.
    """
    others = len(text.translate(None, FREQUENT))
    return others + -(-6 * (len(text) - others) // 10)


def read_count(value: Mapping[str, Any]) -> Count | None:
    """The tokens that an event or a whole answer reports. None if it reports none."""
    places = (value, part(value, "message"), part(value, "response"))
    usage = next((part(place, "usage") for place in places if part(place, "usage")), None)
    if usage is None:
        return None
    if "prompt_tokens" in usage:  # Chat
        cached, written = _read_details(part(usage, "prompt_tokens_details"))
        tokens, output = count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens")
        return Count(tokens, cached, written, output_tokens=output)
    output = count_of(usage, "output_tokens")
    if "input_tokens_details" in usage:  # Responses
        cached, written = _read_details(part(usage, "input_tokens_details"))
        return Count(count_of(usage, "input_tokens"), cached, written, output_tokens=output)
    cached, written = (count_of(usage, f"cache_{what}_input_tokens") for what in ("read", "creation"))
    hour = min(count_of(part(usage, "cache_creation"), "ephemeral_1h_input_tokens"), written)
    return Count(count_of(usage, "input_tokens") + cached + written, cached, written - hour, hour, output)


def _read_details(details: Mapping[str, Any]) -> tuple[int, int]:
    """The cached and the written tokens. Only models that charge for writing report the latter."""
    return count_of(details, "cached_tokens"), count_of(details, "cache_write_tokens")


class AnswerReader:
    """Reads an answer in pieces of any size. `count` is always the count so far."""

    def __init__(self, *, streams: bool) -> None:
        self.count = Count()
        self.is_final = False
        """Whether the final count has arrived."""
        self.has_ended = False
        """Whether the last event or line has arrived."""
        self._streams = streams
        self._rest = bytearray()

    @property
    def unread(self) -> int:
        """Bytes that are kept until they can be parsed."""
        return len(self._rest)

    def skip(self) -> None:
        """Skip the current line. Without a stream, skip the whole answer."""
        self._rest = bytearray(SKIPPED)

    def feed(self, data: bytes) -> None:
        """Read the next bytes."""
        head, newline, tail = data.rpartition(b"\n") if self._streams else (b"", b"", data)
        if newline:
            whole, self._rest = bytes(self._rest) + head, bytearray()
            if b'"usage"' in whole:
                self._read_lines(whole)
            if any(line in whole for line in END_LINES):
                self.has_ended = self.has_ended or not {*END_LINES}.isdisjoint(whole.split(b"\n"))
        self._rest += tail
        if len(self._rest) > MAX_LINE:
            self.skip()

    def finish(self) -> None:
        """Note that the whole answer has arrived."""
        if not self._streams and (value := parse_line(self._rest.decode(errors="replace"))) is not None:
            self._note(value, is_final=True)

    def estimate(self, asked: Count) -> Count:
        """The count to assume for an answer whose end did not arrive. `asked` is the reserved maximum.

        The input tokens are those reported so far. If none were reported, they are the maximum. The output tokens are
        at least the maximum, because the bytes that a model sends need not include its thinking.
        """
        said = self.count if self.count.input_tokens else asked
        return replace(said, output_tokens=max(self.count.output_tokens, asked.output_tokens))

    def _read_lines(self, lines: bytes) -> None:
        for line in lines.split(b"\n"):
            if not (line.startswith(b"data:") and b'"usage"' in line):
                continue
            if (value := parse_line(line[5:].decode(errors="replace"))) is not None:
                kind = value.get("type")
                self._note(value, is_final=kind in LAST or kind is None)
                self.has_ended = self.has_ended or kind in ENDS

    def _note(self, value: Mapping[str, Any], *, is_final: bool) -> None:
        if (count := read_count(value)) is not None:
            # Each event either repeats the counts so far, or leaves them out.
            names = [field.name for field in fields(Count)]
            self.count = Count(*(max(getattr(self.count, name), getattr(count, name)) for name in names))
            self.is_final = self.is_final or is_final
