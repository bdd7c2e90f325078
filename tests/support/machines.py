"""Machines for tests: one behind the embedded SSH server, one behind OpenSSH's sshd. Both run commands right here."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from bot.demo.loopback import ADDRESS
from bot.demo.sshd import EmbeddedSshServer
from runner.model.machines import Machine
from runner.transport.local_host import LocalHost
from tests.support.sshd import OpenSshServer, find_sshd

OPENSSH = pytest.param("openssh", marks=pytest.mark.sshd)


class SshServer(Protocol):
    """What both servers have in common."""

    client_key_file: Path
    known_hosts_file: Path
    user: str
    port: int

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def cut_connections(self) -> None: ...


def machine_behind(server: SshServer, workspace: Path, **changes: Any) -> Machine:
    """The machine that a running server stands for."""
    fields: dict[str, Any] = {
        "name": "gpu-1",
        "workspace": str(workspace),
        "host": ADDRESS,
        "port": server.port,
        "user": server.user,
        "client_key_file": server.client_key_file,
        "known_hosts_file": server.known_hosts_file,
        "python": sys.executable,
    }
    return Machine(**(fields | changes))


@asynccontextmanager
async def open_local_host() -> AsyncIterator[LocalHost]:
    """The test's own machine; nothing that began there is left."""
    host = LocalHost()
    try:
        yield host
    finally:
        await host.close()


def open_server(kind: str, folder: Path) -> SshServer:
    """A server of kind `embedded` or `openssh`, not yet started.

    Skips the test where OpenSSH is not installed, or fails it where `PTQ_TEST_REQUIRE_SSHD` says so.
    """
    if kind == "embedded":
        return EmbeddedSshServer(folder)
    return OpenSshServer(folder, find_or_skip_sshd())


def find_or_skip_sshd() -> Path:
    """Where OpenSSH's server is. Skips the test, or fails it, as `open_server` says."""
    program = find_sshd()
    if program is None:
        (pytest.fail if os.environ.get("PTQ_TEST_REQUIRE_SSHD") == "1" else pytest.skip)("OpenSSH's sshd is missing")
    return program


@asynccontextmanager
async def open_sshd(folder: Path) -> AsyncIterator[OpenSshServer]:
    """OpenSSH's server of an installation's machine: all that is the machine's lies in one folder."""
    machine = folder / "machine"
    (machine / "account").mkdir(parents=True)
    server = OpenSshServer(machine / "sshd", find_or_skip_sshd(), machine / "account")
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture(params=["embedded", OPENSSH])
async def ssh_server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SshServer]:
    """A running SSH server, of either kind."""
    server = open_server(request.param, tmp_path / "ssh")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def ssh_machine(ssh_server: SshServer, tmp_path: Path) -> Machine:
    """A machine behind that server, with an empty workspace."""
    return machine_behind(ssh_server, tmp_path / "workspace")


@pytest.fixture(params=["local", "embedded", OPENSSH])
async def any_machine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Machine]:
    """A machine of every kind: this one, and one behind each SSH server."""
    if request.param == "local":
        yield Machine("here", str(tmp_path / "workspace"), kind="local", python=sys.executable)
        return
    server = open_server(request.param, tmp_path / "ssh")
    await server.start()
    yield machine_behind(server, tmp_path / "workspace")
    await server.stop()
