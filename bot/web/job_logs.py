"""Renders the logs of jobs for pages: the end of each log, redacted. A log of known events is shown as entries.

Redacting a whole log takes about a second of CPU, and anybody can request one. So only one raw log is redacted at a
time, and the result is cached.

All content is untrusted: an agent may have written it.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from cachetools import LRUCache

from bot.web.auth.page_queue import run_for_page
from bot.web.dashboard.prose import MAX_PROSE
from handlers.text.live_transcript import LiveTranscript, join_plain
from handlers.text.log_redactor import MAX_HELD, LogRedactor
from handlers.text.stage_log import drop_marks, fold_runs
from handlers.text.transcript import Entry, EntryKind
from runner.agents import Agent
from runner.characters import show_invisible
from runner.db.database import Database
from runner.model.job import Job, JobState
from runner.model.jobd_answers import Worklog
from runner.rows import job_rows
from runner.steps.spool import AGENT, GROWING, Spool

SHOWN_LOG = 200_000
"""The bytes at the end of each log that the page shows."""

SENT_LOG = 5_000_000
"""The bytes at the end of a raw log that are sent."""

MARGIN = MAX_HELD
"""The bytes that are read in addition, before the shown or sent bytes. A secret is found only if it is complete."""

KEPT_BYTES = 32_000_000
"""The most bytes of redacted logs in the cache."""

MAX_DRAWN = 32
"""The most rendered logs in the cache. There is a cache because pages are often reloaded."""

MAX_WAITING = 4
"""The most requests that wait for a log to be redacted. Each waiting request holds its log in memory."""

SHOWN_WORKLOG = MAX_PROSE
"""The most characters at the end of a running agent's worklog that are shown."""

LEFT_OUT = "[the beginning is left out]\n"


@dataclass(frozen=True, slots=True)
class LogTail:
    """A log from an offset to its end."""

    start: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RenderedLog:
    """A log as a page shows it."""

    entries: Sequence[Entry]
    live_from: int | None
    """The offset from which the live stream continues. None if the log will not grow."""


@dataclass(frozen=True, slots=True)
class ShownWorklog:
    """A worklog as a page shows it, redacted."""

    text: str
    is_cut: bool = False
    """Whether the beginning of the worklog is left out."""


class JobLogs:
    """Reads and renders logs. `secrets` are the exact texts to remove."""

    def __init__(self, db: Database, spool: Spool, agents: Mapping[str, Agent], secrets: frozenset[str]) -> None:
        self._db = db
        self._spool = spool
        self._agents = agents
        self._secrets = secrets
        self._unpacking = asyncio.Lock()
        self._draw = lru_cache(MAX_DRAWN)(self._render)
        self._draw_worklog = lru_cache(MAX_DRAWN)(self._render_worklog)

    async def read(self, job: Job, stage: str, last: int) -> LogTail:
        """The end of a stage's log: from the database if the job has ended, otherwise from the spool."""
        kept, most = await self.fetch_kept(job.id, stage), last + MARGIN
        start = max((self._spool.offset(job.id, stage) if kept is None else len(kept)) - most, 0)
        data = self._spool.read_from(job.id, stage, start, most) if kept is None else kept[start:]
        return LogTail(start, data)

    async def fetch_kept(self, job_id: str, stage: str) -> bytes | None:
        """The stored log of an ended job. None if no log of this stage is stored."""
        async with self._db.read() as connection:
            compressed = await job_rows.fetch_compressed_log(connection, job_id, stage)
        if compressed is None:
            return None
        # Unpacking takes long, so a thread does it. It takes memory, so only one log is unpacked at a time.
        async with self._unpacking:
            return await run_for_page(zlib.decompress, compressed)

    def draw(self, job: Job, stage: str, log: LogTail) -> RenderedLog:
        """Render a log, redacted. A growing log is shown up to the point where a secret could begin."""
        return self._draw(job.agent, stage, log, stage == GROWING.get(job.state))

    def open_transcript(self, job: Job, stage: str, start: int) -> LiveTranscript:
        """The transcript of a growing log from an offset on."""
        return self._open(job.agent, stage, start)

    def _open(self, agent_name: str, stage: str, start: int) -> LiveTranscript:
        agent = self._agents.get(agent_name) if stage == AGENT else None
        return LiveTranscript(agent, self._secrets, start, is_jobds=stage != AGENT)

    def clean(self, log: LogTail) -> str:
        """The raw log without secrets, colours and invisible characters."""
        return self._clean(log, LogRedactor(self._secrets), grows=False)

    def draw_worklog(self, job: Job, worklog: Worklog) -> ShownWorklog:
        """The end of a worklog, redacted. A growing worklog is shown up to the point where a secret could begin."""
        return self._draw_worklog(worklog, job.state is JobState.RUNNING)

    def _render_worklog(self, worklog: Worklog, grows: bool) -> ShownWorklog:
        redactor = LogRedactor(self._secrets)
        found = redactor.feed(worklog.text.encode(errors="replace")) + ([] if grows else redactor.finish())
        text = "".join(one.text for one in found)
        if worklog.is_cut:
            # A secret is found only if it is complete, and a secret may begin in the part that is missing.
            text = text.encode()[MARGIN:].decode(errors="ignore")
        elif len(text) <= SHOWN_WORKLOG:
            return ShownWorklog(text)
        end = text[-SHOWN_WORKLOG:]
        return ShownWorklog(end.partition("\n")[2] or end, is_cut=True)

    def _clean(self, log: LogTail, redactor: LogRedactor, *, grows: bool) -> str:
        found = redactor.feed(log.data) + ([] if grows else redactor.finish())
        text = "".join(show_invisible(drop_marks(one.text)) for one in found)
        return LEFT_OUT + text[MARGIN:] if log.start else text

    def _render(self, agent_name: str, stage: str, log: LogTail, grows: bool) -> RenderedLog:
        """The entries of the log, or its text if the agent has no events."""
        agent = self._agents.get(agent_name)
        if stage == AGENT and (agent is None or not agent.speaks):
            redactor = LogRedactor(self._secrets, start=log.start)
            text = self._clean(log, redactor, grows=grows)
            return RenderedLog([Entry(EntryKind.PLAIN, text)] if text else [], redactor.offset if grows else None)
        transcript = self._open(agent_name, stage, log.start)
        entries = join_plain(transcript.feed(log.data) + ([] if grows else transcript.finish()))
        if not grows:
            entries = [*fold_runs(entries)]
        cut = [Entry(EntryKind.PLAIN, LEFT_OUT)] if log.start else []
        return RenderedLog([*cut, *entries], transcript.offset if grows else None)


class TooMany(Exception):  # noqa: N818 - what is the case
    """Too many requests already wait for their logs."""


class CleanLogs:
    """Caches redacted logs by content, so a log that has grown gets a new entry."""

    def __init__(
        self, clean: Callable[[LogTail], str], *, max_waiting: int = MAX_WAITING, most: int = KEPT_BYTES
    ) -> None:
        self._clean = clean
        self._max_waiting = max_waiting
        self._kept: LRUCache[tuple[bool, bytes], bytes] = LRUCache(most, getsizeof=len)
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def fetch(self, log: LogTail) -> bytes:
        """The redacted log in UTF-8. Raises `TooMany`."""
        key = bool(log.start), (await run_for_page(hashlib.sha256, log.data)).digest()
        if (kept := self._kept.get(key)) is not None:
            return kept
        if self._waiting > self._max_waiting:
            raise TooMany
        self._waiting += 1
        try:
            async with self._turn:
                if (kept := self._kept.get(key)) is None:  # No other request has cleaned it meanwhile.
                    kept = await run_for_page(self._make, log)
                    with suppress(ValueError):  # It is too large for the cache.
                        self._kept[key] = kept
        finally:
            self._waiting -= 1
        return kept

    def _make(self, log: LogTail) -> bytes:
        return self._clean(log).encode()
