"""What a command on a machine writes, as it comes."""

from __future__ import annotations

import asyncio

from runner.model.completed import Completed
from runner.transport.host_errors import HostError, OutputTooLarge


class Output:
    """What a command writes, kept up to a limit, and the moment at which it ends."""

    def __init__(self, max_bytes: int) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._max_bytes = max_bytes

    def add(self, stream: bytearray, data: bytes) -> None:
        """Take what was written to one of the two, or end with `OutputTooLarge`."""
        if len(self.stdout) + len(self.stderr) + len(data) <= self._max_bytes:
            stream += data
        else:
            self.end(OutputTooLarge(f"a command wrote more than {self._max_bytes} bytes"))

    def end(self, error: HostError | None = None) -> None:
        """Nothing more will come."""
        if self.ended.done():
            return
        if error:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def completed(self, exit_status: int) -> Completed:
        """What the command left."""
        return Completed(exit_status, bytes(self.stdout), bytes(self.stderr))
