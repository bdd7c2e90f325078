"""An SSH server in this process: the demo's machine, and in tests a second server besides OpenSSH.

It runs commands like sshd, but as the user of this process: through a shell, in a new session, with a clean
environment. It accepts one generated key, and forwards Unix sockets. It offers no terminals, no other forwarding and no
file transfer.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import cast

import asyncssh

from bot.demo.loopback import ADDRESS, find_free_port

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

END_PATIENCE_S = 5.0
"""How long `stop` waits for the end of killed commands, in seconds."""


def write_keys(folder: Path) -> asyncssh.SSHKey:
    """Generate the keys of server and client in `folder`, unless they exist. Returns the host key."""
    host_key = folder / "host_key"
    if not host_key.exists():
        folder.mkdir(parents=True, exist_ok=True)
        client = asyncssh.generate_private_key("ssh-ed25519")
        _write_private(folder / "client_key", client)
        (folder / "authorized_keys").write_bytes(client.export_public_key())
        _write_private(host_key, asyncssh.generate_private_key("ssh-ed25519"))
    return asyncssh.read_private_key(str(host_key))


def write_known_hosts(path: Path, port: int, host_key: asyncssh.SSHKey) -> None:
    """Write a known_hosts file with the key of this server."""
    path.write_bytes(f"[{ADDRESS}]:{port} ".encode() + host_key.export_public_key())


def _write_private(path: Path, key: asyncssh.SSHKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.export_private_key())


class EmbeddedSshServer:
    """A server on a free loopback port, with its keys in `folder`. Another start uses the same port and keys.

    `path` is the `PATH` of its commands.
    """

    def __init__(self, folder: Path, path: str = DEFAULT_PATH) -> None:
        self.client_key_file = folder / "client_key"
        self.known_hosts_file = folder / "known_hosts"
        self.user = getpass.getuser()
        self.port = find_free_port()
        self._folder = folder
        self._path = path
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._commands: set[_Command] = set()

    async def start(self) -> None:
        """Start to listen, and write the known_hosts file."""
        host_key = write_keys(self._folder)
        asyncssh.set_log_level("WARNING")  # At INFO, it logs every command.
        self._acceptor = await asyncssh.listen(
            ADDRESS,
            self.port,
            server_factory=lambda: _Server(self._connections, self._commands, self._path),
            server_host_keys=[host_key],
            authorized_client_keys=str(self._folder / "authorized_keys"),
            encoding=None,
            allow_pty=False,
            line_editor=False,
            agent_forwarding=False,
            x509_trusted_certs=None,
            gss_host=None,
            host_based_auth=False,
            kbdint_auth=False,
            password_auth=False,
        )
        write_known_hosts(self.known_hosts_file, self.port, host_key)

    async def stop(self) -> None:
        """Stop listening, close all connections, and kill their commands. Detached processes keep running."""
        if self._acceptor:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        await self.cut_connections()
        deadline = asyncio.get_running_loop().time() + END_PATIENCE_S
        await asyncio.sleep(0)
        # Repeat, because a command may have just started. The deadline makes sure that `stop` returns.
        while self._commands and asyncio.get_running_loop().time() < deadline:
            ends = [asyncio.create_task(command.kill()) for command in self._commands]
            await asyncio.wait(ends, timeout=END_PATIENCE_S)

    async def cut_connections(self) -> None:
        """Abort all connections without a disconnect message, as if the network failed."""
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.wait_closed()


class _Server(asyncssh.SSHServer):
    """One connection: adds itself to the server's set of connections, and opens sessions."""

    def __init__(self, connections: set[asyncssh.SSHServerConnection], commands: set[_Command], path: str) -> None:
        self._connections = connections
        self._commands = commands
        self._path = path
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection:
            self._connections.discard(self._connection)

    def session_requested(self) -> _Command:
        return _Command(self._commands, self._path)

    def unix_server_requested(self, listen_path: str) -> bool:
        return True


class _Command(asyncssh.SSHServerSession[bytes]):
    """One session: runs a command, and passes the client's data to it.

    As with sshd, the loss of the connection closes the command's streams, but does not kill the command.
    """

    def __init__(self, commands: set[_Command], path: str) -> None:
        self._commands = commands
        self._path = path
        self._line = ""
        self._early = bytearray()
        self._at_eof = False
        self._channel: asyncssh.SSHServerChannel[bytes]
        self._process: asyncio.SubprocessTransport | None = None
        self._started = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def exec_requested(self, command: str) -> bool:
        self._line = command
        return True

    def session_started(self) -> None:
        self._commands.add(self)
        self._running = asyncio.create_task(self._run())

    async def kill(self) -> None:
        """Kill the command if it is running, and wait for its end. If it is being started, wait for that first."""
        await self._started.wait()
        if self._process and self._process.get_returncode() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.get_pid(), signal.SIGKILL)
        if self._running:
            await self._running

    async def _run(self) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._process, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: _Process(self._channel, ended),
                *("/bin/sh", "-c", self._line),
                env=_clean_environment(self._path),
                cwd="/",
                start_new_session=True,
            )
            self._started.set()
            self._catch_up()
            await ended
            _report_exit(self._channel, self._process.get_returncode() or 0)
            self._process.close()
        finally:
            self._started.set()
            self._commands.discard(self)

    def _catch_up(self) -> None:
        """Pass on the data and events that arrived while the command was being started."""
        self.data_received(bytes(self._early), None)
        if self._at_eof:
            self.eof_received()
        if self._channel.is_closing():
            self.connection_lost(None)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        stdin = self._stdin()
        if stdin is None:
            self._early += data
        elif not stdin.is_closing():
            stdin.write(data)

    def eof_received(self) -> bool:
        self._at_eof = True
        stdin = self._stdin()
        if stdin:
            stdin.write_eof()
        return True

    def pause_writing(self) -> None:
        for pipe in self._outputs():
            pipe.pause_reading()

    def resume_writing(self) -> None:
        for pipe in self._outputs():
            pipe.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        stdin = self._stdin()
        if stdin and not stdin.is_closing():
            stdin.abort()
        for pipe in self._outputs():
            pipe.close()

    def _stdin(self) -> asyncio.WriteTransport | None:
        return cast(asyncio.WriteTransport, self._process.get_pipe_transport(0)) if self._process else None

    def _outputs(self) -> list[asyncio.ReadTransport]:
        process = self._process
        return [cast(asyncio.ReadTransport, process.get_pipe_transport(fd)) for fd in (1, 2)] if process else []


class _Process(asyncio.SubprocessProtocol):
    """Passes the output of a command to the client."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], ended: asyncio.Future[None]) -> None:
        self._channel = channel
        self._ended = ended

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        with suppress(BrokenPipeError):  # The client has disconnected, so the pipe will soon be closed.
            self._channel.write(data, asyncssh.EXTENDED_DATA_STDERR if fd == 2 else None)

    def pause_writing(self) -> None:
        self._channel.pause_reading()

    def resume_writing(self) -> None:
        # Not at once: asyncio calls this during a write to the command's stdin, and `resume_reading` would write
        # to it again.
        asyncio.get_running_loop().call_soon(self._channel.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set_result(None)


def _report_exit(channel: asyncssh.SSHServerChannel[bytes], exit_status: int) -> None:
    if exit_status < 0:
        channel.exit_with_signal(signal.Signals(-exit_status).name.removeprefix("SIG"))
    else:
        channel.exit(exit_status)


def _clean_environment(path: str) -> dict[str, str]:
    user = getpass.getuser()
    return {"PATH": path, "HOME": str(Path.home()), "USER": user, "LOGNAME": user, "SHELL": "/bin/sh"}
