"""Follows a file that an agent writes while it runs, and reads the lines that are missing in the agent's output."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..safe_paths import find_files, find_newest, open_safely

LOOK_EVERY_S = 0.5
"""The default interval."""

PIECE = 262_144

READ_AT_ONCE, READ_AT_LAST = 16 * PIECE, 256 * PIECE
"""The most bytes of a file that one read takes, and that the last read takes. Everything else waits during a read."""

MAX_LINE = 1_000_000
"""The most bytes of a line that is passed on. Longer lines are dropped."""


class TailReader:
    """Follows the newest of the files that match a pattern. Files that exist already are followed from their end."""

    def __init__(self, root: Path, pattern: str, word: str, look_every_s: float = LOOK_EVERY_S) -> None:
        self._root = root
        self._pattern = pattern
        self._word = word.encode()
        self._look_every_s = look_every_s
        self._path: str | None = None
        self._due = 0.0
        # By inode and not by name, so that a replaced file is read from its beginning.
        self._followed = {
            (about.st_dev, about.st_ino): Followed(about.st_size) for _, about in find_files(root, pattern)
        }

    def read(self) -> Iterator[bytes]:
        """The new lines that contain the word, with their line ends. None are read if the last read was just now."""
        if time.monotonic() >= self._due:
            yield from self._read(READ_AT_ONCE)
            self._due = time.monotonic() + self._look_every_s

    def read_rest(self) -> Iterator[bytes]:
        """The remaining lines, once the agent has ended."""
        yield from self._read(READ_AT_LAST)

    def _read(self, limit: int) -> Iterator[bytes]:
        newest = find_newest(self._root, self._pattern)
        before, self._path = self._path, newest.path if newest else None
        for path in {before: None, self._path: None}:
            if path is not None:
                yield from self._read_file(path, limit)

    def _read_file(self, path: str, limit: int) -> Iterator[bytes]:
        with suppress(OSError), open_safely(self._root, path) as file:
            about = os.fstat(file.fileno())
            followed = self._followed.setdefault((about.st_dev, about.st_ino), Followed(0))
            if about.st_size < followed.offset:
                followed.offset = 0
            file.seek(followed.offset)
            until = followed.offset + limit
            while followed.offset < until and (data := file.read(PIECE)):
                yield from (line for line in followed.feed(data) if self._word in line)


class Followed:
    """How far a file has been read, and its last incomplete line."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._rest = b""
        self._too_long = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The completed lines, with their line ends."""
        self.offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._too_long:
                yield line + b"\n"
            self._too_long = False
        if len(self._rest) > MAX_LINE:
            self._rest, self._too_long = b"", True
