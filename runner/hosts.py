"""Where bytes go: runs one command on a machine, over SSH or locally, and brings back what it wrote.

It refuses to know what the commands are for, and how a connection is made (`runner.ssh`).
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

import asyncssh

from runner.host_errors import HostError, OutputTooLarge, Unreachable, silent_for
from runner.listening import Accept, Listening, LocalListening, LocalStream, SshListening, SshStream
from runner.machines import Machine
from runner.ssh import SILENCE_S, connect
from runner.traffic import TRAFFIC

MAX_SESSIONS = 5
"""Commands at once on one connection: OpenSSH's `MaxSessions` is 10, and it frees a slot late."""
CHANNEL_RETRY_S = 0.1
LISTEN_S = 30.0
"""How long it may take until something listens there."""


class CannotListen(Exception):  # noqa: N818 - what is the case
    """A machine does not let us listen there. The message is a clause for people."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended. `exit_status` is the negative signal number when a signal killed it."""

    exit_status: int
    stdout: bytes
    stderr: bytes


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

    async def listen(self, path: str, accept: Accept) -> Listening:
        """Listen on a socket at a path there, at which nothing may be yet, for as long as the connection to it lives.

        Raises `HostError`, and `CannotListen` where it lets nobody do so.
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
        TRAFFIC.count_trip(self._machine.name)
        try:
            async with asyncio.timeout(timeout_s), self._sessions:
                return await self._exchange(command, stdin, max_output_bytes)
        except TimeoutError as error:
            TRAFFIC.count_failure(self._machine.name, error)
            raise silent_for(timeout_s) from None
        except HostError as error:
            TRAFFIC.count_failure(self._machine.name, error)
            raise

    async def listen(self, path: str, accept: Accept) -> Listening:
        """See `Host`."""

        async def serve(reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes]) -> None:
            await accept(SshStream(reader, writer))

        try:
            async with asyncio.timeout(LISTEN_S):
                connection = await self._connected()
                return SshListening(connection, await connection.start_unix_server(lambda: serve, path))
        except TimeoutError:
            raise silent_for(LISTEN_S) from None
        except asyncssh.ChannelListenError as error:
            raise CannotListen("it does not let us listen on a socket there") from error
        except (OSError, asyncssh.Error) as error:
            raise _lost() from error

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
            self._connecting = asyncio.create_task(connect(self._machine, self._silence_s))
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
            raise silent_for(timeout_s) from None

    async def listen(self, path: str, accept: Accept) -> Listening:
        """See `Host`."""
        try:
            server = await asyncio.start_unix_server(lambda *both: accept(LocalStream(*both)), path)
        except OSError as error:
            raise CannotListen(f"nobody can listen on a socket there: {error.strerror}") from error
        return LocalListening(server)

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
