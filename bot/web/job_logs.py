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
from dataclasses import dataclass
from functools import lru_cache

from bot.web.turns import run_for_page
from handlers.text.live_transcript import LiveTranscript, join_plain
from handlers.text.log_redactor import MAX_HELD, LogRedactor
from handlers.text.transcript import Entry, EntryKind
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

MARGIN = MAX_HELD
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
        return self._draw(self._name_agent(job, stage), log, stage == GROWING.get(job.state))

    def open_transcript(self, job: Job, stage: str, start: int) -> LiveTranscript:
        """The log as it is read while it grows, from an offset on."""
        return LiveTranscript(self._agents.get(self._name_agent(job, stage)), self._secrets, start)

    def clean(self, log: End) -> str:
        """The log as the machine gave it, but for secrets, colours and what nobody sees."""
        return self._clean(log, LogRedactor(self._secrets), grows=False)

    def _clean(self, log: End, redactor: LogRedactor, *, grows: bool) -> str:
        found = redactor.feed(log.data) + ([] if grows else redactor.finish())
        text = "".join(show_invisible(one.text) for one in found)
        return LEFT_OUT + text[MARGIN:] if log.start else text

    def _name_agent(self, job: Job, stage: str) -> str:
        """The one whose log this is; empty where it is no agent's."""
        return job.agent if stage == "agent" else ""

    def _draw_anew(self, agent_name: str, log: End, grows: bool) -> Drawn:
        """Events where its agent tells them, or else its text."""
        agent = self._agents.get(agent_name)
        if agent is None or not agent.speaks:
            redactor = LogRedactor(self._secrets, start=log.start)
            text = self._clean(log, redactor, grows=grows)
            return Drawn([Entry(EntryKind.PLAIN, text)] if text else [], redactor.offset if grows else None)
        transcript = LiveTranscript(agent, self._secrets, log.start)
        entries = join_plain(transcript.feed(log.data) + ([] if grows else transcript.finish()))
        cut = [Entry(EntryKind.PLAIN, LEFT_OUT)] if log.start else []
        return Drawn([*cut, *entries], transcript.offset if grows else None)


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
