"""A log that is read while it grows, as people read it: each line as soon as nothing in it can still become a secret.

A log reads alike in the end into whatever pieces it was cut on its way here: only whole lines count, and where one
of our pieces ends is decided by what stands in the log. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

from handlers.text.sanitize import find_open, redact
from handlers.text.transcript import (
    Entry,
    EntryKind,
    Teller,
    clean_events,
    drop_colours,
    is_unfinished,
    redact_each,
    redact_log,
    shorten,
)
from runner.agents import Agent
from runner.agents.lines import parse_line
from runner.characters import show_invisible

MAX_HELD = 65_536
"""Characters that are held back, because a secret may have begun in them. No key is that long."""

MAX_HELD_LINES = 1_000
"""The same in lines: all of them are looked at for each that comes."""

MAX_LINE = 4_000_000
"""Bytes of a line that is still read."""

MAX_SHOWN = 64_000
"""Characters of one entry; of a longer one the middle is left out."""


@dataclass(frozen=True, slots=True)
class Told:
    """What some whole lines tell, and the offset in the log at which they end."""

    end: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines that are told together: one event, or plain text in which every secret is whole."""

    end: int
    text: str
    is_event: bool = False


class LiveTranscript:
    """One log, fed in pieces. What it tells is clean but for HTML: no secrets, no colours, nothing invisible."""

    def __init__(self, agent: Agent | None, secrets: Collection[str], start: int = 0) -> None:
        """`agent` is the one whose log it is; None for any other log. `start` is the offset of the first byte.

        Of a log that is not read from its beginning, what stands within `MAX_HELD` bytes of the start is not told: the
        first half of a secret in it may be missing.
        """
        self._teller = Teller(agent) if agent and agent.speaks else None
        self._secrets = frozenset(secrets)
        self._from = start + MAX_HELD if start else 0
        self._skips = start > 0
        """Whether the line under way began before the start."""
        self._line = b""
        self._dropped = 0
        """Bytes of the line under way that are gone already: it is too long."""
        self._held: list[_Lines] = []
        self.offset = start
        """Where the log goes on after what was told."""
        self._end = start

    def feed(self, chunk: bytes) -> list[Told]:
        """What can be told now that these bytes are known as well."""
        return self._tell(self._take(chunk))

    def skip(self, chunk: bytes) -> None:
        """Take note of bytes of which nothing has to be told here."""
        self._take(chunk)

    def finish(self) -> list[Told]:
        """What is left, of a log that ends here."""
        line, self._line = self._line, b""
        lines: list[_Lines] = []
        if self._dropped or (line and not self._is_unfinished(line)):
            lines += self._take_line(line, b"")
        lines += self._release(len(self._held))
        told = self._tell(lines)
        notes = tuple(self._teller.conclude()) if self._teller else ()
        return [*told, Told(self._end, notes)] if notes else told

    def _is_unfinished(self, line: bytes) -> bool:
        return self._teller is not None and is_unfinished(line.decode(errors="replace"))

    def _take(self, chunk: bytes) -> list[_Lines]:
        *lines, self._line = (self._line + chunk).split(b"\n")
        taken = [told for line in lines for told in self._take_line(line, b"\n")]
        if len(self._line) > MAX_LINE:
            self._dropped, self._line = self._dropped + len(self._line), b""
        return taken

    def _take_line(self, line: bytes, newline: bytes) -> Iterator[_Lines]:
        length, self._dropped = self._dropped + len(line), 0
        self._end += length + len(newline)
        if self._skips:
            self._skips = False
            self.offset = self._end
            return
        if length > MAX_LINE:
            line = f"[a line of {length} bytes is left out]".encode()
        text = line.decode(errors="replace")
        if self._teller and parse_line(text) is not None:
            # Nothing goes on behind an event, so that no secret does.
            yield from self._release(len(self._held))
            self.offset = self._end
            yield _Lines(self._end, text, is_event=True)
        else:
            self._held.append(_Lines(self._end, drop_colours(text) + newline.decode()))
            yield from self._release(self._count_safe())

    def _count_safe(self) -> int:
        """How many of the lines that are held back may be told: none, unless no secret can go on behind them."""
        held = "".join(line.text for line in self._held)
        place = find_open(held, self._secrets)
        if place == len(held):
            return len(self._held)
        if len(held) <= MAX_HELD and len(self._held) <= MAX_HELD_LINES:
            return 0
        # Too many: all before the line in which a secret may have begun, or else the whole of what began in the first.
        return held.count("\n", 0, place) or len(self._held)

    def _release(self, count: int) -> Iterator[_Lines]:
        """The first lines of what is held back, as one."""
        released, self._held = self._held[:count], self._held[count:]
        if released:
            self.offset = released[-1].end
            yield _Lines(self.offset, "".join(line.text for line in released))

    def _tell(self, lines: list[_Lines]) -> list[Told]:
        shown = [one for one in lines if one.end > self._from]
        events = iter(clean_events([one.text for one in shown if one.is_event], self._clean))
        told = [
            Told(one.end, tuple(self._teller.tell(next(events)) if self._teller and one.is_event else _quote(one.text)))
            for one in shown
        ]
        texts = iter(redact_each([entry.text for one in told for entry in one.entries], self._clean))
        return [Told(one.end, tuple(_polish(entry.kind, next(texts)) for entry in one.entries)) for one in told]

    def _clean(self, text: str) -> str:
        clear = partial(redact, secrets=self._secrets)
        return clear(drop_colours(text)) if self._teller else redact_log(text, clear)


def _quote(text: str) -> Iterator[Entry]:
    yield Entry(EntryKind.PLAIN, text)


def _polish(kind: EntryKind, text: str) -> Entry:
    return Entry(kind, show_invisible(shorten(text, MAX_SHOWN)))
