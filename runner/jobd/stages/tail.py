"""Follows a file that an agent writes while it runs, for the lines in it that its output lacks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..safe_paths import find_files, find_newest, open_below

LOOK_EVERY_S = 0.5
"""Unless somebody wants it otherwise."""

PIECE = 262_144

READ_AT_ONCE, READ_AT_LAST = 16 * PIECE, 256 * PIECE
"""Bytes of a file that one look reads, and the last one: meanwhile, all else waits."""

MAX_LINE = 1_000_000
"""Bytes of the longest line that is passed on; a longer one is left out."""


class TailReader:
    """Of the files that match a pattern the newest is followed: what it has grown by since we began."""

    def __init__(self, root: Path, pattern: str, word: str, look_every_s: float = LOOK_EVERY_S) -> None:
        self._root = root
        self._pattern = pattern
        self._word = word.encode()
        self._look_every_s = look_every_s
        self._path: str | None = None
        self._due = 0.0
        # By what a file is, not by its name, so that one that was written anew is read from its beginning.
        self._followed = {
            (about.st_dev, about.st_ino): Followed(about.st_size) for _, about in find_files(root, pattern)
        }

    def read(self) -> Iterator[bytes]:
        """The new lines with the word, each with its end; none when the last look was just now."""
        if time.monotonic() >= self._due:
            yield from self._read(READ_AT_ONCE)
            self._due = time.monotonic() + self._look_every_s

    def read_rest(self) -> Iterator[bytes]:
        """The same, once nobody writes any more."""
        yield from self._read(READ_AT_LAST)

    def _read(self, limit: int) -> Iterator[bytes]:
        newest = find_newest(self._root, self._pattern)
        before, self._path = self._path, newest.path if newest else None
        for path in {before: None, self._path: None}:
            if path is not None:
                yield from self._read_file(path, limit)

    def _read_file(self, path: str, limit: int) -> Iterator[bytes]:
        with suppress(OSError), open_below(self._root, path) as file:
            about = os.fstat(file.fileno())
            followed = self._followed.setdefault((about.st_dev, about.st_ino), Followed(0))
            if about.st_size < followed.offset:
                followed.offset = 0
            file.seek(followed.offset)
            until = followed.offset + limit
            while followed.offset < until and (data := file.read(PIECE)):
                yield from (line for line in followed.feed(data) if self._word in line)


class Followed:
    """How far a file has been read, and the line that is not whole yet."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._rest = b""
        self._too_long = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that have become whole, each with its end."""
        self.offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._too_long:
                yield line + b"\n"
            self._too_long = False
        if len(self._rest) > MAX_LINE:
            self._rest, self._too_long = b"", True
