"""What lies below a folder, so exactly that nobody can have written there unseen."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """One file, folder or link."""

    mode: int
    owner: tuple[int, int]
    links: int
    inode: int
    modified_ns: int
    changed_ns: int
    """Nobody can set it: any write, of whatever kind, moves it."""
    content: str
    """A digest, with the extended attributes; of a link its target."""

    @property
    def told(self) -> tuple[int, int, str]:
        """What somebody who only reads can notice of it."""
        return self.mode, self.modified_ns, self.content


def read_entries(folder: Path, without: Collection[Path] = ()) -> dict[str, Entry]:
    """Everything below a folder and the folder itself, by path, but nothing below those `without`."""
    return {str(path): read_entry(path) for path in walk(folder, without)}


def walk(folder: Path, without: Collection[Path]) -> Iterator[Path]:
    if folder in without:
        return
    yield folder
    if folder.is_dir() and not folder.is_symlink():
        with suppress(PermissionError):  # Of an overlay, `work/work` has the mode 000.
            for path in sorted(folder.iterdir()):
                yield from walk(path, without)


def read_entry(path: Path) -> Entry:
    about = path.lstat()
    digest = hashlib.sha256()
    if stat.S_ISLNK(about.st_mode):
        digest.update(os.fsencode(path.readlink()))
    elif stat.S_ISREG(about.st_mode):
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    with suppress(OSError):  # Not every file system has any.
        for name in sorted(os.listxattr(path, follow_symlinks=False)):
            digest.update(name.encode() + os.getxattr(path, name, follow_symlinks=False))
    owner = (about.st_uid, about.st_gid)
    times = (about.st_mtime_ns, about.st_ctime_ns)
    return Entry(about.st_mode, owner, about.st_nlink, about.st_ino, *times, digest.hexdigest())


def find_differences(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[str]:
    """The paths that came, went or changed."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def find_told_differences(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[str]:
    """The same, but only what somebody who reads can notice: no inodes, and no times that nobody can set."""
    return sorted(
        path
        for path in {*before, *after}
        if path not in before or path not in after or before[path].told != after[path].told
    )
