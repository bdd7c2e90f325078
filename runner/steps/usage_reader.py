"""Reads the events in the logs of running agents, each byte once, and counts their usage.

After a restart, it reads the spool again from the beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from runner.agents import Agent
from runner.agents.events import GOES_ON, Tally
from runner.agents.prices import Price, compute_cost, find_price
from runner.model.job import Job
from runner.model.meter import Meter
from runner.model.usage import Usage
from runner.steps.spool import Spool

CHUNK = 262_144
"""The bytes that are read at once."""

MAX_LINE = 4_000_000
"""The longest line that is parsed. No backend prints a longer one, but a tool's output might be longer."""

MAX_TOOL = 80

READING_THREADS = 2


@dataclass(slots=True)
class _Place:
    """The position in a log."""

    grew_at: datetime
    offset: int = 0
    rest: bytes = b""
    """The beginning of an unfinished line."""
    tally: Tally = field(default_factory=Tally)


class UsageReader:
    """Reads the usage of all jobs of the service. `read_aside` updates that of one job.

    It has threads of its own, because an agent can write a log that takes a minute to read. A job gets a thread
    for one piece of its log at a time, and then waits for its next turn.
    """

    def __init__(self, spool: Spool, prices: Mapping[str, Price], now: Callable[[], datetime]) -> None:
        self._spool = spool
        self._prices = prices
        self._now = now
        self._threads = ThreadPoolExecutor(READING_THREADS, "usage")
        self._places: dict[str, _Place] = {}
        self._noted: dict[str, set[str]] = {}

    async def read_aside(self, job: Job, agent: Agent, *, whole: bool = False) -> tuple[Tally, Meter, float]:
        """Like `read`, in threads."""
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        while await in_thread(self._read_piece, job, agent):
            pass
        return await in_thread(partial(self.read, job, agent, whole=whole))

    def read(self, job: Job, agent: Agent, *, whole: bool = False) -> tuple[Tally, Meter, float]:
        """The events so far, the usage so far, and the seconds since the last event.

        `whole` means that the log is complete, so that its last line counts even without a line end.
        """
        while self._read_piece(job, agent):
            pass
        now, place = self._now(), self._find_place(job)
        if whole and place.rest:
            self._fold(place, b"\n", agent)
        return place.tally, self._describe(job, agent, place, now), (now - place.grew_at).total_seconds()

    def is_first(self, job_id: str, what: str) -> bool:
        """Whether this happens to a job for the first time. A restart forgets."""
        noted = self._noted.setdefault(job_id, set())
        is_first = what not in noted
        noted.add(what)
        return is_first

    def forget(self, job_id: str) -> None:
        """Drop the state of an ended job."""
        self._places.pop(job_id, None)
        self._noted.pop(job_id, None)

    def _find_place(self, job: Job) -> _Place:
        return self._places.setdefault(job.id, _Place(self._now()))

    def _read_piece(self, job: Job, agent: Agent) -> bool:
        """Read the next piece of the log. False if there is none."""
        place = self._find_place(job)
        chunk = self._spool.read_from(job.id, "agent", place.offset, CHUNK)
        place.offset += len(chunk)
        if chunk:
            self._fold(place, chunk, agent)
        return bool(chunk)

    def _fold(self, place: _Place, chunk: bytes, agent: Agent) -> None:
        *lines, rest = (place.rest + chunk).split(b"\n")
        place.rest = rest if len(rest) < MAX_LINE else b""
        for line in lines:
            if line == GOES_ON.encode():
                place.tally, place.grew_at = place.tally.go_on(), self._now()
                continue
            events = agent.read_line(line.decode(errors="replace"))
            place.tally = place.tally.add(events)
            place.grew_at = self._now() if events else place.grew_at

    def _describe(self, job: Job, agent: Agent, place: _Place, now: datetime) -> Meter:
        tally, usage = place.tally, place.tally.usage
        # A cost of 0 means an unknown price: pi reports it for models of the operator.
        said = usage.cost_usd or None
        # The agent may report another name for the requested model.
        models = (tally.model, job.model or agent.spec.model) if said is None else ()
        price = next((price for model in models if (price := find_price(model, self._prices))), None)
        computed = compute_cost(usage, price) if price and usage.tokens else None
        run_s = (now - job.started_at).total_seconds() if job.started_at else 0.0
        run = Usage(jobs=1, turns=tally.turns, run_s=run_s, output_bytes=place.offset)
        return Meter(
            job_id=job.id,
            usage=(run + usage).with_cost(computed if said is None else said),
            model=tally.model or None,
            tool_calls=tally.tool_calls,
            retries=tally.retries,
            unknown_events=tally.unknown,
            cost_is_estimate=said is None and computed is not None,
            is_self_reported=True,
            last_tool=" ".join(tally.last_tool.split())[:MAX_TOOL],
            ending=None,
        )
