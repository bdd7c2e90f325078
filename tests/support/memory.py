"""Folders of tests in memory, for the `conftest.py` of packages in which few tests are about a machine's disk.

A test on the disk spends a seventh of its CPU time on files, and waits for them much longer: SQLite and git return when
the disk has what they wrote. That matters after a power failure, which no test has.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
NEEDS_BYTES = 2**30
"""More than all workers have there at any time. In a container, `MEMORY` is often much smaller."""

PREFIX = "ptq-tests-"


def has_room() -> bool:
    """Whether tests can have their folders in memory."""
    return os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > NEEDS_BYTES


@pytest.fixture(scope="session")
def memory() -> Iterator[Path | None]:
    """This process's folder in memory, or None if there is no room. Removes the folders of earlier runs."""
    if not has_room():
        yield None
        return
    for folder in MEMORY.glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = _lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
    # A process that starts now removes all folders with `PREFIX` and without a lock, so the lock comes first.
    unnamed = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}", dir=MEMORY))
    lock = _lock(unnamed)
    folder = unnamed.rename(MEMORY / unnamed.name.removeprefix("new-"))
    yield folder
    with suppress(OSError):  # The folders of failed tests stay until the next run.
        folder.rmdir()
    os.close(lock)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, memory: Path | None) -> Iterator[Path]:
    """A folder in memory, unless the test is marked with `on_disk`. It stays if the test fails."""
    if memory is None or request.node.get_closest_marker("on_disk"):
        yield request.getfixturevalue("tmp_path")  # pytest's own, which this one overrides.
        return
    folder = Path(tempfile.mkdtemp(prefix=re.sub(r"\W", "_", request.node.name)[:30], dir=memory))
    failed = request.session.testsfailed
    yield folder
    if request.session.testsfailed == failed:
        shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path) -> int:
    """Raises `BlockingIOError` if a process that still runs has the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
