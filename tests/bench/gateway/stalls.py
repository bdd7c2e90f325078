"""When a core of this machine was not ours: what others take of a host says nothing about the service.

A thread that goes before everything else on its core looks at the clock every millisecond. Whatever it is late by, no
process of ours could run there: the host had given the core to somebody else, or was slow to wake it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Stall = tuple[float, float]
"""From when to when, by `time.perf_counter`, which all processes of a machine share."""

LOOK_S, LATE_S = 0.001, 0.0005


@contextmanager
def watching(cores: Sequence[int], folder: Path) -> Iterator[list[Stall]]:
    """Fill the list with the stalls of the block once it is over. Raises `PermissionError`."""
    before = os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # See whether we may.
    os.sched_setscheduler(0, before, os.sched_param(0))
    files = [folder / f"stalls-{core}" for core in cores]
    watchers = [
        subprocess.Popen([sys.executable, __file__, str(core), file]) for core, file in zip(cores, files, strict=True)
    ]
    stalls: list[Stall] = []
    try:
        yield stalls
    finally:
        for watcher in watchers:
            watcher.send_signal(signal.SIGINT)
            watcher.wait()
        stalls += [(start, end) for file in files for start, end in json.loads(file.read_text())]


def is_stalled(stalls: Sequence[Stall], began: float, ended: float) -> bool:
    """Whether one of them falls into that time. Pure."""
    return any(start < ended and began < end for start, end in stalls)


def watch(core: int, file: Path) -> None:
    """Note the stalls of one core until interrupted."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    stalls: list[Stall] = []
    try:
        while True:
            due = time.perf_counter() + LOOK_S
            time.sleep(LOOK_S)
            if (now := time.perf_counter()) > due + LATE_S:
                stalls.append((due, now))
    except KeyboardInterrupt:
        file.write_text(json.dumps(stalls))


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]))
