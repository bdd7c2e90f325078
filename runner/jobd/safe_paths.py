"""Accesses files inside a folder that others may have changed: opens each part of a path separately, follows no link.

Paths are relative, with `/` between names, and contain neither `.` nor `..`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

from .files import is_utf8

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

MAX_LOOKED_AT = 20_000
MAX_DEPTH = 32
"""Limits of one search: the number of names that it reads, and the depth of folders."""

MAX_HELD = 100
"""How many folders a walk keeps open at most. A tree can have more levels than a process may have files open."""
MAX_LISTED = 100_000
"""How many names of a folder a walk reads into memory at once."""
CLOSED = -1
"""The value of `_Level.folder` while the folder is closed."""


class FoundFile(NamedTuple):
    """A regular file, with its path relative to the searched folder."""

    path: str
    about: os.stat_result


class FolderEntry(NamedTuple):
    """Something in a folder, as a walk finds it."""

    folder: int
    """The descriptor of the folder. It is open until the walk goes on."""
    name: str
    about: os.stat_result


def is_safe(path: str) -> bool:
    """Whether the names in a path keep it inside its folder. Links are not checked here."""
    return not {"", ".", ".."}.intersection(path.split("/"))


def split_path(path: str) -> tuple[list[str], str]:
    """The names of the folders, and the name of the file. Raises `OSError` for a path that leaves its folder."""
    if not is_safe(path):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    *folders, name = path.split("/")
    return folders, name


@contextmanager
def open_folder(root: Path, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """Open a folder inside `root` and yield its descriptor. Raises `OSError` if a part of the path is a link."""
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


def open_safely(root: Path, path: str) -> IO[bytes]:
    """Open a regular file for reading. Raises `OSError` for anything else, and never blocks."""
    folders, name = split_path(path)
    with open_folder(root, folders) as folder:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def write_safely(root: Path, path: str, content: bytes, mode: int = 0o600) -> None:
    """Write a whole file, and create its folders. Raises `OSError` if one of the folders is a link."""
    folders, name = split_path(path)
    part = f".{os.getpid()}.part"
    with open_folder(root, folders, make=True) as folder:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)


def is_closed(mode: int) -> bool:
    """Whether this is the mode of a folder that we cannot use, or of a file that we cannot read."""
    needed = 0o700 if stat.S_ISDIR(mode) else 0o400 if stat.S_ISREG(mode) else 0
    return mode & needed != needed


def give_access(name: str, folder: int | None = None) -> None:
    """Do `chmod u+rwX` for a file or folder, but never through a link. Raises `OSError`."""
    # Opening with O_PATH needs no permission. The descriptor stays with what was opened, even if the path changes.
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            more = 0o700 if stat.S_ISDIR(mode) or mode & 0o111 else 0o600
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | more)  # noqa: PTH101 - not a path
    finally:
        os.close(descriptor)


def reopen(folder: Path) -> None:
    """Make a folder usable for us again, if its job has closed it."""
    with suppress(OSError):
        if is_closed(folder.lstat().st_mode):
            give_access(str(folder))


def find_files(root: Path, pattern: str) -> list[FoundFile]:
    """The regular files that match a pattern of names, in which `**` matches any number of folders.

    Skips what cannot be read, and names that are not UTF-8, because JSON cannot hold those.
    """
    found: list[FoundFile] = []
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
                found.append(FoundFile(path + name, about))
            elif stat.S_ISDIR(about.st_mode) and rests - {()} and path.count("/") < MAX_DEPTH:
                waiting.append((f"{path}{name}/", rests - {()}))
    return found


def list_folder(root: Path, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """The entries of a folder. `path` is empty or ends in `/`."""
    with suppress(OSError), open_folder(root, path.split("/")[:-1]) as folder, os.scandir(folder) as entries:
        for entry in entries:
            if is_utf8(entry.name):
                with suppress(OSError):
                    yield entry.name, entry.stat(follow_symlinks=False)


def match_name(name: str, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The rests of a pattern after `name`: one for each way in which the beginning of the pattern matches `name`."""
    if names and names[0] == "**":
        yield names
        yield from match_name(name, names[1:])
    elif names and fnmatchcase(name, names[0]):
        yield names[1:]


def find_newest(root: Path, pattern: str) -> FoundFile | None:
    """The matching file that was modified last. None if no file matches."""
    return max(find_files(root, pattern), key=lambda found: (found.about.st_mtime_ns, found.path), default=None)


class _Level:
    """An ancestor of the current folder of a walk, or that folder itself.

    `waiting` has the names of its subfolders that the walk has not entered yet.
    """

    def __init__(self, folder: int) -> None:
        self.folder = folder
        self.waiting: list[str] = []
        self.is_listed = False
        self.identity = identify(folder)
        try:
            self._entries = os.scandir(folder)
        except OSError:
            os.close(folder)
            raise

    def list_more(self) -> Iterator[FolderEntry]:
        self.is_listed = True
        names = [entry.name for entry in islice(self._entries, MAX_LISTED)]
        self.is_listed = len(names) < MAX_LISTED
        for name in names:
            with suppress(OSError):
                about = os.stat(name, dir_fd=self.folder, follow_symlinks=False)
                yield FolderEntry(self.folder, name, about)
                if stat.S_ISDIR(about.st_mode):
                    self.waiting.append(name)

    def close(self) -> None:
        if self.folder != CLOSED:
            os.close(self.folder)
            self.folder = CLOSED

    def end(self) -> None:
        self.close()
        self._entries.close()


def walk(root: Path) -> Iterator[FolderEntry]:
    """Everything under a folder, at any depth. Each entry comes before anything that is inside it.

    When the caller gets an entry, it may remove it, or give us access to it if it is a closed folder. Folders that
    cannot be read, or that are moved meanwhile, are skipped.
    """
    with suppress(OSError):
        levels = [_Level(os.open(root, FOLDER))]
        try:
            while levels:
                yield from _take_step(levels)
        finally:
            for level in levels:
                level.end()


def _take_step(levels: list[_Level]) -> Iterator[FolderEntry]:
    """Enter the next folder that waits in the last level. If none waits, list more of that level, or leave it."""
    last = levels[-1]
    if last.waiting:
        with suppress(OSError):
            levels.append(_Level(os.open(last.waiting.pop(), FOLDER, dir_fd=last.folder)))
            if len(levels) > MAX_HELD + 1:
                last.close()
    elif not last.is_listed:
        with suppress(OSError):
            yield from last.list_more()
    else:
        levels.pop()
        if levels and levels[-1].folder == CLOSED:
            _reopen_last(levels, last.folder)
        last.end()


def _reopen_last(levels: list[_Level], child: int) -> None:
    """Open the folder of the last level again, as the parent of `child`, a folder in it.

    If `child` was moved, drop levels until one is open.
    """
    with suppress(OSError):
        parent = os.open("..", FOLDER, dir_fd=child)
        if identify(parent) == levels[-1].identity:
            levels[-1].folder = parent
            return
        os.close(parent)
    while levels[-1].folder == CLOSED:
        levels.pop().end()


def identify(descriptor: int) -> tuple[int, int]:
    """The device and the inode of an open file or folder. Together they identify it."""
    about = os.fstat(descriptor)
    return about.st_dev, about.st_ino
