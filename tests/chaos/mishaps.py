"""What goes wrong, one thing after the other, as one seed decides; each thing is counted."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import get_args

from github_standin.model.faults import WebhookKind
from tests.chaos.arena import Arena, Machine, Replica
from tests.chaos.replica import CLAIM_S

ERRORS = (500, 502, 503, "lose_answer", "reset")


class Mishaps:
    """Breaks an arena, and repairs what it broke."""

    def __init__(
        self, arena: Arena, draw: random.Random, pause_s: tuple[float, float], note_kill: Callable[[], None]
    ) -> None:
        self._arena = arena
        self._draw = draw
        self._pause_s = pause_s
        self._note_kill = note_kill
        self.counted: Counter[str] = Counter()
        self._mending: set[asyncio.Task[None]] = set()
        self._broken: set[object] = set()

    async def run(self) -> None:
        """Break one thing after the other, until cancelled; then everything is fixed."""
        kinds: Mapping[str, Callable[[], Awaitable[None] | None]] = {
            "replica killed": lambda: self._kill(with_its_disk=False),
            "replica killed, its disk deleted": lambda: self._kill(with_its_disk=True),
            "replica stopped beyond its claims": self._stop,
            "SSH connections cut": self._cut,
            "network stalled beyond every claim": self._stall,
            "sshd restarted": self._restart_sshd,
            "GitHub failed or lost an answer": self._spoil_github,
            "delivery doubled, delayed or dropped": self._spoil_delivery,
        }
        weights = (3, 1, 2, 3, 1, 1, 6, 6)
        try:
            while True:
                await asyncio.sleep(self._draw.uniform(*self._pause_s) * self._arena.slowness)
                (name,) = self._draw.choices([*kinds], weights)
                work = kinds[name]()
                if work is not None:
                    self.counted[name] += 1
                    self._begin(work)
        finally:
            await asyncio.gather(*self._mending)
            self._arena.github.faults.api.clear()
            self._arena.github.faults.webhooks.clear()

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._mending.add(task)
        task.add_done_callback(self._mending.discard)

    def _choose_replica(self) -> Replica | None:
        whole = [replica for replica in self._arena.replicas if replica not in self._broken and replica.is_up]
        return self._draw.choice(whole) if whole else None

    def _choose_machine(self) -> Machine | None:
        whole = [machine for machine in self._arena.machines if machine not in self._broken]
        return self._draw.choice(whole) if whole else None

    async def _while_broken(self, thing: object, seconds: float) -> None:
        self._broken.add(thing)
        await asyncio.sleep(seconds * self._arena.slowness)
        self._broken.discard(thing)

    def _kill(self, *, with_its_disk: bool) -> Awaitable[None] | None:
        replica = self._choose_replica()
        if replica is None:
            return None
        replica.kill(with_its_disk=with_its_disk)
        self._note_kill()

        async def repair() -> None:
            self._broken.add(replica)
            await asyncio.sleep(self._draw.uniform(0.2, 3.0) * self._arena.slowness)
            replica.start(self._arena.slowness)
            # Otherwise it could be killed before it came up, again and again.
            await replica.wait_until_up()
            self._broken.discard(replica)

        return repair()

    def _stop(self) -> Awaitable[None] | None:
        replica = self._choose_replica()
        if replica is None:
            return None
        replica.signal(signal.SIGSTOP)

        async def repair() -> None:
            await self._while_broken(replica, CLAIM_S * self._draw.uniform(1.2, 2.0))
            replica.signal(signal.SIGCONT)

        return repair()

    def _cut(self) -> Awaitable[None] | None:
        machine = self._choose_machine()
        if machine is None:
            return None
        machine.wire.cut()
        return asyncio.sleep(0)

    def _stall(self) -> Awaitable[None] | None:
        machine = self._choose_machine()
        if machine is None:
            return None
        machine.wire.stall()

        async def repair() -> None:
            await self._while_broken(machine, CLAIM_S * self._draw.uniform(1.2, 2.0))
            machine.wire.repair()

        return repair()

    def _restart_sshd(self) -> Awaitable[None] | None:
        machine = self._choose_machine()
        if machine is None:
            return None

        async def restart() -> None:
            self._broken.add(machine)
            await machine.server.stop()
            await self._while_broken(machine, 0.5)
            await machine.server.start()

        return restart()

    def _spoil_github(self) -> Awaitable[None]:
        kind = self._draw.choice(ERRORS)
        times = self._draw.randrange(1, 4)
        method = self._draw.choice(["GET", "POST", "PATCH"])
        self._arena.github.faults.add(method, "*", kind, times=times)  # type: ignore[arg-type]
        return asyncio.sleep(0)

    def _spoil_delivery(self) -> Awaitable[None]:
        kind = self._draw.choice(get_args(WebhookKind))
        self._arena.github.faults.add_webhook("*", kind, delay_s=self._draw.uniform(0.5, 5.0))
        return asyncio.sleep(0)
