"""Whatever comes in whatever order, fails, comes again or is cut off: what the inbox promises holds."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest
from gidgethub import sansio
from gidgethub.routing import Router
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sqlalchemy import select

from handlers.context import Context
from handlers.inbox import MAX_ATTEMPTS, Inbox
from handlers.ports import GitHub
from runner.schema import deliveries
from tests.support.clock import Clock
from tests.support.jobs import open_database

LANES = ("octo/widgets#1", "octo/widgets#2", "octo/widgets#1/cancel")

pytestmark = pytest.mark.slow


class Deliveries(RuleBasedStateMachine):
    """Arrivals, failures, repeats and crashes in any order, over a real database."""

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.clock = Clock()
        self.lanes = dict[str, str]()
        """Of each accepted delivery, in the order in which they came."""
        self.failures = dict[str, int]()
        """How often each will still fail."""
        self.tried = dict[str, int]()
        self.finished = set[str]()
        self.at_work = set[str]()
        self.router = Router()
        self.router.add(self.work, "issues", action="labeled")
        self.runner.run(self.start())

    async def start(self) -> None:
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.database = await self.stack.enter_async_context(open_database(Path(folder)))
        self.context = Context(cast(GitHub, None), self.database, {}, {}, "", (), self.clock, lambda: None)
        self.inbox = Inbox(self.database, self.router, self.clock)

    @rule(lanes=st.lists(st.sampled_from(LANES), min_size=1, max_size=4), failures=st.integers(0, MAX_ATTEMPTS + 1))
    def arrive(self, lanes: list[str], failures: int) -> None:
        async def bring() -> None:
            new = {f"{len(self.lanes) + place}": lane for place, lane in enumerate(lanes)}
            self.lanes |= new
            self.failures |= dict.fromkeys(new, failures)
            assert all(await asyncio.gather(*(self.receive(word) for word in new)))

        self.runner.run(bring())

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        if self.lanes:
            assert not self.runner.run(self.receive(data.draw(st.sampled_from(sorted(self.lanes)))))

    @rule(turns=st.integers(0, 30))
    def pass_and_crash(self, turns: int) -> None:
        """Begin, and end in the middle, as a killed process does: nothing in hand is put down in order."""

        async def run() -> None:
            before = asyncio.all_tasks()
            await self.inbox.step(self.context)
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await self.inbox.stop()
            self.at_work.clear()
            self.inbox = Inbox(self.database, self.router, self.clock)

        self.runner.run(run())

    @rule(seconds=st.integers(0, 5))
    def work_on(self, seconds: int) -> None:
        async def run() -> None:
            await self.inbox.step(self.context)
            await self.inbox.step(self.context)
            await self.inbox.stop()

        self.clock.forward(seconds)
        self.runner.run(run())

    async def receive(self, word: str) -> bool:
        body = json.dumps({"action": "labeled", "word": word}).encode()
        return await self.inbox.receive(f"id-{word}", "issues", self.lanes[word], body)

    async def states(self) -> dict[str, str]:
        async with self.database.read() as connection:
            rows = await connection.execute(select(deliveries.c.id, deliveries.c.state))
            return {row.id.removeprefix("id-"): row.state for row in rows}

    async def work(self, event: sansio.Event, _context: Context) -> None:
        word = event.data["word"]
        lane = self.lanes[word]
        assert lane not in self.at_work, "two at once in a lane"
        self.at_work.add(lane)
        try:
            states = await self.states()
            assert states[word] == "pending", "done, and worked again"
            for earlier, where in self.lanes.items():
                if earlier == word:
                    break
                if where in (lane, f"{lane}/cancel"):
                    assert states[earlier] != "pending", f"{word} is worked before {earlier}"
            self.tried[word] = self.tried.get(word, 0) + 1
            if self.failures[word]:
                self.failures[word] -= 1
                raise RuntimeError("as the test has it")
            self.finished.add(word)
        except AssertionError as error:
            self.broken = error
            raise
        finally:
            self.at_work.discard(lane)

    broken: AssertionError | None = None

    def teardown(self) -> None:
        try:
            if hasattr(self, "inbox"):
                self.runner.run(self.check())
        finally:
            if hasattr(self, "runner"):
                self.runner.run(self.stack.aclose())
                self.runner.close()

    async def check(self) -> None:
        """Each that was accepted comes to its end."""
        for _ in range(200):
            if "pending" not in (await self.states()).values():
                break
            self.clock.forward(10)
            await self.inbox.step(self.context)
            await self.inbox.stop()
        if self.broken:
            raise self.broken
        states = await self.states()
        assert states.keys() == self.lanes.keys()
        for word, state in states.items():
            assert state == ("done" if word in self.finished else "failed")
            assert state == "done" or self.tried[word] >= MAX_ATTEMPTS


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(max_examples=40, stateful_step_count=12, deadline=None)
