"""Removes secrets from a log while it is read. This is the only place where logs are redacted. Pure.

`LogRedactor` is fed raw bytes, in pieces of any size. It holds back text that may become a secret: a private key
without its end, the first lines of a multi-line secret, a header whose value is on the next line. The result depends
only on the log, not on the pieces. So a reader that starts again at `offset` with a new redactor neither loses nor
repeats a line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import AnyStr

from handlers.text.sanitize import closes_key, find_open, may_open, redact
from handlers.text.transcript import clean_events, redact_each, redact_log
from runner.agents.lines import parse_line
from runner.characters import drop_colours

MAX_HELD = 65_536
"""The most characters that are held back because a secret may have begun. No key is longer."""

MAX_HELD_LINES = 1_000
"""The most lines that are held back."""

PIECE = 32_768
"""The characters that are searched at once, so that other threads can run. A longer line is cut into pieces."""

STEP = PIECE // 4
"""The bytes between two tried cuts of a long line."""

LONGEST = 3 * PIECE
"""The most bytes of a piece."""

MARGIN = 10_000
"""The bytes on each side of a cut that are searched for a secret. A secret is found only if it is complete."""

MAX_EVENT = 4_000_000
"""The most bytes of a line that is an event."""

CHUNK = 262_144
"""The bytes that are split into lines at once."""


@dataclass(frozen=True, slots=True)
class Clean:
    """A redacted part of the log: an event, or plain text. A line that is too long becomes several parts."""

    end: int
    """The offset in the raw log at which the part ends."""
    text: str
    is_event: bool = False


@dataclass(frozen=True, slots=True)
class _Held:
    """A line that is held back, or an event between held lines."""

    place: int
    """Where the line ends in the held text. For an event, where the line before it ends there."""
    end: int
    """The offset in the raw log at which the line or the event ends."""
    event: Clean | None = None


class LogRedactor:
    """Redacts one log."""

    def __init__(
        self, secrets: Collection[str], *, has_events: bool = False, by_line: bool = False, start: int = 0
    ) -> None:
        """`secrets` are the exact texts to remove. `has_events` says that the agent of this log prints events.

        `start` is the offset of the first byte. With `by_line`, each line is returned separately, unless a secret may
        span several lines. Without it, the ends of the returned texts depend on the pieces of the log.
        """
        self._secrets = frozenset(secrets)
        self._has_events = has_events
        self._by_line = by_line
        self.offset = start
        """Everything before this offset was returned, so a new redactor can start here."""
        self._line = b""
        self._in_line = False
        """Whether pieces of the current line were cut off already."""
        self._text = ""
        """The text of the held lines, in which a secret may have begun, without colours."""
        self._held: list[_Held] = []
        """The held lines, and the events between the lines of a private key, in their order. The first is a line."""
        self._begins = 0
        """Where in `_text` the possible secret begins."""

    @property
    def _end(self) -> int:
        """The offset of the current line, or of its next piece."""
        return self._held[-1].end if self._held else self.offset

    @property
    def _in_key(self) -> bool:
        """Whether the possible secret is a private key."""
        return self._text.startswith("-----BEGIN ", self._begins)

    def feed(self, chunk: bytes) -> list[Clean]:
        """Add bytes, and return the redacted parts that no later byte can change."""
        found: list[Clean] = []
        for start in range(0, len(chunk), CHUNK):
            lines, newline, rest = (self._line + chunk[start : start + CHUNK]).rpartition(b"\n")
            self._take_lines((lines + newline).split(b"\n")[:-1], found)
            self._line = self._take_pieces(rest, found)
        return self._clean(found)

    def finish(self) -> list[Clean]:
        """End the log, and return the rest of it, redacted."""
        line, self._line = self._line, b""
        found: list[Clean] = []
        if line:
            self._take_line(line, b"", found)
        return self._clean([*found, *self._release(len(self._held))])

    def _take_lines(self, lines: Sequence[bytes], found: list[Clean]) -> None:
        """Take whole lines. If no secret can span several of them, they are taken at once, and otherwise one by one."""
        if self._are_simple(lines):
            for group in lines if self._by_line else map(b"\n".join, _split_batches(lines)):
                self.offset += len(group) + 1
                found.append(Clean(self.offset, drop_colours(group.decode(errors="replace")) + "\n"))
        elif half := len(lines) // 2:
            self._take_lines(lines[:half], found)
            self._take_lines(lines[half:], found)
        else:
            for line in lines:
                self._take_line(line, b"\n", found)

    def _are_simple(self, lines: Sequence[bytes]) -> bool:
        if self._held or self._in_line or max(map(len, lines), default=0) > LONGEST:
            return False
        whole = b"\n".join([*lines, b""])
        if self._has_events and b"{" in whole:
            return False
        return not may_open(drop_colours(whole.decode(errors="replace")), self._secrets)

    def _take_line(self, line: bytes, newline: bytes, found: list[Clean]) -> None:
        text = line.decode(errors="replace") if self._may_be_event(line) else ""
        if text and parse_line(text) is not None:
            event = Clean(self._end + len(line) + len(newline), text + newline.decode(), is_event=True)
            # Of all secrets, only a private key can continue after an event. Another program may print the key line by
            # line between the events.
            if self._in_key and not self._are_too_many(event.end - self.offset - self._begins):
                self._held.append(_Held(len(self._text), event.end, event))
                return
            found += [*self._release(len(self._held)), event]
            self.offset = event.end
            return
        last = self._cut(line, found)
        found += self._hold(last + newline)
        self._in_line = False

    def _may_be_event(self, line: bytes) -> bool:
        return self._has_events and not self._in_line and len(line) <= MAX_EVENT

    def _take_pieces(self, line: bytes, found: list[Clean]) -> bytes:
        """Cut a long unfinished line, and return the rest."""
        return line if self._may_be_event(line) and line.startswith(b"{") else self._cut(line, found)

    def _cut(self, line: bytes, found: list[Clean]) -> bytes:
        """Cut pieces off the beginning of a line that is too long, and return the rest."""
        start = 0
        while len(line) - start > LONGEST + MARGIN:
            piece = line[start : start + self._find_border(line[start : start + LONGEST + MARGIN])]
            found += self._hold(piece)
            self._in_line = True
            start += len(piece)
        return line[start:]

    def _find_border(self, line: bytes) -> int:
        """Find a place to cut that is not inside a secret. Returns the last tried place if all of them are."""
        border = LONGEST
        for place in range(PIECE, LONGEST + 1, STEP):
            border = place
            while border > place - 3 and line[border] & 0xC0 == 0x80:  # Do not cut inside a UTF-8 character.
                border -= 1
            before, after = (
                part.decode(errors="replace") for part in (line[border - MARGIN : border], line[border:][:MARGIN])
            )
            whole = self._clean_text(drop_colours(before + after))
            if whole == self._clean_text(drop_colours(before)) + self._clean_text(drop_colours(after)):
                return border
        return border

    def _hold(self, line: bytes) -> list[Clean]:
        """Take a line or a piece, and release held lines when no secret can continue."""
        end, was_in_key, text = self._end + len(line), self._in_key, drop_colours(line.decode(errors="replace"))
        self._text += text
        self._held.append(_Held(len(self._text), end))
        # A key continues until it is closed. Searching all held lines for each of its lines would be slow.
        if not was_in_key or closes_key(text):
            self._begins = find_open(self._text, self._secrets, self._text.rfind("\n", 0, self._begins) + 1)
        before = bisect_right(self._held, self._begins, key=lambda held: held.place)
        # If too much is held, release the lines before the possible secret. If there are none, release all lines. The
        # text before the secret in its own line does not count.
        if before == len(self._held) or (before and self._are_too_many(len(self._text))):
            return self._release(before)
        if not before and self._are_too_many(len(self._text) - self._begins):
            return self._release(len(self._held))
        return []

    def _are_too_many(self, size: int) -> bool:
        return len(self._held) > MAX_HELD_LINES or size > MAX_HELD

    def _release(self, count: int) -> list[Clean]:
        """Release the first held lines, joined, and the events between them."""
        if not count:
            return []
        released, size = self._held[:count], self._held[count - 1].place
        text, self._text = self._text[:size], self._text[size:]
        self._held = [_Held(held.place - size, held.end, held.event) for held in self._held[count:]]
        self._begins = max(self._begins - size, 0)
        self.offset = released[-1].end
        # The lines around the events are returned before the events, so they get an end before the events. A reader of
        # a live log may start again at any end.
        before = next((at for at, held in enumerate(released) if held.event), count)
        events = [held.event for held in released if held.event]
        return [Clean(released[before - 1].end, text), *events]

    def _clean(self, found: Sequence[Clean]) -> list[Clean]:
        """Redact parts. Many short parts are searched at once, because that is faster."""
        plain = _split_batches([one.text for one in found if not one.is_event])
        events = _split_batches([one.text for one in found if one.is_event])
        cleaned = {
            False: chain.from_iterable(map(self._clean_plain, plain)),
            True: chain.from_iterable(map(self._clean_events, events)),
        }
        return [_respell(one, next(cleaned[one.is_event])) for one in found]

    def _clean_plain(self, texts: Sequence[str]) -> list[str]:
        return redact_each(texts, self._clean_text)

    def _clean_text(self, text: str) -> str:
        return redact_log(text, self._redact)

    def _clean_events(self, lines: Sequence[str]) -> list[str]:
        """Redact events: first the values of their strings, then the raw text."""
        return redact_each(clean_events(lines, lambda text: self._redact(drop_colours(text))), self._redact)

    def _redact(self, text: str) -> str:
        return redact(text, self._secrets)


def _respell(one: Clean, text: str) -> Clean:
    if one.text == text:
        return one
    # If a secret spans several strings of an event, their quotes are removed, too. The rest is shown as plain text.
    return replace(one, text=text, is_event=one.is_event and parse_line(text) is not None)


def _split_batches(texts: Sequence[AnyStr]) -> Iterator[list[AnyStr]]:
    """The texts in batches, each with up to `PIECE` characters or one text."""
    batch, size = list[AnyStr](), 0
    for text in texts:
        if batch and size + len(text) > PIECE:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text) + 1
    if batch:
        yield batch
