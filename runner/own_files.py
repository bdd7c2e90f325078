"""Files that nobody but our own account may read, whatever the umask is."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""What the group and all others may do."""


def open_private(path: str, flags: int) -> int:
    """An opener for `open`: a file that it creates is private."""
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path) -> None:
    """Create a folder, and those above it, for our account alone. Raises `OSError`. One that exists stays as it is."""
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def close_to_others(path: Path) -> None:
    """Make a file or folder of our account private; earlier versions left some open. Others' are left alone."""
    with suppress(OSError):  # It is not there, or its file system knows no modes.
        about = path.stat()
        if about.st_uid == os.geteuid() and about.st_mode & OTHERS:
            path.chmod(stat.S_IMODE(about.st_mode) & ~OTHERS)
