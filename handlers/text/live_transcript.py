"""Converts a log to entries for people, also while it grows. A line appears once no secret can continue after it.

The result does not depend on the pieces in which the log arrives. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from handlers.text.log_redactor import MAX_HELD, Clean, LogRedactor
from handlers.text.sanitize import redact
from handlers.text.stage_log import tell_lines
from handlers.text.transcript import (
    Entry,
    EntryKind,
    Teller,
    clean_events,
    drop_unfinished,
    find_last_lines,
    redact_each,
    shorten,
)
from runner.agents import Agent
from runner.agents.events import GOES_ON, MAX_TEXT
from runner.characters import drop_colours, show_invisible

MAX_SHOWN = 64_000
"""The most characters of one entry. The middle of a longer one is omitted."""


MAX_END = 65_536
"""The bytes of a log's end that are read for its last lines."""


@dataclass(frozen=True, slots=True)
class Told:
    """The entries of one or more whole lines, and the offset in the log at which these lines end."""

    end: int
    entries: tuple[Entry, ...]


class LiveTranscript:
    """One log, fed in pieces. Its entries have no secrets, colours or invisible characters, but HTML is not escaped."""

    def __init__(
        self, agent: Agent | None, secrets: Collection[str], start: int = 0, *, is_jobds: bool = False
    ) -> None:
        """`agent` is the agent that wrote the log, or None if no agent did. `start` is the offset of the first byte.
        `is_jobds` says that the log belongs to a stage of jobd itself, so jobd wrote the marked lines (`stage_log`).

        If a log is not read from its beginning, the first `MAX_HELD` bytes are skipped, because the beginning of a
        secret may be missing.
        """
        self._teller = Teller(agent) if agent and agent.speaks else None
        self._is_jobds = is_jobds
        self._secrets = frozenset(secrets)
        self._from = start + MAX_HELD if start else 0
        self._skips = start > 0
        """Whether the current line began before the start."""
        self._redactor = self._open(start)

    @property
    def offset(self) -> int:
        """The offset after the last entry."""
        return self._redactor.offset

    def feed(self, chunk: bytes) -> list[Told]:
        """Add bytes, and return the new entries."""
        if self._skips:
            half, newline, chunk = chunk.partition(b"\n")
            self._redactor = self._open(self.offset + len(half) + len(newline))
            self._skips = not newline
        return self._tell(self._redactor.feed(chunk))

    def finish(self) -> list[Told]:
        """End the log, and return the remaining entries."""
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
        # Shorten the strings of events here, because backends would keep only the beginning of a long string.
        events = iter(clean_events([one.text for one in shown if one.is_event], str, MAX_TEXT))
        told = [
            Told(one.end, tuple(self._read(next(events) if one.is_event else one.text, is_event=one.is_event)))
            for one in shown
        ]
        # Redact again, because a backend may join strings, and a secret may be in several of them.
        texts = iter(redact_each([entry.text for one in told for entry in one.entries], self._clean))
        return [Told(one.end, tuple(_polish(entry.kind, next(texts)) for entry in one.entries)) for one in told]

    def _read(self, text: str, *, is_event: bool) -> Iterator[Entry]:
        if self._teller and is_event:
            return self._teller.tell(text)
        is_jobds = self._is_jobds or text.rstrip("\n") == GOES_ON
        return tell_lines(text) if is_jobds else iter([Entry(EntryKind.PLAIN, text)])

    def _clean(self, text: str) -> str:
        return redact(drop_colours(text), self._secrets)


def _polish(kind: EntryKind, text: str) -> Entry:
    return Entry(kind, show_invisible(shorten(text, MAX_SHOWN)))


def read_transcript(
    log: bytes, agent: Agent | None, secrets: Collection[str], *, is_jobds: bool = False
) -> list[Entry]:
    """The entries of a whole log."""
    transcript = LiveTranscript(agent, secrets, is_jobds=is_jobds)
    return join_plain([*transcript.feed(log), *transcript.finish()])


def read_last_lines(log: bytes, agent: Agent | None, secrets: Collection[str]) -> str:
    """The last lines of a log, as `find_last_lines` chooses them."""
    start = max(len(log) - MAX_HELD - MAX_END, 0)
    transcript = LiveTranscript(agent, secrets, start)
    return find_last_lines(join_plain([*transcript.feed(log[start:]), *transcript.finish()]))


def join_plain(told: Sequence[Told]) -> list[Entry]:
    """The entries, with consecutive plain lines joined."""
    entries: list[Entry] = []
    for entry in (entry for one in told for entry in one.entries):
        if entries and entry.kind is EntryKind.PLAIN is entries[-1].kind:
            entries[-1] = replace(entry, text=entries[-1].text + entry.text)
        else:
            entries.append(entry)
    return [entry for entry in map(_strip, entries) if entry.text.strip() or entry.kind is not EntryKind.PLAIN]


def _strip(entry: Entry) -> Entry:
    return replace(entry, text=entry.text.strip("\n")) if entry.kind is EntryKind.PLAIN else entry
