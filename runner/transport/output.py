"""The output of a command on a machine, while it arrives."""

from __future__ import annotations

import asyncio

from runner.model.completed import Completed
from runner.transport.host_errors import HostError, OutputTooLarge


class Output:
    """The output of a command, up to a limit, and the moment when it ends."""

    def __init__(self, max_bytes: int) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._max_bytes = max_bytes

    def add(self, stream: bytearray, data: bytes) -> None:
        """Add data to one of the two outputs, or end with `OutputTooLarge`."""
        if len(self.stdout) + len(self.stderr) + len(data) <= self._max_bytes:
            stream += data
        else:
            self.end(OutputTooLarge(f"a command wrote more than {self._max_bytes} bytes"))

    def end(self, error: HostError | None = None) -> None:
        """Mark the end of the output."""
        if self.ended.done():
            return
        if error:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def completed(self, exit_status: int) -> Completed:
        """The result of the command."""
        return Completed(exit_status, bytes(self.stdout), bytes(self.stderr))
