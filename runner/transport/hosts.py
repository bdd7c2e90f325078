"""Runs one command on a machine, over SSH or locally, and returns its output.

This module knows neither the purpose of commands nor how connections are made (`runner.transport.ssh`).
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

import asyncssh
import structlog
from asyncssh.channel import SSHChannel
from asyncssh.stream import SSHUNIXStreamSession

from runner.model.completed import Completed
from runner.model.machines import Machine
from runner.transport.host_errors import HostError, Unreachable, no_answer
from runner.transport.listening import CHUNK, Accept, CannotListen, Listening, SshListening, SshStream, Stream
from runner.transport.local_host import LocalHost
from runner.transport.machine_connection import make_room
from runner.transport.output import Output
from runner.transport.ssh import SILENCE_S, connect
from runner.transport.ssh_metrics import SSH_METRICS

log = structlog.get_logger()

Value = TypeVar("Value")

MAX_SESSIONS = 5
"""The most commands at the same time on one connection. OpenSSH's `MaxSessions` is 10, and it frees sessions late."""
CHANNEL_RETRY_S = 0.1
WINDOW = 64 * 1024
"""Bytes that a forwarded connection may send before somebody reads them. asyncssh's own window has 2 MiB: a job with
many connections would fill the service's memory. A request of 500 kB takes 0.4 s if the machine is 50 ms away."""
READ_AHEAD = 16 * 1024
"""The most bytes that have left the window and are not read yet. asyncssh would allow as many as the window has."""
MAX_CHANNELS = 256
"""The most connections to one socket that a machine has not closed. asyncssh keeps each connection until the machine
closes it, even if the service has closed its own end."""
MAX_REFUSED = 1_000
"""A machine that opens this many further connections, and closes none meanwhile, loses its SSH connection. A relay
opens 100 at once."""
BEGIN_S = LISTEN_S = 30.0
"""How long a command may take to start, or a socket to be opened."""


class Host(Protocol):
    """A machine on which commands run."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        max_output_bytes: int = 64_000_000,
    ) -> Completed:
        """Run one command until it has exited and both its outputs are closed.

        The time-out includes connecting. Raises `HostError`, and `ValueError` for an `argv` with a NUL character.
        """

    async def begin(self, argv: Sequence[str]) -> Stream:
        """Start a command whose input and output become a stream; its standard error is dropped.

        The command must end by itself when its input ends. If it cannot start, the stream ends at once, or `OSError` is
        raised. Raises `HostError`.
        """

    async def listen(self, path: str, accept: Accept) -> Listening:
        """Listen on a socket at a path on the machine, where no file may exist.

        The socket lives as long as the connection to the machine. Raises `HostError`, and `CannotListen` if the machine
        forbids sockets.
        """

    async def close(self) -> None:
        """Close everything that is open on the machine. Idempotent."""


HostOpener = Callable[[Machine, float], Host]
"""Opens the host for a machine. The number says how many seconds the machine may be silent."""


def open_host(machine: Machine, silence_s: float = SILENCE_S) -> Host:
    """The host for a machine, which may be silent for `silence_s`. It connects on first use."""
    return LocalHost() if machine.kind == "local" else SshHost(machine, silence_s)


def _lost() -> Unreachable:
    return Unreachable("the connection was lost in mid-command")


class SshHost:
    """A machine reached over SSH: one connection for all commands, opened on first use, and again after a loss."""

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
        """See `Host`. A time-out closes the connection, and so ends all other commands on it.

        OpenSSH keeps the session of a closed channel until its command ends. A command that hangs would keep it
        forever.
        """
        command = shlex.join(argv)
        if "\0" in command:
            raise ValueError("a command line cannot hold a NUL character")
        SSH_METRICS.trips[self._machine.name] += 1
        try:
            async with asyncio.timeout(timeout_s), self._sessions:
                return await self._exchange(command, stdin, max_output_bytes)
        except TimeoutError as error:
            SSH_METRICS.count_failure(self._machine.name, error)
            raise no_answer(timeout_s) from None
        except HostError as error:
            SSH_METRICS.count_failure(self._machine.name, error)
            raise

    async def begin(self, argv: Sequence[str]) -> Stream:
        """See `Host`."""
        command = shlex.join(argv)
        try:
            async with asyncio.timeout(BEGIN_S):
                # Standard error is dropped, because unread data would block the command.
                process = await self._start(
                    lambda connection: connection.create_process(
                        command, encoding=None, request_pty=False, stderr=asyncssh.DEVNULL
                    )
                )
        except TimeoutError:
            raise no_answer(BEGIN_S) from None
        return _CountedStream(process.stdout, process.stdin, self._machine.name)

    async def listen(self, path: str, accept: Accept) -> Listening:
        """See `Host`."""

        async def serve(reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes]) -> None:
            await accept(SshStream(reader, writer))

        try:
            async with asyncio.timeout(LISTEN_S):
                connection = await self._connected()
                channels = _Channels(connection, serve, self._machine.name)
                listener = await connection.create_unix_server(channels.begin, path, encoding=None, window=WINDOW)
                return SshListening(connection, listener)
        except TimeoutError:
            raise no_answer(LISTEN_S) from None
        except asyncssh.ChannelListenError as error:
            raise CannotListen("the machine does not let ptq-bot listen on a socket") from error
        except (OSError, asyncssh.Error) as error:
            raise _lost() from error

    async def close(self) -> None:
        """Close the connection, and so end all commands on it."""
        connecting, self._connecting = self._connecting, None
        if connecting is None:
            return
        connecting.cancel()
        with suppress(asyncio.CancelledError, HostError):
            connection = await connecting
            connection.close()
            await connection.wait_closed()

    async def _exchange(self, command: str, stdin: bytes, max_output_bytes: int) -> Completed:
        output = Output(max_output_bytes)
        try:
            channel, _ = await self._start(
                lambda connection: connection.create_session(
                    lambda: _Session(output), command, encoding=None, request_pty=False
                )
            )
            try:
                with suppress(OSError):  # The command may have ended without reading its input.
                    for start in range(0, len(stdin), CHUNK):
                        await make_room(channel)
                        channel.write(stdin[start : start + CHUNK])
                    channel.write_eof()
                await output.ended
            finally:
                channel.abort()
        except asyncio.CancelledError:
            self._give_up_connection()
            raise
        exit_status = channel.get_returncode()
        if exit_status is None:
            # asyncssh reports no exception for a session that was killed or lost.
            raise _lost()
        return output.completed(exit_status)

    async def _start(self, start: Callable[[asyncssh.SSHClientConnection], Awaitable[Value]]) -> Value:
        while True:
            connection = await self._connected()
            try:
                return await start(connection)
            except asyncssh.ChannelOpenError as error:
                if error.code == asyncssh.OPEN_REQUEST_SESSION_FAILED:
                    raise Unreachable("it refused to start a command") from error
                # There is no free session, or the connection was just lost. In both cases the command was not started.
                await asyncio.sleep(CHANNEL_RETRY_S)
            except (OSError, asyncssh.Error) as error:
                raise _lost() from error

    async def _connected(self) -> asyncssh.SSHClientConnection:
        if self._connecting is None or _is_over(self._connecting):
            self._connecting = asyncio.create_task(connect(self._machine, self._silence_s))
        connecting = self._connecting
        try:
            # Shielded, because others may wait for the same connection when this caller's time is up.
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not connecting.cancelled() or (task and task.cancelling()):
                raise
            # The connection was closed; this caller was not cancelled.
            raise Unreachable("its connection was closed") from None

    def _give_up_connection(self) -> None:
        if self._connecting and self._connecting.done() and not _is_over(self._connecting):
            self._connecting.result().abort()
            self._connecting = None


Serve = Callable[[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]], Awaitable[None]]


class _Channels:
    """Counts the connections to one socket, until the machine has closed them."""

    def __init__(self, connection: asyncssh.SSHClientConnection, serve: Serve, machine: str) -> None:
        self._connection = connection
        self._serve = serve
        self._machine = machine
        self._open = 0
        self._refused = 0

    async def begin(self) -> _Channel:
        """The receiving end of a new connection. Raises `ChannelOpenError`. asyncssh then keeps nothing of it."""
        if self._open < MAX_CHANNELS:
            self._open += 1
            return _Channel(self._serve, self._end)
        self._refused += 1
        if self._refused == MAX_REFUSED:
            log.warning("ssh.machine_closes_nothing", machine=self._machine)
            self._connection.abort()
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, "too many connections")

    def _end(self) -> None:
        self._open -= 1
        self._refused = 0


class _Channel(SSHUNIXStreamSession[bytes]):
    """The receiving end of a connection to a socket."""

    def __init__(self, serve: Serve, end: Callable[[], None]) -> None:
        super().__init__(serve)
        self._end = end

    def connection_made(self, chan: SSHChannel[bytes]) -> None:
        super().connection_made(chan)
        self._limit = READ_AHEAD

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end()


class _CountedStream(SshStream):
    """The stream of a command, which counts writes as trips to its machine."""

    def __init__(self, reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes], machine: str) -> None:
        super().__init__(reader, writer)
        self._machine = machine

    async def write(self, data: bytes) -> None:
        """See `Stream`."""
        SSH_METRICS.trips[self._machine] += 1
        await super().write(data)


class _Session(asyncssh.SSHClientSession[bytes]):
    """The receiving end of one command's channel."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def data_received(self, data: bytes, datatype: int | None) -> None:
        stream = self._output.stderr if datatype == asyncssh.EXTENDED_DATA_STDERR else self._output.stdout
        self._output.add(stream, data)

    def eof_received(self) -> bool:
        return True  # Half open, because the exit status is still to come.

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.end(_lost() if exc else None)


def _is_over(connecting: asyncio.Task[asyncssh.SSHClientConnection]) -> bool:
    """Whether the connection failed, or has ended since."""
    if not connecting.done():
        return False
    return connecting.cancelled() or connecting.exception() is not None or connecting.result().is_closed()
