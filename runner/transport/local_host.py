"""Runs commands on the service's own machine. It does not know their purpose."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

from runner.model.completed import Completed
from runner.transport.host_errors import no_answer
from runner.transport.listening import Accept, CannotListen, Listening, LocalListening, LocalStream, Stream
from runner.transport.output import Output


class LocalHost:
    """The service's own machine. Commands get only the environment variables of a login."""

    def __init__(self) -> None:
        self._begun: list[tuple[Stream, asyncio.subprocess.Process]] = []

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
            raise no_answer(timeout_s) from None

    async def begin(self, argv: Sequence[str]) -> Stream:
        """See `Host`."""
        ours, theirs = socket.socketpair()
        stream = LocalStream(*await asyncio.open_unix_connection(sock=ours))
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=asyncio.subprocess.DEVNULL,
                    env=login_environment(os.environ),
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:
            stream.abort()
            raise
        self._begun = [*(one for one in self._begun if one[1].returncode is None), (stream, process)]
        return stream

    async def listen(self, path: str, accept: Accept) -> Listening:
        """See `Host`."""
        try:
            server = await asyncio.start_unix_server(lambda *both: accept(LocalStream(*both)), path)
        except OSError as error:
            raise CannotListen(f"the socket cannot be opened: {error.strerror}") from error
        return LocalListening(server)

    async def close(self) -> None:
        """See `Host`."""
        for stream, process in self._begun:
            stream.abort()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _exchange(self, argv: Sequence[str], stdin: bytes, max_output_bytes: int) -> Completed:
        output = Output(max_output_bytes)
        try:
            transport, process = await asyncio.get_running_loop().subprocess_exec(
                lambda: _LocalProcess(output), *argv, env=login_environment(os.environ), cwd="/", start_new_session=True
            )
        except OSError as error:
            # The exit statuses of a shell for a program that is missing or cannot run.
            return Completed(127 if isinstance(error, FileNotFoundError) else 126, b"", str(error).encode())
        try:
            pipe = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
            # A command may end before it reads its input. Then uvloop refuses to write.
            if not pipe.is_closing():
                pipe.write(stdin)
                pipe.write_eof()
            await output.ended
        finally:
            if transport.get_returncode() is None:
                with suppress(ProcessLookupError):
                    os.killpg(transport.get_pid(), signal.SIGKILL)
            transport.close()
            await process.exited.wait()  # It was killed, so this takes only a moment.
        return output.completed(cast(int, transport.get_returncode()))


class _LocalProcess(asyncio.SubprocessProtocol):
    """The receiving end of a local command's pipes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        self.exited.set()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._output.add(self._output.stdout if fd == 1 else self._output.stderr, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.end()


def login_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the service's environment that a command may see. The others may hold secrets."""
    names = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ")
    return {name: environment[name] for name in names if name in environment}
