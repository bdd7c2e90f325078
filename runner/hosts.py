"""Where bytes go: runs one command on a machine, over SSH or locally, and brings back what it wrote.

It refuses to know what the commands are for. It reads nothing of the operator's own SSH set-up (`~/.ssh`, agent).
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import asyncssh

from runner.machines import Machine

MAX_SESSIONS = 5
"""Commands at once on one connection: OpenSSH's `MaxSessions` is 10, and it frees a slot late."""
SILENCE_S = 15.0
"""A machine that is silent for so long is not there: while we connect, and later when asked for a sign of life."""
SIGNS_OF_LIFE = 3
"""How often it is asked for one within that time."""
CHANNEL_RETRY_S = 0.1
HOST_KEY_KINDS = "+ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,rsa-sha2-256"
"""Accepted after the kinds that known_hosts has: a host with none of those must show its key to be told mismatched."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended. `exit_status` is the negative signal number when a signal killed it."""

    exit_status: int
    stdout: bytes
    stderr: bytes


class HostError(Exception):
    """A machine could not be asked. The message is a clause for people, without addresses, paths or secrets."""

    permanent: ClassVar[bool] = False
    """Whether trying again is useless until an operator has acted."""


class Unreachable(HostError):  # noqa: N818 - says what is the case
    """Refused, unknown, silent for too long, or lost in mid-command: then nobody knows how far the command went."""


class HostKeyMismatch(HostError):  # noqa: N818 - says what is the case
    """The machine is not provably the one that the known_hosts file names."""

    permanent = True


class AccessDenied(HostError):  # noqa: N818 - says what is the case
    """The machine does not accept our user and key, or we have no key."""

    permanent = True


class OutputTooLarge(HostError):  # noqa: N818 - says what is the case
    """The command wrote more than its caller allows; it was cut off."""

    permanent = True


class Host(Protocol):
    """A place where commands run."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        max_output_bytes: int = 64_000_000,
    ) -> Completed:
        """Run one command to its end, which is when it has exited and both its outputs are closed.

        The time-out bounds everything, connecting too. Raises `HostError`, and `ValueError` for an `argv` that
        no command line can hold (a NUL character).
        """

    async def close(self) -> None:
        """Let go of what is held open. Idempotent."""


def open_host(machine: Machine, silence_s: float = SILENCE_S) -> Host:
    """The host behind a machine, which may be silent for so long. Connects on first use."""
    return LocalHost() if machine.kind == "local" else SshHost(machine, silence_s)


class _Output:
    """What a command writes, kept up to a limit, and the moment at which it ends."""

    def __init__(self, max_bytes: int) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._max_bytes = max_bytes

    def add(self, stream: bytearray, data: bytes) -> None:
        if len(self.stdout) + len(self.stderr) + len(data) <= self._max_bytes:
            stream += data
        else:
            self.end(OutputTooLarge(f"a command wrote more than {self._max_bytes} bytes"))

    def end(self, error: HostError | None = None) -> None:
        if self.ended.done():
            return
        if error:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def completed(self, exit_status: int) -> Completed:
        return Completed(exit_status, bytes(self.stdout), bytes(self.stderr))


def _silent_for(timeout_s: float) -> Unreachable:
    return Unreachable(f"it did not answer within {timeout_s:g} seconds")


def _lost() -> Unreachable:
    return Unreachable("the connection was lost in mid-command")


class SshHost:
    """A machine behind SSH: one connection, opened on first use, shared by all commands, reopened after a loss."""

    def __init__(self, machine: Machine, silence_s: float = SILENCE_S) -> None:
        self._machine = machine
        self._silence_s = silence_s
        self._sessions = asyncio.Semaphore(MAX_SESSIONS)
        self._connecting: asyncio.Task[asyncssh.SSHClientConnection] | None = None

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        max_output_bytes: int = 64_000_000,
    ) -> Completed:
        """See `Host`. A time-out costs the connection, and so everything else that runs over it just then.

        OpenSSH keeps the slot of a command whose channel was closed until that command ends by itself; one that
        hangs would hold its slot for good.
        """
        command = shlex.join(argv)
        if "\0" in command:
            raise ValueError("a command line cannot hold a NUL character")
        try:
            async with asyncio.timeout(timeout_s), self._sessions:
                return await self._exchange(command, stdin, max_output_bytes)
        except TimeoutError:
            raise _silent_for(timeout_s) from None

    async def close(self) -> None:
        """End the connection, and with it what still runs over it."""
        connecting, self._connecting = self._connecting, None
        if connecting is None:
            return
        connecting.cancel()
        with suppress(asyncio.CancelledError, HostError):
            connection = await connecting
            connection.close()
            await connection.wait_closed()

    async def _exchange(self, command: str, stdin: bytes, max_output_bytes: int) -> Completed:
        output = _Output(max_output_bytes)
        try:
            channel = await self._open_channel(command, output)
            try:
                with suppress(OSError):  # It may have ended without reading what we send.
                    channel.write(stdin)
                    channel.write_eof()
                await output.ended
            finally:
                channel.abort()
        except asyncio.CancelledError:
            self._give_up_connection()
            raise
        exit_status = channel.get_returncode()
        if exit_status is None:
            # asyncssh ends a session that was killed, or lost, without an exception.
            raise _lost()
        return output.completed(exit_status)

    async def _open_channel(self, command: str, output: _Output) -> asyncssh.SSHClientChannel[bytes]:
        while True:
            connection = await self._connected()
            try:
                channel, _ = await connection.create_session(
                    lambda: _Session(output), command, encoding=None, request_pty=False
                )
                return channel
            except asyncssh.ChannelOpenError as error:
                if error.code == asyncssh.OPEN_REQUEST_SESSION_FAILED:
                    raise Unreachable("it refused to start a command") from error
                # No slot free, or a connection that has just gone: the command was not started in either case.
                await asyncio.sleep(CHANNEL_RETRY_S)
            except (OSError, asyncssh.Error) as error:
                raise _lost() from error

    async def _connected(self) -> asyncssh.SSHClientConnection:
        if self._connecting is None or _is_over(self._connecting):
            self._connecting = asyncio.create_task(_connect(self._machine, self._silence_s))
        # Shielded: others may wait for the same connection when this caller's time is up.
        return await asyncio.shield(self._connecting)

    def _give_up_connection(self) -> None:
        if self._connecting and self._connecting.done() and not _is_over(self._connecting):
            self._connecting.result().abort()
            self._connecting = None


class _Session(asyncssh.SSHClientSession[bytes]):
    """The receiving end of one command's channel."""

    def __init__(self, output: _Output) -> None:
        self._output = output

    def data_received(self, data: bytes, datatype: int | None) -> None:
        stream = self._output.stderr if datatype == asyncssh.EXTENDED_DATA_STDERR else self._output.stdout
        self._output.add(stream, data)

    def eof_received(self) -> bool:
        return True  # Half open: the exit status is still to come.

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.end(_lost() if exc else None)


def _is_over(connecting: asyncio.Task[asyncssh.SSHClientConnection]) -> bool:
    """Whether this attempt failed, or its connection has ended since."""
    if not connecting.done():
        return False
    return connecting.cancelled() or connecting.exception() is not None or connecting.result().is_closed()


async def _connect(machine: Machine, silence_s: float) -> asyncssh.SSHClientConnection:
    """Connect with exactly our key, our known hosts and nothing of the operator's own set-up."""
    asyncssh.set_log_level("WARNING")  # At INFO it writes addresses and every command.
    known_hosts, client_key = _read_known_hosts(machine), _read_client_key(machine)
    try:
        return await asyncssh.connect(
            machine.host,
            machine.port,
            username=machine.user,
            known_hosts=known_hosts,
            server_host_key_algs=HOST_KEY_KINDS,
            client_keys=[client_key],
            config=None,
            agent_path=None,
            x509_trusted_certs=None,
            gss_host=None,
            host_based_auth=False,
            kbdint_auth=False,
            password_auth=False,
            connect_timeout=silence_s,
            login_timeout=silence_s,
            keepalive_interval=silence_s / SIGNS_OF_LIFE,
            keepalive_count_max=SIGNS_OF_LIFE,
        )
    except (OSError, ValueError, asyncssh.Error) as error:
        raise _classify_connect_error(error, silence_s) from error


def _classify_connect_error(error: OSError | ValueError | asyncssh.Error, silence_s: float) -> HostError:
    match error:
        case asyncssh.HostKeyNotVerifiable():
            return HostKeyMismatch("it showed a host key that the known_hosts file does not hold for it")
        case asyncssh.PermissionDenied():
            return AccessDenied("it did not accept our user name and key")
        case TimeoutError():
            return _silent_for(silence_s)
        case socket.gaierror():
            return Unreachable("its host name is not known")
        case OSError(errno=int(number)):
            return Unreachable(f"the connection could not be made ({os.strerror(number).lower()})")
        case _:
            return Unreachable("the connection broke off before it was set up")


def _read_known_hosts(machine: Machine) -> asyncssh.SSHKnownHosts:
    try:
        return asyncssh.read_known_hosts(str(machine.known_hosts_file or ""))
    except (OSError, ValueError) as error:
        raise HostKeyMismatch("its known_hosts file cannot be read, so its host key cannot be checked") from error


def _read_client_key(machine: Machine) -> asyncssh.SSHKey:
    try:
        return asyncssh.read_private_key(str(machine.client_key_file or ""))
    except (OSError, ValueError) as error:
        raise AccessDenied("the key file for it cannot be read") from error


class LocalHost:
    """The service's own machine. Commands see none of the service's environment beyond what a login has."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        max_output_bytes: int = 64_000_000,
    ) -> Completed:
        """See `Host`. A time-out kills the command and the children in its process group."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(argv, stdin, max_output_bytes)
        except TimeoutError:
            raise _silent_for(timeout_s) from None

    async def close(self) -> None:
        """Nothing is held open between commands."""

    async def _exchange(self, argv: Sequence[str], stdin: bytes, max_output_bytes: int) -> Completed:
        output = _Output(max_output_bytes)
        try:
            transport, process = await asyncio.get_running_loop().subprocess_exec(
                lambda: _LocalProcess(output), *argv, env=login_environment(os.environ), cwd="/", start_new_session=True
            )
        except OSError as error:
            # What a shell answers for a program that is missing or cannot be run.
            return Completed(127 if isinstance(error, FileNotFoundError) else 126, b"", str(error).encode())
        try:
            pipe = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
            pipe.write(stdin)
            pipe.write_eof()
            await output.ended
        finally:
            if transport.get_returncode() is None:
                with suppress(ProcessLookupError):
                    os.killpg(transport.get_pid(), signal.SIGKILL)
            transport.close()
            await process.exited.wait()  # It has been killed: this is the moment until the system says so.
        return output.completed(cast(int, transport.get_returncode()))


class _LocalProcess(asyncio.SubprocessProtocol):
    """The receiving end of one local command's pipes."""

    def __init__(self, output: _Output) -> None:
        self._output = output
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        self.exited.set()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._output.add(self._output.stdout if fd == 1 else self._output.stderr, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.end()


def login_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a command may see of the service's own environment, which holds secrets."""
    names = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ")
    return {name: environment[name] for name in names if name in environment}
