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
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from sqlalchemy import event, select
from structlog.testing import capture_logs

from handlers.context import Context
from handlers.inbox.inbox import MAX_ATTEMPTS, MAX_LONE_DEATHS, SUSPECT_DEATHS, Inbox
from handlers.ports import GitHub
from runner.db.schema import deliveries
from tests.support.clock import Clock
from tests.support.examples import TIMEOUT_S, choose_examples
from tests.support.jobs import open_database

LANES = ("octo/widgets#1", "octo/widgets#2", "octo/widgets#1/cancel")


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
        self.broken = list[str]()
        self.router = Router()
        self.router.add(self.work, "issues", action="labeled")
        self.runner.run(self.start())

    async def start(self) -> None:
        self.stack.enter_context(capture_logs())
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.database = await self.stack.enter_async_context(open_database(Path(folder)))
        # Nobody pulls the plug here.
        event.listen(self.database.engine.sync_engine, "connect", lambda it, _: it.execute("PRAGMA synchronous=OFF"))
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

    # With one crash more, a delivery would be taken for the cause of them, and set aside.
    @precondition(lambda self: self.crashes < SUSPECT_DEATHS + MAX_LONE_DEATHS - 1)
    @rule(at=st.sampled_from(["before", "after"]))
    def pass_and_crash(self, at: str) -> None:
        """End while deliveries are in hand, before or after they have had their effect, but before that is recorded."""

        async def run() -> None:
            self.parks_at = at
            before = asyncio.all_tasks()
            await self.inbox.step(self.context)
            for _ in range(1000):
                at_work = asyncio.all_tasks() - before
                if len(at_work) <= len(self.at_work):
                    break
                await asyncio.sleep(0.001)
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await self.inbox.stop()
            self.parks_at = ""
            self.crashes += 1
            self.inbox = Inbox(self.database, self.router, self.clock)
            await self.inbox.begin()

        self.runner.run(run())

    crashes = 0
    parks_at = ""
    """Where a delivery is held until the crash."""

    async def park(self, at: str) -> None:
        if self.parks_at == at:
            await asyncio.Event().wait()

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

    async def work(self, brought: sansio.Event, _context: Context) -> None:
        word = brought.data["word"]
        lane = self.lanes[word]
        self.check_order(word, lane, await self.states())
        self.at_work.add(lane)
        try:
            await self.park("before")
            await asyncio.sleep(0.002)
            self.tried[word] = self.tried.get(word, 0) + 1
            if self.failures[word]:
                self.failures[word] -= 1
                raise RuntimeError("as the test has it")
            self.finished.add(word)
            await self.park("after")
        finally:
            self.at_work.discard(lane)

    def check_order(self, word: str, lane: str, states: dict[str, str]) -> None:
        """Note what must not be; raised here it would be one more failure of a delivery."""
        if lane in self.at_work:
            self.broken.append(f"two at once in {lane}")
        if states[word] != "pending":
            self.broken.append(f"{word} is {states[word]}, and worked again")
        earlier = [*self.lanes][: [*self.lanes].index(word)]
        held_by = [one for one in earlier if self.lanes[one] in (lane, f"{lane}/cancel") and states[one] == "pending"]
        if held_by:
            self.broken.append(f"{word} is worked before {held_by}")

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
        assert self.broken == []
        states = await self.states()
        assert states.keys() == self.lanes.keys()
        for word, state in states.items():
            assert state == ("done" if word in self.finished else "failed")
            assert state == "done" or self.tried[word] >= MAX_ATTEMPTS


TestDeliveries = pytest.mark.slow(pytest.mark.timeout(TIMEOUT_S)(Deliveries.TestCase))
TestDeliveries.settings = choose_examples(15, steps=12)
