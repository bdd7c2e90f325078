"""An installation of many replicas and machines, and everything in it that can break."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncssh

from bot.demo.loopback import ADDRESS, find_free_port
from bot.demo.playground import Playground
from bot.demo.sshd import EmbeddedSshServer, write_keys, write_known_hosts
from runner.jobd.sandbox.processes import kill_processes
from tests.chaos.replica import NO_LIMIT, run_replica
from tests.chaos.wires import Wire
from tests.support.installed import install_program
from tests.support.program import PROCESSES

SLOTS = 2

USUAL_START_S = 5.0
"""How long all replicas take to start on a machine of two cores that does nothing else, in seconds."""


def choose_slowness(start_s: float) -> float:
    """How many times slower than usual everything is to go on a machine on which all replicas start in `start_s`. Pure.

    Where a machine is slow or has other work, claims would expire and replicas would be killed before anything could
    come of it, again and again. So the same things happen there in slow motion.
    """
    return max(1.0, start_s / USUAL_START_S)


AGENT = """
import json, os, pathlib, random, sys, time
def note(what):
    machine = os.environ["PTQ_WORKTREE"].split("/workspace/")[0]
    line = {"job": os.environ["PTQ_JOB_ID"], "what": what, "machine": machine, "at": time.monotonic()}
    with open({notes!r}, "a") as file:
        file.write(json.dumps(line) + "\\n")
note("start")
output = pathlib.Path(os.environ["PTQ_OUTPUT_DIR"])
for number in range(random.randrange(2, 8)):
    print("at work", flush=True)
    time.sleep(0.25)
path = pathlib.Path("widgets/chunks.py")
path.write_text(path.read_text().replace(" - size + 1", ""))
(output / "report.md").write_text("fix staged\\n\\n## Summary\\nIt is fixed.\\n\\n## Root cause\\nAn early end.\\n")
(output / "worklog.md").write_text("looked, found, fixed\\n")
note("end")
"""


class Replica:
    """One process of the service at a time."""

    def __init__(self, name: str, folder: Path, config: Path) -> None:
        self.name = name
        self.port = find_free_port()
        self.data_dir = folder / f"var-{name}"
        self.log = folder / f"{name}.log"
        self._config = config
        public_url = f"http://127.0.0.1:{self.port}"
        own = {"PORT": str(self.port), "DATA_DIR": str(self.data_dir), "PUBLIC_URL": public_url}
        self._environ = {f"PTQ_SERVER__{key}": value for key, value in own.items()}
        self._process: BaseProcess | None = None

    def start(self, slowness: float) -> None:
        arguments = (self._config, self.log, self._environ, slowness)
        self._process = PROCESSES.Process(target=run_replica, args=arguments)
        self._process.start()

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.is_alive()

    @property
    def fell(self) -> bool:
        """Whether it ended though nobody ended it."""
        return self._process is not None and not self._process.is_alive()

    async def wait_until_up(self) -> None:
        """Return once it listens, or has ended."""
        while self.is_up:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(ADDRESS, self.port)
                writer.close()
                return
            await asyncio.sleep(0.05)

    def kill(self, *, with_its_disk: bool) -> None:
        assert self._process
        self._process.kill()
        self._process.join()
        self._process = None
        if with_its_disk:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def signal(self, number: signal.Signals) -> None:
        if self._process and self._process.pid:
            os.kill(self._process.pid, number)


@dataclass(frozen=True)
class Reached:
    """How replicas come to a machine: through a wire."""

    user: str
    port: int
    client_key_file: Path
    known_hosts_file: Path


class Machine:
    """An SSH server of its own, behind a wire."""

    def __init__(self, name: str, folder: Path, draw: random.Random) -> None:
        self.name = name
        self.workspace = folder / "workspace"
        self.server = EmbeddedSshServer(folder / "ssh")
        self.wire = Wire(lambda: [self.server.port], draw)
        self._folder = folder

    async def start(self) -> None:
        install_program(self.workspace)
        await self.server.start()
        await self.wire.start()
        key: asyncssh.SSHKey = write_keys(self._folder / "ssh")
        write_known_hosts(self._folder / "known_hosts", self.wire.port, key)

    async def stop(self) -> None:
        await self.wire.stop()
        await self.server.stop()
        for job in (self.workspace / "jobs").glob("*"):
            await asyncio.to_thread(kill_processes, job.name)

    @property
    def reached(self) -> Reached:
        known_hosts = self._folder / "known_hosts"
        return Reached(self.server.user, self.wire.port, self.server.client_key_file, known_hosts)

    def render(self) -> str:
        quoted = [str(path) for path in (self.reached.client_key_file, self.reached.known_hosts_file, self.workspace)]
        return f"""\
[[machines]]
name = "{self.name}"
host = "127.0.0.1"
port = {self.reached.port}
user = "{self.reached.user}"
client_key_file = "{quoted[0]}"
known_hosts_file = "{quoted[1]}"
slots = {SLOTS}
labels = ["gpu"]
workspace = "{quoted[2]}"
python = "{sys.executable}"
min_free_gb = 0
writable = ["{self._folder.parent / "notes"}"]
"""


UNCAPPED = "".join(f'caps.{scope}.cost_usd = "unlimited"\n' for scope in ("job", "user_day", "repository_month"))


class Arena(Playground):
    """Three replicas, three machines, one database, and GitHub."""

    def __init__(self, folder: Path, *, database_url: str, draw: random.Random, count: int = 3) -> None:
        (folder / "notes").mkdir()
        self.notes = folder / "notes" / "agents.jsonl"
        script = folder / "agent.py"
        script.write_text(AGENT.replace("{notes!r}", repr(str(self.notes))))
        self.machines = [Machine(f"gpu-{number}", folder / f"machine-{number}", draw) for number in range(1, count + 1)]
        super().__init__(
            folder,
            agent=(sys.executable, str(script)),
            database_url=database_url,
            verify_runs=1,
            # Nobody merges any of them here, and one person asks for hundreds of jobs.
            repository_toml=f"max_open_pulls = {NO_LIMIT}\n{UNCAPPED}",
        )
        self.replicas = [Replica(f"replica-{number}", folder, self.config) for number in range(1, count + 1)]
        self.balancer = Wire(lambda: [replica.port for replica in self.replicas if replica.is_up], draw)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for machine in self.machines:
                await machine.start()
                stack.push_async_callback(machine.stop)
            await self.balancer.start()
            stack.push_async_callback(self.balancer.stop)
            await super().__aenter__()
            self._outer = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        await self._outer.aclose()

    async def start_service(self) -> None:
        """Start every replica."""
        self.github.webhook_url = f"http://127.0.0.1:{self.balancer.port}/webhook"
        # What hundreds of jobs need in a few minutes GitHub grants in hours; how that is kept to is another story.
        limits = self.github.limits
        limits.requests_per_hour = limits.content_per_minute = limits.content_per_hour = NO_LIMIT
        self.running = True
        self.slowness = choose_slowness(await self._start_replicas(1.0))
        if self.slowness > 1.0:
            await self.stop_service()
            await self._start_replicas(self.slowness)
        self.github.webhook_timeout_s = 3.0 * self.slowness

    async def _start_replicas(self, slowness: float) -> float:
        """Start all, and return once they listen: how many seconds it took."""
        began = time.monotonic()
        for replica in self.replicas:
            replica.start(slowness)
        for replica in self.replicas:
            await replica.wait_until_up()
            assert not replica.fell, f"it does not start: {replica.log.read_text()}"
        return time.monotonic() - began

    async def stop_service(self) -> None:
        for replica in self.replicas:
            if replica.is_up:
                replica.signal(signal.SIGCONT)
                replica.kill(with_its_disk=False)

    def _render_config(self) -> str:
        text = super()._render_config()
        before, _, rest = text.partition("[[machines]]")
        _, _, after = rest.partition("[repos.")
        machines = "\n".join(machine.render() for machine in self.machines)
        more = "[recovery]\nsweep_max = 1000\n\n[limits]\nunreachable_after_s = 600\n\n"
        repository = after.replace('"-m", "venv", "--without-pip"', '"-c", "import os, sys; os.mkdir(sys.argv[1])"')
        repository = repository.replace('import_names = ["widgets"]\n', "")  # That folder has no Python.
        return f"{before}{machines}\n{more}[repos.{repository}"
