"""Locks that several jobs of a machine take in turn."""

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
    """Hold a lock. Raises `Failure` when others hold it until the deadline, a time of the monotonic clock."""
    with open(path, "w", opener=open_plain) as file:
        if not try_lock(file.fileno()):
            when_busy()
            while not try_lock(file.fileno()):
                if time.monotonic() > deadline:
                    raise Failure("timed_out", "other jobs were busy with the same repository for too long")
                time.sleep(TICK_S)
        yield


def keep_locked(path: Path, patience_s: float) -> None:
    """Hold a lock until this process ends. Raises `Failure` when somebody else holds it for that long."""
    descriptor, deadline = open_plain(str(path), os.O_WRONLY | os.O_CREAT), time.monotonic() + patience_s
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            os.close(descriptor)
            raise Failure("busy", "somebody else is at work in the job's environment")
        time.sleep(TICK_S)
