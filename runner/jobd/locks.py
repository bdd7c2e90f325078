"""Locks that the jobs of a machine share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .files import Failure, open_plain, try_lock

TICK_S = 0.01


@contextmanager
def locked(path: Path, deadline: float, when_busy: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock. Calls `when_busy` if others hold it at first.

    Raises `Failure` if others still hold it at the deadline, a time of the monotonic clock.
    """
    with open(path, "w", opener=open_plain) as file:
        if not try_lock(file.fileno()):
            when_busy()
            while not try_lock(file.fileno()):
                if time.monotonic() > deadline:
                    raise Failure("timed_out", "other jobs were busy with the same repository for too long")
                time.sleep(TICK_S)
        yield


def keep_locked(path: Path, patience_s: float) -> None:
    """Hold a lock until this process ends. Raises `Failure` if another process still holds it after `patience_s`."""
    descriptor, deadline = open_plain(str(path), os.O_WRONLY | os.O_CREAT), time.monotonic() + patience_s
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            os.close(descriptor)
            raise Failure("busy", "another process is using the job's environment")
        time.sleep(TICK_S)
