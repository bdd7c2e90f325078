"""An installation whose service is a process of its own, and whoever looks after it: the outside, which survives."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from bot.demo.loopback import find_free_port
from bot.demo.playground import Playground
from tests.crash import stoppable
from tests.crash.points import Point, read_logbook
from tests.support.program import PROCESSES

PATIENCE_S = 150.0
"""On a machine that has much else to do, all of this takes long; nothing in it depends on how long."""


@dataclass
class Replica:
    """One process of the service at a time, and what it left behind."""

    config: Path
    folder: Path
    """Where it writes its logbooks, one for each life, and its log."""
    environ: Mapping[str, str]
    """What it is told beside its configuration."""
    name: str = "service"
    lives: int = 0
    process: BaseProcess | None = None

    def start(self, stop_at: Point | None = None) -> None:
        self.lives += 1
        arguments = (self.config, self.logbook(self.lives), stop_at, self.log, self.environ)
        self.process = PROCESSES.Process(target=stoppable.main, args=arguments, name=self.name)
        self.process.start()

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def logbook(self, life: int) -> Path:
        return self.folder / f"{self.name}-{life}.points"

    def points(self, life: int) -> list[Point]:
        """What it did in one of its lives, counted from 1."""
        return read_logbook(self.logbook(life))

    @property
    def is_stopped(self) -> bool:
        """Whether it stands still, by SIGSTOP."""
        assert self.process
        try:
            text = Path(f"/proc/{self.process.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return text.rpartition(")")[2].split()[0] == "T"

    @property
    def is_alive(self) -> bool:
        assert self.process
        return self.process.is_alive()

    @property
    def exit_status(self) -> int | None:
        """None while it lives; negative for a signal."""
        assert self.process
        return self.process.exitcode

    def tail(self) -> str:
        return self.log.read_text()[-4000:]

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.join()

    def signal(self, number: signal.Signals) -> None:
        assert self.process
        assert self.process.pid
        os.kill(self.process.pid, number)


@dataclass
class Fate:
    """The points at which the service is to stop, one after the other, and how far that has come."""

    waiting: list[Point] = field(default_factory=list)
    reached: list[Point] = field(default_factory=list)

    def pass_on(self) -> None:
        self.reached.append(self.waiting.pop(0))


class Installation(Playground):
    """A playground with one service, which is killed at points and started again each time, as systemd would."""

    def __init__(self, folder: Path, *, agent: Path, database_url: str, points: list[Point], **options: Any) -> None:
        options = {"verify_runs": 1, "writable": (str(folder / "signs"),), **options}
        super().__init__(folder, agent=(sys.executable, str(agent)), **options)
        self.fate = Fate([*points])
        self.replica = Replica(self.config, folder, {"PTQ_SERVER__DATABASE_URL": database_url})
        self._minding: asyncio.Task[None] | None = None
        self._is_ending = False
        self._answering_port = self.service_port

    async def start_service(self) -> None:
        """Start the service, and look after it from now on."""
        self.github.webhook_url = f"http://127.0.0.1:{self.service_port}/webhook"
        self._begin()
        self._minding = asyncio.create_task(self._mind())
        await self.wait_for(self.answers, "the service to answer")

    async def stop_service(self) -> None:
        """Look after it no longer, and leave none of it."""
        if self._minding:
            self._minding.cancel()
            with suppress(asyncio.CancelledError):
                await self._minding
        self.replica.kill()

    async def end_service(self) -> bool:
        """Stop it in good order. False when it was killed and started again instead."""
        self._is_ending = True
        self._ask_to_end()
        minding = self._minding
        await self.wait_for(lambda: not (self._is_ending and minding and not minding.done()), "the service to end")
        return self._is_ending

    async def go_on(self) -> bool:
        """Whether something more has happened, now that the story is over."""
        return False

    async def wait_for(self, look: Callable[[], bool], what: str) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not await asyncio.to_thread(look):
            self.check()
            assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
            await asyncio.sleep(0.02)

    def check(self) -> None:
        """Raise what went wrong while it was looked after."""
        if self._minding and self._minding.done():
            self._minding.result()

    def tail(self) -> str:
        """The last that the service wrote."""
        return self.replica.tail()

    def _ask_to_end(self) -> None:
        self.replica.signal(signal.SIGTERM)

    def _begin(self) -> None:
        self.replica.start(self.fate.waiting[0] if self.fate.waiting else None)

    async def _mind(self) -> None:
        while self.replica.exit_status is None:
            await asyncio.sleep(0.01)
            if self.replica.is_stopped:
                self.replica.kill()
                self.fate.pass_on()
                self._begin()
                self._is_ending = False
        self._require_good_end()

    def _require_good_end(self) -> None:
        status = self.replica.exit_status
        assert self._is_ending, f"the service ended by itself: {status}"
        assert status == 0, f"the service stopped with {status}"

    def answers(self) -> bool:
        try:
            urlopen(f"http://127.0.0.1:{self._answering_port}/healthz", timeout=2).close()
        except (URLError, OSError):
            return False
        return True


class Pair(Installation):
    """A second replica takes over from one that stands still, which later goes on as if no time had passed."""

    WEBHOOK_TIMEOUT_S = 1.0
    """GitHub waits for longer, and then does the same as now: nothing."""

    def __init__(self, folder: Path, *, agent: Path, database_url: str, points: list[Point]) -> None:
        super().__init__(folder, agent=agent, database_url=database_url, points=points)
        self._second_port = find_free_port()
        environ = {"PTQ_SERVER__PORT": str(self._second_port), "PTQ_SERVER__DATA_DIR": str(folder / "second")}
        self.second = Replica(self.config, folder, {**self.replica.environ, **environ}, "second")

    async def stop_service(self) -> None:
        """Leave none of both."""
        await super().stop_service()
        if self.second.process:
            self.second.kill()

    async def go_on(self) -> bool:
        """Let the first go on, which is to find that everything is done."""
        if self.fate.reached:
            self._answering_port = self.service_port
            self.replica.signal(signal.SIGCONT)
            await self.wait_for(self.answers, "the first replica to answer again")
        return bool(self.fate.reached)

    async def end_service(self) -> bool:
        """Stop both in good order, the first one first. False when that one came to stand still instead."""
        ended = await super().end_service()
        if ended and self.second.process:
            self.second.signal(signal.SIGTERM)
            await self.wait_for(lambda: not self.second.is_alive, "the second replica to end")
            assert self.second.exit_status == 0, self.second.tail()
        return ended

    def tail(self) -> str:
        """The last that both wrote."""
        return f"{self.replica.tail()}\n{self.second.tail() if self.second.process else ''}"

    def _ask_to_end(self) -> None:
        # Who stands still at its end was asked already: another SIGTERM would be a kill.
        self.replica.signal(signal.SIGCONT if self.replica.is_stopped else signal.SIGTERM)

    async def _mind(self) -> None:
        while self.replica.exit_status is None:
            await asyncio.sleep(0.01)
            if self.replica.is_stopped and self.fate.waiting:
                self.fate.pass_on()
                self._is_ending = False
                self.second.start()
                self.github.webhook_timeout_s = self.WEBHOOK_TIMEOUT_S
                self._answering_port = self._second_port
                self.github.webhook_url = f"http://127.0.0.1:{self._second_port}/webhook"
        self._require_good_end()
