"""An installation whose service is a process of its own, and whoever looks after it: the outside, which survives."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bot.demo.playground import Playground
from tests.crash import service
from tests.crash.points import Point, read_logbook

PATIENCE_S = 40.0

# Every start of the program would otherwise read its many modules anew, which takes longer than the story.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([service.__name__])


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
        self.process = PROCESSES.Process(target=service.main, args=arguments, name=self.name)
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
        except FileNotFoundError:
            return False
        return text.rpartition(")")[2].split()[0] == "T"

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
    """At which points the service is killed, one after the other, and how far that has come."""

    waiting: list[Point] = field(default_factory=list)
    killed_at: list[Point] = field(default_factory=list)


class Installation(Playground):
    """A playground with one service, which is killed at points and started again each time, as systemd would."""

    def __init__(self, folder: Path, *, agent: Path, database_url: str, points: list[Point]) -> None:
        super().__init__(folder, agent=(sys.executable, str(agent)))
        self.fate = Fate([*points])
        self.replica = Replica(self.config, folder, {"PTQ_SERVER__DATABASE_URL": database_url})
        self._minding: asyncio.Task[None] | None = None
        self._is_ending = False

    async def start_service(self) -> None:
        """Start the service, and look after it from now on."""
        self.github.webhook_url = f"http://127.0.0.1:{self.service_port}/webhook"
        self._begin()
        self._minding = asyncio.create_task(self._mind())
        await self.wait_for(self._answers, "the service to answer")

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
        self.replica.signal(signal.SIGTERM)
        minding = self._minding
        await self.wait_for(lambda: not (self._is_ending and minding and not minding.done()), "the service to end")
        return self._is_ending

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

    def _begin(self) -> None:
        self.replica.start(self.fate.waiting[0] if self.fate.waiting else None)

    async def _mind(self) -> None:
        while self.replica.exit_status is None:
            await asyncio.sleep(0.01)
            if self.replica.is_stopped:
                self.replica.kill()
                self.fate.killed_at.append(self.fate.waiting.pop(0))
                self._begin()
                self._is_ending = False
        status = self.replica.exit_status
        assert self._is_ending, f"the service ended by itself: {status}"
        assert status == 0, f"the service stopped with {status}"

    def _answers(self) -> bool:
        try:
            urlopen(f"http://127.0.0.1:{self.service_port}/healthz", timeout=2).close()
        except (URLError, OSError):
            return False
        return True
