"""The tombstone of a job. After the job's environment was removed, no late request can start anything for the job."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from ..files import Failure, JobPaths, open_plain

KEPT_S = 30 * 86_400
"""How long a tombstone is kept, in seconds. No request is that late."""


@contextmanager
def not_ended(job: JobPaths) -> Iterator[None]:
    """Make `ended` wait until the block ends. Raises `Failure` if the job has ended already."""
    with _open(job, fcntl.LOCK_SH) as mark:
        if mark.read(1):
            raise Failure("ended", "the job has ended, and its environment is gone")
        yield


@contextmanager
def ended(job: JobPaths) -> Iterator[None]:
    """End the job for good. Inside the block, and after it, nothing can be started for the job."""
    with _open(job, fcntl.LOCK_EX) as mark:
        # If the disk is full, there may be room only after the job's files are removed.
        is_written = _write(mark)
        yield
        if not is_written and not _write(mark):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    _forget_old(job)


def _write(mark: IO[str]) -> bool:
    """Write the tombstone. Returns False if the disk is full."""
    try:
        os.write(mark.fileno(), b"ended\n")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


@contextmanager
def _open(job: JobPaths, lock: int) -> Iterator[IO[str]]:
    folder = job.workspace / "ended"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / job.id, "a+", opener=open_plain) as mark:
        fcntl.flock(mark, lock)
        mark.seek(0)
        yield mark


def _forget_old(job: JobPaths) -> None:
    for mark in (job.workspace / "ended").iterdir():
        with suppress(OSError):
            if mark.stat().st_mtime < time.time() - KEPT_S:
                mark.unlink()
