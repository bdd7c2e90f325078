"""What is on the disk: how much more there is, what of it is in memory, and whether a tree is as it was."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

CACHES = Path("/proc/sys/vm/drop_caches")


def can_forget() -> bool:
    """Whether we may empty this machine's page cache."""
    return os.access(CACHES, os.W_OK)


def forget() -> None:
    """Have nothing of the disk in memory (proc(5), /proc/sys/vm/drop_caches)."""
    os.sync()
    CACHES.write_text("3")


def count(*folders: Path) -> tuple[int, int]:
    """Bytes and inodes of folders together; a file that has many names is counted once."""
    return _sum("--block-size=1", folders), _sum("--inodes", folders)


def _sum(what: str, folders: Iterable[Path]) -> int:
    words = ["du", "--summarize", what, "--", *map(str, folders)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return sum(int(line.split()[0]) for line in done.stdout.splitlines())


def find_free(folder: Path) -> int:
    """Bytes that are free on a folder's file system, once all that was written is there."""
    os.sync()
    about = os.statvfs(folder)
    return about.f_bfree * about.f_frsize


def remove(folder: Path) -> None:
    """Remove a tree, whatever modes it has."""
    with suppress(FileNotFoundError):
        subprocess.run(["chmod", "-R", "u+rwX", str(folder)], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", str(folder)], check=True)
