"""Finds files that a job has deleted but still has open: they take space on the disk, and no folder shows them.

Some deleted files are not found: those that a job holds only by a mapping, in a message between two of its processes,
or by a mount of its own. The files of a process are not found, either, if it forbids other processes of its account to
inspect it (`PR_SET_DUMPABLE`, prctl(2)).
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .processes import find_processes

MAX_OPEN = 5_000_000
"""How many open files are read at most, which takes some 15 seconds. A file counts once for each thread that has it."""

STATX_BASIC_STATS, AT_STATX_DONT_SYNC = 0x7FF, 0x4000
"""Arguments of statx(2). `AT_STATX_DONT_SYNC` keeps a file system of the job itself (FUSE) from making us wait."""

STATX = struct.Struct("=16xI12xQ8xQ80xII112x")
"""`struct statx` of Linux's `stat.h`: links, inode, blocks, and the two numbers of the device."""

_libc = ctypes.CDLL(None, use_errno=True)


class OpenFile(NamedTuple):
    """An open file: which one it is, how many names it has, and how much space it takes."""

    device: int
    inode: int
    links: int
    size: int
    """Bytes on the disk."""


class TooManyOpen(Exception):  # noqa: N818 - not an error of this program
    """The job's processes have more than `MAX_OPEN` files open."""


def find_devices(folders: Iterable[Path]) -> frozenset[int]:
    """The devices of new files in these folders. An overlay over two disks has its own device. Raises `OSError`."""
    devices = set()
    for folder in folders:
        with tempfile.TemporaryFile(dir=folder) as file:
            devices.add(os.fstat(file.fileno()).st_dev)
    return frozenset(devices)


def find_deleted(job_id: str, devices: Collection[int]) -> list[OpenFile]:
    """The deleted files on these devices that the job's processes have open. Raises `TooManyOpen`."""
    found: dict[tuple[int, int], OpenFile] = {}
    for number, file in enumerate(list_open(job_id)):
        if number >= MAX_OPEN:
            raise TooManyOpen
        if file and not file.links and file.device in devices:
            found[file.device, file.inode] = file
    return [*found.values()]


def list_open(job_id: str) -> Iterator[OpenFile | None]:
    """The open files of all threads of the job. None for each file that cannot be inspected.

    Each thread is read, because it can have open files of its own. A process whose first thread has ended shows none.
    """
    for process in find_processes(job_id):
        for thread in list_names(f"/proc/{process.pid}/task"):
            with suppress(OSError):
                table = os.open(f"/proc/{process.pid}/task/{thread}/fd", os.O_RDONLY | os.O_DIRECTORY)
                try:
                    for name in os.listdir(table):  # noqa: PTH208 - a descriptor
                        yield look_at(table, name)
                finally:
                    os.close(table)


def list_names(folder: str) -> list[str]:
    """The names in a folder. Empty if it cannot be read."""
    with suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208 - called very often
    return []


def look_at(folder: int, name: str) -> OpenFile | None:
    """The open file that a link leads to. None if it cannot be inspected: glibc before 2.28 has no statx(2)."""
    about = ctypes.create_string_buffer(STATX.size)
    statx = getattr(_libc, "statx", None)
    if not statx or statx(folder, os.fsencode(name), AT_STATX_DONT_SYNC, STATX_BASIC_STATS, about):
        return None
    links, inode, blocks, major, minor = STATX.unpack(about.raw)
    return OpenFile(os.makedev(major, minor), inode, links, 512 * blocks)
