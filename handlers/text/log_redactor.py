"""Removes secrets from a log while it is read. This is the only place where logs are redacted. Pure.

`LogRedactor` is fed raw bytes, in pieces of any size. It holds back text that may become a secret: a private key
without its end, the first lines of a multi-line secret, a header whose value is on the next line. The result depends
only on the log, not on the pieces. So a reader that starts again at `offset` with a new redactor neither loses nor
repeats a line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from handlers.text.sanitize import closes_key, find_open, may_open, redact
from handlers.text.transcript import clean_events, drop_colours, redact_each, redact_log
from runner.agents.lines import parse_line

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
        self._end = start
        """The offset of the current line, or of its next piece."""
        self._line = b""
        self._in_line = False
        """Whether pieces of the current line were cut off already."""
        self._held = ""
        """Lines in which a secret may have begun, without colours."""
        self._ends: list[int] = []
        """Where in `_held` each held line ends."""
        self._offsets: list[int] = []
        """Where in the log each held line ends."""
        self._begins = 0
        """Where in `_held` the possible secret begins."""
        self._in_key = False
        """Whether the possible secret is a private key."""
        self._events: list[tuple[int, int, Clean]] = []
        """Events between the lines of a private key. Each has the number of held lines before it, and its offset."""

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
        found = [*self._take_line(line, b"")] if line else []
        found += self._release(len(self._ends))
        return self._clean(found)

    def _take_lines(self, lines: Sequence[bytes], found: list[Clean]) -> None:
        """Take whole lines. If no secret can span several of them, they are taken at once, and otherwise one by one."""
        if self._are_simple(lines):
            for group in lines if self._by_line else _group(lines):
                self.offset = self._end = self._end + len(group) + 1
                found.append(Clean(self._end, drop_colours(group.decode(errors="replace")) + "\n"))
        elif half := len(lines) // 2:
            self._take_lines(lines[:half], found)
            self._take_lines(lines[half:], found)
        else:
            for line in lines:
                found += self._take_line(line, b"\n")

    def _are_simple(self, lines: Sequence[bytes]) -> bool:
        if self._held or self._in_line or max(map(len, lines), default=0) > LONGEST:
            return False
        whole = b"\n".join([*lines, b""])
        if self._has_events and b"{" in whole:
            return False
        return not may_open(drop_colours(whole.decode(errors="replace")), self._secrets)

    def _take_line(self, line: bytes, newline: bytes) -> Iterator[Clean]:
        text = line.decode(errors="replace") if self._may_be_event(line) else ""
        if text and parse_line(text) is not None:
            begin = self._end
            self._end += len(line) + len(newline)
            event = Clean(self._end, text + newline.decode(), is_event=True)
            # Of all secrets, only a private key can continue after an event. Another program may print the key line by
            # line between the events.
            if self._in_key and not self._are_too_many(self._end - self.offset - self._begins):
                self._events.append((len(self._ends), begin, event))
                self._offsets[-1] = self._end
                return
            yield from self._release(len(self._ends))
            self.offset = self._end
            yield event
            return
        pieces: list[Clean] = []
        last = self._cut(line, pieces)
        yield from pieces
        yield from self._hold(last + newline)
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

    def _hold(self, line: bytes) -> Iterator[Clean]:
        """Take a line or a piece, and release held lines when no secret can continue."""
        self._end += len(line)
        text = drop_colours(line.decode(errors="replace"))
        self._held += text
        self._ends.append(len(self._held))
        self._offsets.append(self._end)
        # A key continues until it is closed. Searching all held lines for each of its lines would be slow.
        if not self._in_key or closes_key(text):
            self._begins = find_open(self._held, self._secrets, self._held.rfind("\n", 0, self._begins) + 1)
            self._in_key = self._held.startswith("-----BEGIN ", self._begins)
        before = bisect_right(self._ends, self._begins)
        # If too much is held, release the lines before the possible secret. If there are none, release all lines. The
        # text before the secret in its own line does not count.
        if before == len(self._ends) or (before and self._are_too_many(len(self._held))):
            yield from self._release(before)
        elif not before and self._are_too_many(len(self._held) - self._begins):
            yield from self._release(len(self._ends))

    def _are_too_many(self, size: int) -> bool:
        return len(self._ends) + len(self._events) > MAX_HELD_LINES or size > MAX_HELD

    def _release(self, count: int) -> list[Clean]:
        """Release the first held lines, joined, and the events between them."""
        if not count:
            return []
        size, self.offset = self._ends[count - 1], self._offsets[count - 1]
        text, self._held = self._held[:size], self._held[size:]
        self._ends, self._offsets = [end - size for end in self._ends[count:]], self._offsets[count:]
        self._begins = max(self._begins - size, 0)
        self._in_key = self._in_key and bool(self._ends)
        events = [event for event in self._events if event[0] <= count]
        self._events = [(before - count, begin, event) for before, begin, event in self._events if before > count]
        # The lines around the events are returned before the events, so they get an end before the events. A reader of
        # a live log may start again at any end.
        end = events[0][1] if events else self.offset
        return [Clean(end, text), *(event for _, _, event in events)]

    def _clean(self, found: Sequence[Clean]) -> list[Clean]:
        """Redact parts. Many short parts are searched at once, because that is faster."""
        plain = _by_batch([one.text for one in found if not one.is_event], self._clean_plain)
        events = _by_batch([one.text for one in found if one.is_event], self._clean_events)
        return [_respell(one, next(events if one.is_event else plain)) for one in found]

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


def _by_batch(texts: Sequence[str], clean: Callable[[Sequence[str]], list[str]]) -> Iterator[str]:
    """Clean the texts in batches."""
    batch, size = list[str](), 0
    for text in texts:
        if batch and size + len(text) > PIECE:
            yield from clean(batch)
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    yield from clean(batch) if batch else ()


def _group(lines: Sequence[bytes]) -> Iterator[bytes]:
    """The lines in batches."""
    group, size = list[bytes](), 0
    for line in lines:
        if group and size + len(line) > PIECE:
            yield b"\n".join(group)
            group, size = [], 0
        group.append(line)
        size += len(line) + 1
    yield from [b"\n".join(group)] if group else []
