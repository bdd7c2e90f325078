"""A job whose environment was cleaned stays ended: a request that comes late, from whomever, starts nothing again."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from .files import Failure, Job, open_plain

KEPT_S = 30 * 86_400
"""How long it is remembered. No request is that late."""


@contextmanager
def not_ended(job: Job) -> Iterator[None]:
    """Let the job not be ended inside the block. Raises `Failure` when it has been."""
    with _open(job, fcntl.LOCK_SH) as mark:
        if mark.read(1):
            raise Failure("ended", "the job has ended, and its environment is gone")
        yield


@contextmanager
def ended(job: Job) -> Iterator[None]:
    """End the job for good; inside the block, and from then on, nothing of it can be started."""
    with _open(job, fcntl.LOCK_EX) as mark:
        mark.write("ended\n")
        mark.flush()
        yield
    _forget_old(job)


@contextmanager
def _open(job: Job, lock: int) -> Iterator[IO[str]]:
    folder = job.workspace / "ended"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / job.id, "a+", opener=open_plain) as mark:
        fcntl.flock(mark, lock)
        mark.seek(0)
        yield mark


def _forget_old(job: Job) -> None:
    for mark in (job.workspace / "ended").iterdir():
        with suppress(OSError):
            if mark.stat().st_mtime < time.time() - KEPT_S:
                mark.unlink()
