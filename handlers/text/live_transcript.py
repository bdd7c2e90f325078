"""A log as people read it, also while it grows: each line as soon as nothing in it can still become a secret.

A log reads alike in the end into whatever pieces it was cut on its way here. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from handlers.text.log_redactor import MAX_HELD, Clean, LogRedactor
from handlers.text.sanitize import redact
from handlers.text.transcript import (
    Entry,
    EntryKind,
    Teller,
    clean_events,
    drop_colours,
    drop_unfinished,
    redact_each,
    shorten,
)
from runner.agents import Agent
from runner.agents.events import MAX_TEXT
from runner.characters import show_invisible

MAX_SHOWN = 64_000
"""Characters of one entry; of a longer one the middle is left out."""


@dataclass(frozen=True, slots=True)
class Told:
    """What some whole lines tell, and the offset in the log at which they end."""

    end: int
    entries: tuple[Entry, ...]


class LiveTranscript:
    """One log, fed in pieces. What it tells is clean but for HTML: no secrets, no colours, nothing invisible."""

    def __init__(self, agent: Agent | None, secrets: Collection[str], start: int = 0) -> None:
        """`agent` is the one whose log it is; None for any other log. `start` is the offset of the first byte.

        Of a log that is not read from its beginning, what is within `MAX_HELD` bytes of the start is not told: the
        first half of a secret in it may be missing.
        """
        self._teller = Teller(agent) if agent and agent.speaks else None
        self._secrets = frozenset(secrets)
        self._from = start + MAX_HELD if start else 0
        self._skips = start > 0
        """Whether the line under way began before the start."""
        self._redactor = self._open(start)

    @property
    def offset(self) -> int:
        """Where the log goes on after what was told."""
        return self._redactor.offset

    def feed(self, chunk: bytes) -> list[Told]:
        """What can be told now that these bytes are known as well."""
        if self._skips:
            half, newline, chunk = chunk.partition(b"\n")
            self._redactor = self._open(self.offset + len(half) + len(newline))
            self._skips = not newline
        return self._tell(self._redactor.feed(chunk))

    def finish(self) -> list[Told]:
        """What is left, of a log that ends here."""
        if self._teller is None:
            return self._tell(self._redactor.finish())
        last = [
            replace(one, text=one.text if one.is_event else drop_unfinished(one.text))
            for one in self._redactor.finish()
        ]
        told, notes = self._tell([one for one in last if one.text]), tuple(self._teller.conclude())
        return [*told, Told(self.offset, notes)] if notes else told

    def _open(self, start: int) -> LogRedactor:
        return LogRedactor(self._secrets, has_events=self._teller is not None, by_line=True, start=start)

    def _tell(self, found: Sequence[Clean]) -> list[Told]:
        shown = [one for one in found if one.end > self._from]
        # Backends would keep the beginning of a long string only.
        events = iter(clean_events([one.text for one in shown if one.is_event], str, MAX_TEXT))
        told = [
            Told(one.end, tuple(self._teller.tell(next(events)) if self._teller and one.is_event else _quote(one.text)))
            for one in shown
        ]
        # A backend may put strings together.
        texts = iter(redact_each([entry.text for one in told for entry in one.entries], self._clean))
        return [Told(one.end, tuple(_polish(entry.kind, next(texts)) for entry in one.entries)) for one in told]

    def _clean(self, text: str) -> str:
        return redact(drop_colours(text), self._secrets)


def _quote(text: str) -> Iterator[Entry]:
    yield Entry(EntryKind.PLAIN, text)


def _polish(kind: EntryKind, text: str) -> Entry:
    return Entry(kind, show_invisible(shorten(text, MAX_SHOWN)))


def read_transcript(log: bytes, agent: Agent | None, secrets: Collection[str]) -> list[Entry]:
    """A whole log as people read it."""
    transcript = LiveTranscript(agent, secrets)
    return join_plain([*transcript.feed(log), *transcript.finish()])


def join_plain(told: Sequence[Told]) -> list[Entry]:
    """What was told, with lines of plain text that follow each other as one entry."""
    entries: list[Entry] = []
    for entry in (entry for one in told for entry in one.entries):
        if entries and entry.kind is EntryKind.PLAIN is entries[-1].kind:
            entries[-1] = replace(entry, text=entries[-1].text + entry.text)
        else:
            entries.append(entry)
    return [entry for entry in map(_strip, entries) if entry.text.strip() or entry.kind is not EntryKind.PLAIN]


def _strip(entry: Entry) -> Entry:
    return replace(entry, text=entry.text.strip("\n")) if entry.kind is EntryKind.PLAIN else entry
