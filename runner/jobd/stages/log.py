"""The log of a stage: a stream with a limit, the output of commands, lines of a followed file, and jobd's own lines.

Each line of jobd's own begins with `MARK`, which is removed from everything else. So no command can print a line that
pages show as jobd's.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from ..files import MAX_MESSAGE, write_all
from .tail import TailReader

MARK = b"\x1e"
"""A control character (ASCII's record separator): one byte, so it cannot be put together from two pieces of output.

`handlers.text.stage_log` knows it, too.
"""

TAIL_LINES = 20

DRAIN_S = 20.0
"""How long to read what an ended command left in its pipe. A process that cannot be killed may still write to it."""


class Log:
    """The log of a stage, which is its standard output."""

    def __init__(self, max_bytes: int) -> None:
        self.truncated = False
        self.between_lines = True
        """Whether the log ends with a complete line."""
        self.last_words = b""
        """The last bytes that were written, even if the log was full. The stage clears it before each command."""
        self._room = max_bytes

    @property
    def last_lines(self) -> str:
        """The last `TAIL_LINES` lines of what was written."""
        return "\n".join(self.last_words.decode(errors="replace").strip().splitlines()[-TAIL_LINES:])

    def write(self, data: bytes) -> None:
        """Write a command's output until the log is full; then write a remark once, and drop the rest."""
        data = data.replace(MARK, b"")
        self.last_words = (self.last_words + data)[-MAX_MESSAGE:]
        self._add(data)

    def say(self, line: str) -> None:
        """Write a line of jobd's own. Only its first line has the mark, because a secret may span the others."""
        begin = b"" if self.between_lines else b"\n"
        self._add(begin + MARK + line.encode(errors="surrogateescape").replace(MARK, b"") + b"\n")

    def _add(self, data: bytes) -> None:
        if not data:
            return
        self.between_lines = data.endswith(b"\n")
        if self.truncated:
            return
        if len(data) > self._room:
            self.truncated = True
            data = data[: self._room] + b"\n[The log is cut here: it is too long.]\n"
        self._room -= len(data)
        write_all(sys.stdout.fileno(), data)


class PipeOutput:
    """Copies the output of one command from a pipe to the log."""

    def __init__(self, pipe: int, log: Log, drop_lines: Iterable[str], tail: TailReader | None) -> None:
        """Drops lines that begin with one of `drop_lines`. Inserts the lines of `tail` between the command's lines."""
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._log = log
        self._filter = LineFilter(beginning.encode() for beginning in drop_lines)
        self._tail = tail

    def copy(self, wait_s: float) -> bool:
        """Copy what the pipe holds, and wait up to `wait_s` if it is empty. Returns False once it is closed."""
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
        """Add new lines of the followed file, unless the command is in the middle of a line."""
        if self._tail and self._log.between_lines:
            for line in self._tail.read():
                self._log.write(line)

    def finish(self) -> None:
        """Copy the rest, after the command has ended."""
        self.copy(0)
        self._log.write(self._filter.flush())
        for line in self._tail.read_rest() if self._tail else ():
            if not self._log.between_lines:
                self._log.write(b"\n")
            self._log.write(line)


class LineFilter:
    """Drops the lines of a stream of bytes that begin in certain ways, however the stream is cut into pieces."""

    def __init__(self, beginnings: Iterable[bytes]) -> None:
        self._beginnings = tuple(beginnings)
        self._longest = max(map(len, self._beginnings), default=0)
        self._head = b""
        self._drops: bool | None = None
        """Whether the current line is dropped. None while its beginning is still in `_head`."""

    def feed(self, data: bytes) -> bytes:
        """The bytes to keep. The beginning of a line may be held back until the next call."""
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
        """The bytes that were held back, at the end of the stream."""
        head, self._head, self._drops = self._head, b"", None
        return b"" if head.startswith(self._beginnings) else head
