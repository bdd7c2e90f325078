"""Files below a folder that others may have changed: reached name by name, and never through a link.

Paths are relative, with `/` between names, and hold neither `.` nor `..`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, NamedTuple

from .files import is_utf8

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

MAX_LOOKED_AT = 20_000
MAX_DEPTH = 32
"""Names that one search reads, however many somebody has made, and how many folders it goes down."""


class Found(NamedTuple):
    """A regular file, by its path below the folder that was searched."""

    path: str
    about: os.stat_result


def is_below(path: str) -> bool:
    """Whether a path stays below the folder that it starts from, as far as its names tell."""
    return not {"", ".", ".."}.intersection(path.split("/"))


def split_path(path: str) -> tuple[list[str], str]:
    """The names of a file's folders, and its own. Raises `OSError` for a path that leads elsewhere."""
    if not is_below(path):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    *folders, name = path.split("/")
    return folders, name


@contextmanager
def open_folder(root: Path, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A folder below `root`, as a descriptor. Raises `OSError` for a link on the way."""
    folder = os.open(root, FOLDER)
    try:
        for name in names:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
            deeper = os.open(name, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = deeper
        yield folder
    finally:
        os.close(folder)


def open_below(root: Path, path: str) -> IO[bytes]:
    """A regular file, to be read. Raises `OSError` for anything else, and does not wait for it."""
    folders, name = split_path(path)
    with open_folder(root, folders) as folder:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(descriptor, "rb")


def write_below(root: Path, path: str, content: bytes, mode: int = 0o600) -> None:
    """Write a file whole, with the folders that it needs. Raises `OSError` for a link among these."""
    folders, name = split_path(path)
    part = f".{os.getpid()}.part"
    with open_folder(root, folders, make=True) as folder:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)


def find_files(root: Path, pattern: str) -> list[Found]:
    """The regular files that match a pattern of names, where `**` stands for any number of folders.

    What cannot be read is passed over, and so are names that are not UTF-8, for nobody could say them.
    """
    found: list[Found] = []
    looked_at = 0
    waiting = [("", {tuple(pattern.split("/"))})]
    while waiting:
        path, patterns = waiting.pop()
        for name, about in list_folder(root, path):
            looked_at += 1
            if looked_at > MAX_LOOKED_AT:
                return found
            rests = {rest for names in patterns for rest in match_name(name, names)}
            if stat.S_ISREG(about.st_mode) and () in rests:
                found.append(Found(path + name, about))
            elif stat.S_ISDIR(about.st_mode) and rests - {()} and path.count("/") < MAX_DEPTH:
                waiting.append((f"{path}{name}/", rests - {()}))
    return found


def list_folder(root: Path, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """What lies in a folder; its path is empty or ends in `/`."""
    with suppress(OSError), open_folder(root, path.split("/")[:-1]) as folder, os.scandir(folder) as entries:
        for entry in entries:
            if is_utf8(entry.name):
                with suppress(OSError):
                    yield entry.name, entry.stat(follow_symlinks=False)


def match_name(name: str, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """What is left of a pattern of names, in each way in which a first name matches."""
    if names and names[0] == "**":
        yield names
        yield from match_name(name, names[1:])
    elif names and fnmatchcase(name, names[0]):
        yield names[1:]


def find_newest(root: Path, pattern: str) -> Found | None:
    """The matching file that was written last."""
    return max(find_files(root, pattern), key=lambda found: (found.about.st_mtime_ns, found.path), default=None)
