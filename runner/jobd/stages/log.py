"""The log of a stage: a bounded stream, what commands print on its way there, and what joins it between two lines."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from ..files import MAX_MESSAGE
from .tail import TailReader

DRAIN_S = 20.0
"""For what an ended command left in its pipe; somebody who cannot be killed may still be writing there."""


class Log:
    """The log, as which a stage has its standard output."""

    def __init__(self, max_bytes: int) -> None:
        self.truncated = False
        self.between_lines = True
        """Whether what was written so far ends with a whole line."""
        self.last_words = b""
        """The last bytes of what was written, also when the log was full; whoever begins anew may empty it."""
        self._room = max_bytes

    def write(self, data: bytes) -> None:
        """Write until the log is full, which is said once; the rest is dropped."""
        if not data:
            return
        self.between_lines = data.endswith(b"\n")
        self.last_words = (self.last_words + data)[-MAX_MESSAGE:]
        if self.truncated:
            return
        if len(data) > self._room:
            self.truncated = True
            data = data[: self._room] + b"\n[the log ends here: it had grown too long]\n"
        self._room -= len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(sys.stdout.fileno(), view) :]


class PipeOutput:
    """What one command prints into a pipe, on its way to the log."""

    def __init__(self, pipe: int, log: Log, drop_lines: Iterable[str], tail: TailReader | None) -> None:
        """Lines that begin as one of `drop_lines` are left out; lines of `tail` come between two of the command's."""
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._log = log
        self._filter = LineFilter(beginning.encode() for beginning in drop_lines)
        self._tail = tail

    def copy(self, wait_s: float) -> bool:
        """Copy what the pipe holds; when it holds nothing, wait a moment. False when it has been closed."""
        until = time.monotonic() + (wait_s or DRAIN_S)
        with suppress(BlockingIOError):
            while select.select([self._pipe], [], [], wait_s)[0] and time.monotonic() < until:
                data = os.read(self._pipe, 65_536)
                if not data:
                    return False
                lines, newline, rest = self._filter.feed(data).rpartition(b"\n")
                self._log.write(lines + newline)
                self.add_tail()
                self._log.write(rest)
        return True

    def add_tail(self) -> None:
        """Add what the followed file has grown by, unless a line of the command's is under way."""
        if self._tail and self._log.between_lines:
            for line in self._tail.read():
                self._log.write(line)

    def finish(self) -> None:
        """Copy the rest of everything, once the command has ended."""
        self.copy(0)
        self._log.write(self._filter.flush())
        for line in self._tail.read_rest() if self._tail else ():
            if not self._log.between_lines:
                self._log.write(b"\n")
            self._log.write(line)


class LineFilter:
    """Leaves out of a stream of bytes the lines that begin in certain ways, however it is cut into pieces."""

    def __init__(self, beginnings: Iterable[bytes]) -> None:
        self._beginnings = tuple(beginnings)
        self._longest = max(map(len, self._beginnings), default=0)
        self._head = b""
        self._drops: bool | None = None
        """About the line under way; None while its beginning is still in `_head`."""

    def feed(self, data: bytes) -> bytes:
        """What of this is kept; the beginning of a line may be held back."""
        if not self._beginnings:
            return data
        kept = []
        for piece in re.findall(rb"[^\n]*\n|[^\n]+", data):
            ends, text = piece.endswith(b"\n"), piece
            if self._drops is None:
                self._head += piece
                if len(self._head) < self._longest and not ends:
                    continue
                text, self._head = self._head, b""
                self._drops = text.startswith(self._beginnings)
            if not self._drops:
                kept.append(text)
            if ends:
                self._drops = None
        return b"".join(kept)

    def flush(self) -> bytes:
        """What was held back, at the end of the stream."""
        head, self._head, self._drops = self._head, b"", None
        return b"" if head.startswith(self._beginnings) else head
