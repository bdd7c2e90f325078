"""The logs of jobs on pages: read from their ends, without secrets, and as events where the agent tells them.

To clean a whole log takes about a second of a core, and anybody may ask for one. So one is cleaned at a time, and it is
kept for a while.

Everything in them may have been written by an agent. It refuses to know who may read them.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from bot.web.turns import run_for_page
from handlers.text.live_transcript import LiveTranscript
from handlers.text.log_pieces import cut_pieces
from handlers.text.sanitize import redact
from handlers.text.transcript import Entry, EntryKind, drop_colours, redact_each, redact_log, render_transcript
from runner.agents import Agent
from runner.characters import show_invisible
from runner.db.database import Database
from runner.model.job import Job
from runner.rows import job_rows
from runner.steps.spool import GROWING, Spool

SHOWN_LOG = 200_000
"""Bytes of each log that the page shows, from its end."""

SENT_LOG = 5_000_000
"""Bytes of a log that are sent as it is, from its end."""

MARGIN = 10_000
"""Bytes that are read before these: a secret is found only when it is whole."""

KEPT_BYTES = 32_000_000
"""Bytes of cleaned logs that are kept in memory, those that were asked for last."""

MAX_DRAWN = 32
"""Logs of pages that are remembered as they are drawn: whoever looks at a page looks at it again, and others do."""

MAX_WAITING = 4
"""Requests that may wait for a log to be cleaned; each holds that log."""

LEFT_OUT = "[the beginning is left out]\n"


@dataclass(frozen=True, slots=True)
class End:
    """A log from an offset on."""

    start: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a page shows of a log."""

    entries: Sequence[Entry]
    live_from: int | None
    """The offset from which on its events are to be followed; None for one that will not grow."""


class JobLogs:
    """Reads and draws them. `secrets` are spelled out."""

    def __init__(self, db: Database, spool: Spool, agents: Mapping[str, Agent], secrets: frozenset[str]) -> None:
        self._db = db
        self._spool = spool
        self._agents = agents
        self._secrets = secrets
        self._unpacking = asyncio.Lock()
        self._draw = lru_cache(MAX_DRAWN)(self._draw_anew)
        self._find_settled = lru_cache(MAX_DRAWN)(self._find_settled_anew)

    async def read(self, job: Job, stage: str, last: int) -> End:
        """The end of a stage's log: kept for good when the job has ended, from the spool while it is under way."""
        kept, most = await self.fetch_kept(job.id, stage), last + MARGIN
        start = max((self._spool.offset(job.id, stage) if kept is None else len(kept)) - most, 0)
        data = self._spool.read_from(job.id, stage, start, most) if kept is None else kept[start:]
        return End(start, data)

    async def fetch_kept(self, job_id: str, stage: str) -> bytes | None:
        """The log of a job that has ended."""
        async with self._db.read() as connection:
            compressed = await job_rows.fetch_compressed_log(connection, job_id, stage)
        if compressed is None:
            return None
        async with self._unpacking:  # In a thread, for it takes long, and one at a time, for it takes memory.
            return await run_for_page(zlib.decompress, compressed)

    def draw(self, job: Job, stage: str, log: End) -> Drawn:
        """What a reader sees of a log, clean. One that grows is shown as far as nothing in it can become a secret."""
        if stage != GROWING.get(job.state):
            return Drawn(self._draw(self._name_agent(job, stage), log), None)
        offset = self._find_settled(self._name_agent(job, stage), log)
        shown = replace(log, data=log.data[: offset - log.start])
        drawn = self._draw(self._name_agent(job, stage), shown) if shown.data else ()
        return Drawn(drawn, offset)

    def open_transcript(self, job: Job, stage: str, start: int) -> LiveTranscript:
        """The log as it is read while it grows, from an offset on."""
        return self._open(self._name_agent(job, stage), start)

    def _open(self, agent_name: str, start: int) -> LiveTranscript:
        return LiveTranscript(self._agents.get(agent_name), self._secrets, start)

    def _find_settled_anew(self, agent_name: str, log: End) -> int:
        """The offset up to which nothing in a growing log can become a secret. It may take seconds."""
        transcript = self._open(agent_name, log.start)
        transcript.skip(log.data)
        return transcript.offset

    def clean(self, log: End) -> str:
        """The log as the machine gave it, but for secrets, colours and what nobody sees."""
        text = drop_colours(log.data.decode(errors="replace"))
        pieces = map(self._clean_piece, cut_pieces(text, self._secrets, self._clean_piece))
        return LEFT_OUT + "".join(pieces)[MARGIN:] if log.start else "".join(pieces)

    def _clean_piece(self, text: str) -> str:
        return show_invisible(redact_log(text, self._redact))

    def _name_agent(self, job: Job, stage: str) -> str:
        """The one whose log this is; empty where it is no agent's."""
        return job.agent if stage == "agent" else ""

    def _draw_anew(self, agent_name: str, log: End) -> Sequence[Entry]:
        """Events where its agent tells them, or else its text."""
        agent = self._agents.get(agent_name)
        if agent is None or not agent.speaks:
            return [Entry(EntryKind.PLAIN, self.clean(log))]
        margin = MARGIN if log.start else 0
        entries = render_transcript(log.data.decode(errors="replace"), agent, self._clean_text, margin=margin)
        # All at once, for there may be thousands.
        texts = redact_each([entry.text for entry in entries], self._clean_text)
        shown = [Entry(entry.kind, show_invisible(text)) for entry, text in zip(entries, texts, strict=True)]
        return [Entry(EntryKind.PLAIN, LEFT_OUT), *shown] if margin else shown

    def _clean_text(self, text: str) -> str:
        return self._redact(drop_colours(text))

    def _redact(self, text: str) -> str:
        return redact(text, self._secrets)


class TooMany(Exception):  # noqa: N818 - what is the case
    """Others wait already for their logs."""


class CleanLogs:
    """Cleaned logs by what they were: one that has grown is another."""

    def __init__(self, clean: Callable[[End], str], *, max_waiting: int = MAX_WAITING, most: int = KEPT_BYTES) -> None:
        self._clean = clean
        self._max_waiting = max_waiting
        self._most = most
        self._kept: dict[tuple[bool, bytes], bytes] = {}
        """The longest unused first."""
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def fetch(self, log: End) -> bytes:
        """The log, cleaned, in UTF-8. Raises `TooMany`."""
        key = bool(log.start), (await run_for_page(hashlib.sha256, log.data)).digest()
        if (kept := self._find(key)) is not None:
            return kept
        if self._waiting > self._max_waiting:
            raise TooMany
        self._waiting += 1
        try:
            async with self._turn:
                if (kept := self._find(key)) is None:  # Nobody else has asked for the same.
                    kept = await run_for_page(self._make, log)
                    self._keep(key, kept)
        finally:
            self._waiting -= 1
        return kept

    def _make(self, log: End) -> bytes:
        return self._clean(log).encode()

    def _find(self, key: tuple[bool, bytes]) -> bytes | None:
        if (found := self._kept.pop(key, None)) is not None:
            self._kept[key] = found
        return found

    def _keep(self, key: tuple[bool, bytes], cleaned: bytes) -> None:
        self._kept[key] = cleaned
        while sum(map(len, self._kept.values())) > self._most:
            del self._kept[next(iter(self._kept))]
