"""The embedded SSH server, beyond what it has in common with OpenSSH's (see tests/runner/test_hosts.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from bot.demo.sshd import EmbeddedSshServer
from runner.transport.host_errors import Unreachable
from runner.transport.hosts import SshHost
from tests.support.machines import machine_behind


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedSshServer]:
    server = EmbeddedSshServer(tmp_path / "ssh")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def host(server: EmbeddedSshServer, tmp_path: Path) -> AsyncIterator[SshHost]:
    host = SshHost(machine_behind(server, tmp_path / "workspace"))
    yield host
    await host.close()


async def test_a_command_runs_in_a_session_of_its_own(host: SshHost) -> None:
    completed = await host.run(["python3", "-c", "import os; print(os.getsid(0) in (os.getpid(), os.getppid()))"])
    assert completed.stdout == b"True\n"


async def test_a_command_sees_nothing_of_the_servers_environment(
    host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTQ_GITHUB__PRIVATE_KEY", "a secret")
    environment = (await host.run(["env"])).stdout
    assert b"HOME=" in environment
    assert b"secret" not in environment


async def test_only_commands_are_served(server: EmbeddedSshServer) -> None:
    options = {"known_hosts": str(server.known_hosts_file), "client_keys": [str(server.client_key_file)]}
    async with asyncssh.connect("127.0.0.1", server.port, config=None, **options) as connection:
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.create_process()
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.start_sftp_client()
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_connection("127.0.0.1", server.port)


async def test_keys_are_for_the_owners_eyes_only(server: EmbeddedSshServer) -> None:
    for key in (server.client_key_file, server.client_key_file.with_name("host_key")):
        assert key.stat().st_mode & 0o777 == 0o600


async def test_stopping_ends_what_still_runs(host: SshHost, server: EmbeddedSshServer, tmp_path: Path) -> None:
    began = tmp_path / "began"
    running = asyncio.create_task(host.run(["sh", "-c", f"echo $$ > {began}; exec sleep 20"]))
    async with asyncio.timeout(10):
        while not began.exists() or not began.read_text():
            await asyncio.sleep(0.01)
        await server.stop()
    with pytest.raises(Unreachable):
        await running
    async with asyncio.timeout(10):
        while is_running(int(began.read_text())):
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


async def test_stopping_a_server_that_never_started_is_fine(tmp_path: Path) -> None:
    await EmbeddedSshServer(tmp_path).stop()


async def test_a_second_start_keeps_port_and_keys(server: EmbeddedSshServer) -> None:
    before = (server.port, server.known_hosts_file.read_bytes(), server.client_key_file.read_bytes())
    await server.stop()
    await server.start()
    assert (server.port, server.known_hosts_file.read_bytes(), server.client_key_file.read_bytes()) == before
