"""Commands on machines: here, behind the embedded SSH server and behind OpenSSH's."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest
import uvloop

from bot.demo.loopback import ADDRESS
from runner.model.completed import Completed
from runner.model.machines import Machine
from runner.transport.host_errors import AccessDenied, HostError, HostKeyMismatch, OutputTooLarge, Unreachable
from runner.transport.hosts import Host, SshHost, open_host
from runner.transport.local_host import LocalHost
from runner.transport.ssh import _read_client_key, _read_known_hosts
from tests.support.machines import SshServer, open_local_host

EVERY_BYTE = bytes(range(256))
MUCH = EVERY_BYTE * 12_000
"""3 MB: more than any window or pipe holds."""


@pytest.fixture
async def host(any_machine: Machine) -> AsyncIterator[Host]:
    host = open_host(any_machine)
    yield host
    await host.close()


@pytest.fixture
async def ssh_host(ssh_machine: Machine) -> AsyncIterator[SshHost]:
    host = SshHost(ssh_machine)
    yield host
    await host.close()


async def fails_to_connect(machine: Machine) -> HostError:
    """The error of a command on a machine that nobody gets into."""
    host = SshHost(machine)
    with pytest.raises(HostError) as caught:
        await host.run(["true"])
    await host.close()
    return caught.value


async def until_exists(path: Path) -> None:
    async with asyncio.timeout(10):
        while not path.exists():
            await asyncio.sleep(0.01)


async def test_a_command_gives_its_outputs_and_its_exit_status(host: Host) -> None:
    completed = await host.run(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (completed.exit_status, completed.stdout, completed.stderr) == (7, b"out\n", b"err\n")


async def test_a_program_that_is_missing_is_told_as_a_shell_tells_it(host: Host) -> None:
    assert (await host.run(["no-such-program"])).exit_status == 127


async def test_arguments_arrive_unchanged(host: Host) -> None:
    arguments = [
        "",
        "two words",
        "'\"`\\",
        "$(id) $HOME ~ *",
        "a\nb\t",
        "ünïcödé ✓",
        "-n",
        "; exit 3",
        "#",
        "!!",
        "\x7f",
    ]
    show = "import sys; sys.stdout.buffer.write('\\0'.join(sys.argv[1:]).encode('utf-8', 'surrogateescape'))"
    completed = await host.run([sys.executable, "-c", show, *arguments])
    assert completed.stdout.decode().split("\0") == arguments


async def test_an_argument_that_no_command_line_can_hold_is_refused(host: Host) -> None:
    with pytest.raises(ValueError, match=r"NUL|null"):
        await host.run(["echo", "a\0b"])


async def test_input_and_output_are_bytes_of_any_kind(host: Host) -> None:
    completed = await host.run(["cat"], stdin=MUCH)
    assert completed.stdout == MUCH


async def test_a_command_need_not_read_its_input(host: Host) -> None:
    assert (await host.run(["true"], stdin=MUCH)).exit_status == 0


async def test_a_command_without_input_sees_its_end_at_once(host: Host) -> None:
    assert (await host.run(["wc", "-c"])).stdout.strip() == b"0"


async def test_a_command_that_a_signal_kills_has_failed(host: Host) -> None:
    # Whether a shell stands between, and tells it in its own way, is up to the machine.
    assert (await host.run(["sh", "-c", "kill -9 $$"])).exit_status in (-signal.SIGKILL, 128 + signal.SIGKILL)


@pytest.mark.parametrize("redirect", ["", " >&2"])
async def test_output_beyond_the_limit_ends_the_command(host: Host, redirect: str) -> None:
    with pytest.raises(OutputTooLarge, match="1000 bytes"):
        await host.run(["sh", "-c", f"yes{redirect}"], max_output_bytes=1000)
    assert (await host.run(["echo", "next"])).stdout == b"next\n"


async def test_output_of_exactly_the_limit_is_allowed(host: Host) -> None:
    assert len((await host.run(["head", "-c", "1000", "/dev/zero"], max_output_bytes=1000)).stdout) == 1000


async def test_a_command_that_takes_too_long_is_given_up(host: Host) -> None:
    await host.run(["true"])
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"within 0\.2 seconds") as caught:
        await host.run(["sleep", "20"], stdin=MUCH, timeout_s=0.2)
    assert time.monotonic() - began < 15
    assert not caught.value.permanent
    assert (await host.run(["echo", "next"])).stdout == b"next\n"


async def test_closing_twice_is_fine(host: Host) -> None:
    await host.run(["true"])
    await host.close()
    await host.close()


# Over SSH


async def test_many_commands_share_one_connection(ssh_host: SshHost, ssh_server: SshServer) -> None:
    runs = await asyncio.gather(*(ssh_host.run(["sh", "-c", f"echo {n}; sleep 0.02"]) for n in range(20)))
    assert [int(run.stdout) for run in runs] == list(range(20))
    assert count_connections(ssh_server) == 1


def count_connections(server: SshServer) -> int:
    """Established TCP connections to a port, by /proc/net/tcp (see proc_net_tcp in the kernel's documentation)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = "01"
    return sum(row[2].endswith(f":{server.port:04X}") and row[3] == established for row in rows)


@pytest.mark.slow
async def test_commands_given_up_leave_no_slot_taken(ssh_host: SshHost) -> None:
    for _ in range(11):  # One more than OpenSSH's MaxSessions.
        with pytest.raises(Unreachable):
            await ssh_host.run(["sleep", "8"], timeout_s=0.1)
    assert (await ssh_host.run(["echo", "next"], timeout_s=5)).stdout == b"next\n"


async def test_a_caller_who_goes_away_harms_nobody_who_comes_later(ssh_host: SshHost) -> None:
    for patience_s in (0.001, 0.01, 0.03, 0.06, 0.1, 0.15):
        with suppress(TimeoutError):
            await asyncio.wait_for(ssh_host.run(["sleep", "1"]), patience_s)
    assert (await ssh_host.run(["echo", "next"])).stdout == b"next\n"


async def test_a_caller_who_goes_away_takes_no_connection_from_who_waits_for_it(ssh_host: SshHost) -> None:
    patient = asyncio.create_task(ssh_host.run(["echo", "served"]))
    with pytest.raises(Unreachable):
        await ssh_host.run(["true"], timeout_s=0.001)
    assert (await patient).stdout == b"served\n"


async def test_a_cut_in_mid_command_is_noticed_and_healed(
    ssh_host: SshHost, ssh_server: SshServer, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    running = asyncio.create_task(ssh_host.run(["sh", "-c", f"touch {began}; sleep 5"]))
    await until_exists(began)
    await ssh_server.cut_connections()
    with pytest.raises(Unreachable, match="lost"):
        await running
    assert (await ssh_host.run(["echo", "next"])).stdout == b"next\n"


async def test_what_has_detached_itself_outlives_the_connection(
    ssh_host: SshHost, ssh_server: SshServer, tmp_path: Path
) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    job = f"touch {began}; sleep 0.5; touch {ended}"
    completed = await ssh_host.run(["sh", "-c", 'setsid sh -c "$1" </dev/null >/dev/null 2>&1 &', "sh", job])
    assert completed.exit_status == 0
    await until_exists(began)
    await ssh_server.cut_connections()
    assert not ended.exists()
    await until_exists(ended)


async def test_what_has_not_detached_itself_loses_its_streams(
    ssh_host: SshHost, ssh_server: SshServer, tmp_path: Path
) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    speaker = f"trap '' PIPE; touch {began}; while echo hello; do sleep 0.01; done; touch {ended}"
    speaking = asyncio.create_task(ssh_host.run(["sh", "-c", speaker]))
    await until_exists(began)
    await ssh_server.cut_connections()
    with pytest.raises(Unreachable):
        await speaking
    await until_exists(ended)


async def test_a_server_that_restarts_is_found_again(ssh_host: SshHost, ssh_server: SshServer) -> None:
    assert (await ssh_host.run(["echo", "before"])).stdout == b"before\n"
    await ssh_server.stop()
    with pytest.raises(Unreachable):
        await ssh_host.run(["echo", "meanwhile"])
    await ssh_server.start()
    assert (await ssh_host.run(["echo", "after"])).stdout == b"after\n"


async def test_a_wrong_host_key_lets_nothing_through(ssh_server: SshServer, ssh_machine: Machine) -> None:
    for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256"):  # Of the server's own kind, and of one that it lacks.
        stranger = asyncssh.generate_private_key(kind).export_public_key()
        ssh_server.known_hosts_file.write_bytes(f"[{ADDRESS}]:{ssh_server.port} ".encode() + stranger)
        error = await fails_to_connect(ssh_machine)
        assert isinstance(error, HostKeyMismatch)
        assert error.permanent


async def test_a_host_that_known_hosts_does_not_name_is_refused(ssh_server: SshServer, ssh_machine: Machine) -> None:
    ssh_server.known_hosts_file.write_bytes(b"")
    assert isinstance(await fails_to_connect(ssh_machine), HostKeyMismatch)


async def test_no_known_hosts_file_means_no_connection(ssh_machine: Machine) -> None:
    for missing in (None, Path("/nowhere/known_hosts")):
        error = await fails_to_connect(replace(ssh_machine, known_hosts_file=missing))
        assert isinstance(error, HostKeyMismatch)
        assert "cannot be read" in str(error)


async def test_a_wrong_client_key_is_told_as_such(ssh_machine: Machine, tmp_path: Path) -> None:
    key = tmp_path / "other_key"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(key))
    error = await fails_to_connect(replace(ssh_machine, client_key_file=key))
    assert isinstance(error, AccessDenied)
    assert error.permanent


async def test_a_client_key_that_cannot_be_read_is_told_as_such(ssh_machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "garbage").write_text("no key")
    for unusable in (None, tmp_path / "nowhere", tmp_path / "garbage"):
        error = await fails_to_connect(replace(ssh_machine, client_key_file=unusable))
        assert isinstance(error, AccessDenied)
        assert str(tmp_path) not in str(error)


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("read", [_read_known_hosts, _read_client_key])
async def test_a_moment_without_a_free_descriptor_is_not_permanent(
    ssh_machine: Machine, read: Callable[[Machine], object]
) -> None:
    with no_free_descriptor(), pytest.raises(Unreachable, match="too many open files") as caught:
        read(ssh_machine)
    assert not caught.value.permanent


async def test_nothing_of_the_operators_own_set_up_is_used(
    ssh_server: SshServer, ssh_machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / ".ssh"
    home.mkdir(parents=True)
    (home / "config").write_text("Host *\n  Port 1\n  User nobody\n  ProxyCommand false\n")
    (home / "known_hosts").write_bytes(ssh_server.known_hosts_file.read_bytes())
    (home / "id_ed25519").write_bytes(ssh_server.client_key_file.read_bytes())
    (home / "id_ed25519").chmod(0o600)
    monkeypatch.setenv("HOME", str(home.parent))
    host = SshHost(ssh_machine)
    assert (await host.run(["echo", "reached"])).stdout == b"reached\n"
    await host.close()
    (tmp_path / "known_hosts").touch()
    error = await fails_to_connect(replace(ssh_machine, known_hosts_file=tmp_path / "known_hosts"))
    assert isinstance(error, HostKeyMismatch)
    assert isinstance(await fails_to_connect(replace(ssh_machine, client_key_file=None)), AccessDenied)


async def test_a_port_where_nobody_listens_is_unreachable_and_no_address_is_told(ssh_machine: Machine) -> None:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        error = await fails_to_connect(replace(ssh_machine, port=probe.getsockname()[1]))
    assert isinstance(error, Unreachable)
    assert not error.permanent
    assert "connection refused" in str(error)
    assert ADDRESS not in str(error)


async def test_a_name_that_nobody_knows_is_unreachable(ssh_machine: Machine) -> None:
    error = await fails_to_connect(replace(ssh_machine, host="no-such-host.invalid"))
    assert isinstance(error, Unreachable)
    assert "invalid" not in str(error)


async def test_a_port_that_accepts_and_says_nothing_costs_no_more_than_the_time_out(ssh_machine: Machine) -> None:
    with socket.create_server((ADDRESS, 0)) as mute:
        host = SshHost(replace(ssh_machine, port=mute.getsockname()[1]))
        with pytest.raises(Unreachable):
            await host.run(["true"], timeout_s=0.2)
        await host.close()


async def test_whoever_waits_for_a_connection_that_is_closed_is_told_and_not_cancelled(ssh_machine: Machine) -> None:
    with socket.create_server((ADDRESS, 0)) as mute:
        host = SshHost(replace(ssh_machine, port=mute.getsockname()[1]))
        asking = asyncio.create_task(host.run(["true"]))
        beginning = asyncio.create_task(host.begin(["true"]))
        leaving = asyncio.create_task(host.run(["true"]))
        await asyncio.sleep(0.1)
        leaving.cancel()
        await host.close()
        for told in (asking, beginning):
            with pytest.raises(Unreachable, match="closed"):
                await told
        with pytest.raises(asyncio.CancelledError):
            await leaving


async def test_a_failed_connection_is_not_remembered(ssh_server: SshServer, ssh_host: SshHost) -> None:
    await ssh_server.stop()
    for _ in range(2):
        with pytest.raises(Unreachable):
            await ssh_host.run(["true"])
    await ssh_server.start()
    assert (await ssh_host.run(["true"])).exit_status == 0


async def test_addresses_and_commands_stay_out_of_the_log(
    ssh_machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    host = SshHost(ssh_machine)
    await host.run(["echo", "a secret"])
    await host.close()
    assert "secret" not in caplog.text
    assert ADDRESS not in caplog.text


# Right here


async def test_a_local_command_sees_none_of_the_services_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTQ_GITHUB__PRIVATE_KEY", "a secret")
    environment = (await LocalHost().run(["env"])).stdout
    assert b"PATH=" in environment
    assert b"secret" not in environment


async def test_a_local_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(Unreachable):
        await LocalHost().run(["sh", "-c", f"sleep 20 & echo $! $$ > {pids}; wait"], timeout_s=0.3)
    async with asyncio.timeout(15):
        while any(is_alive(int(pid)) for pid in pids.read_text().split()):
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_a_machine_names_the_place_where_its_commands_run(tmp_path: Path) -> None:
    assert isinstance(open_host(Machine("here", str(tmp_path), kind="local")), LocalHost)
    assert isinstance(open_host(Machine("gpu-1", str(tmp_path), host=ADDRESS)), SshHost)


def test_a_command_that_does_not_wait_for_its_input_is_heard_also_by_a_busy_uvloop() -> None:
    async def run_while_busy() -> Completed:
        loop = asyncio.get_running_loop()

        def be_busy() -> None:
            time.sleep(0.02)
            loop.call_soon(be_busy)

        be_busy()
        async with open_local_host() as host:
            return await host.run(["/bin/sh", "-c", "exec 0<&-; echo out"], stdin=b"in")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run_while_busy()).stdout == b"out\n"


@pytest.mark.slow
async def test_a_forwarded_connection_that_nobody_reads_sends_little_ahead(ssh_host: SshHost) -> None:
    over, sent = asyncio.Event(), 0
    with tempfile.TemporaryDirectory() as folder:  # A socket's path has to be short.
        listening = await ssh_host.listen(f"{folder}/s", lambda _: over.wait())  # type: ignore[arg-type, return-value]
        _, writer = await asyncio.open_unix_connection(f"{folder}/s")
        with suppress(TimeoutError):
            while sent < 8 * 2**20:
                writer.write(bytes(2**16))
                async with asyncio.timeout(2):
                    await writer.drain()
                sent += 2**16
        over.set()
        writer.transport.abort()  # To be closed, it would first send what nobody reads.
        listening.close()
    assert 2**17 < sent < 2 * 2**20
