"""What an answer of a model took, read from the bytes of the answer as they pass. Pure.

https://docs.anthropic.com/en/api/messages-streaming · https://platform.openai.com/docs/api-reference/responses-streaming
https://platform.openai.com/docs/api-reference/chat/streaming
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from runner.agents.lines import count_of, parse_line, part
from runner.agents.prices import Price, reckon_cost
from runner.model.usage import Usage

MAX_LINE = 8 * 1024 * 1024
"""Bytes of a line, or of an answer that is no stream, that are read; of a longer one nothing is known."""

SKIPPED = b"\0"
"""Stands for what was left out of a line, which so cannot be read."""

ENDS = ("response.completed", "response.incomplete", "response.failed")
"""Events behind which nothing more comes."""

END_LINES = (b"event: message_stop", b"data: [DONE]")
"""Lines that say the same, of Messages and of Chat."""

LAST = ("message_delta", *ENDS)
"""Events that say the final count. Chat names none: there the count itself comes last."""

WRITTEN_SURCHARGE, WRITTEN_HOUR_SURCHARGE = 0.25, 1.0
"""What Anthropic adds for a token that it writes into a cache, for five minutes and for an hour, by its input price.
https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching#pricing"""

FREQUENT = b"abcdefghijklmnopqrstuvwxyz "
"""Bytes that tokens of words and code hold several of. Any other byte can be a token of its own."""


@dataclass(frozen=True, slots=True)
class Count:
    """The tokens of one answer."""

    input_tokens: int = 0
    """All of the request; the cached and the written ones are among them."""
    cached_tokens: int = 0
    written_tokens: int = 0
    """Into a cache, for five minutes."""
    written_hour_tokens: int = 0
    output_tokens: int = 0

    def take(self, price: Price | None) -> Usage:
        """With what it costs, which is unknown where nobody knows the price."""
        usage = Usage(
            input_tokens=self.input_tokens, cached_tokens=self.cached_tokens, output_tokens=self.output_tokens
        )
        if price is None:
            return usage.with_cost(None)
        surcharges = WRITTEN_SURCHARGE * self.written_tokens + WRITTEN_HOUR_SURCHARGE * self.written_hour_tokens
        return usage.with_cost(reckon_cost(usage, price) + surcharges * price.input / 1e6)


def bound_tokens(text: bytes) -> int:
    """The most tokens that a text takes: one for each byte, but 0.6 for each byte that is `FREQUENT`.

    Measured with the tokenizer of Claude 2, the last one that Anthropic published: ordinary text and code take 0.4 of
    this, and random letters of any script between 0.9 and 1.01 of it.
    """
    others = len(text.translate(None, FREQUENT))
    return others + -(-6 * (len(text) - others) // 10)


def read_count(value: Mapping[str, Any]) -> Count | None:
    """The tokens that an event, or a whole answer, speaks of; None when it speaks of none."""
    places = (value, part(value, "message"), part(value, "response"))
    usage = next((part(place, "usage") for place in places if part(place, "usage")), None)
    if usage is None:
        return None
    if "prompt_tokens" in usage:  # Chat
        cached = count_of(part(usage, "prompt_tokens_details"), "cached_tokens")
        return Count(count_of(usage, "prompt_tokens"), cached, output_tokens=count_of(usage, "completion_tokens"))
    output = count_of(usage, "output_tokens")
    if "input_tokens_details" in usage:  # Responses
        cached = count_of(part(usage, "input_tokens_details"), "cached_tokens")
        return Count(count_of(usage, "input_tokens"), cached, output_tokens=output)
    cached, written = (count_of(usage, f"cache_{what}_input_tokens") for what in ("read", "creation"))
    hour = min(count_of(part(usage, "cache_creation"), "ephemeral_1h_input_tokens"), written)
    return Count(count_of(usage, "input_tokens") + cached + written, cached, written - hour, hour, output)


class AnswerReader:
    """Reads an answer in pieces, whatever their bounds are. What it has read so far is always there."""

    def __init__(self, *, streams: bool) -> None:
        self.count = Count()
        self.is_final = False
        """Whether the model has said the final count."""
        self.has_ended = False
        """Whether it has said that nothing more comes."""
        self._streams = streams
        self._rest = bytearray()

    @property
    def unread(self) -> int:
        """Bytes that it keeps until it can read them."""
        return len(self._rest)

    def skip(self) -> None:
        """Leave the line under way, or the answer that is no stream, unread."""
        self._rest = bytearray(SKIPPED)

    def feed(self, data: bytes) -> None:
        """Read on."""
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
        """The answer has ended as it should."""
        if not self._streams and (value := parse_line(self._rest.decode(errors="replace"))) is not None:
            self._note(value, is_final=True)

    def reckon(self, asked: Count) -> Count:
        """What to assume of an answer whose end nobody saw: what it said, and else all that was asked for.

        What a model thinks need not be among the bytes that it sends.
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
            # Each event repeats what is known by then, or leaves it out.
            names = [field.name for field in fields(Count)]
            self.count = Count(*(max(getattr(self.count, name), getattr(count, name)) for name in names))
            self.is_final = self.is_final or is_final
