"""When a core of this machine was not ours: what others take of a host says nothing about the service.

A thread that goes before everything else on its core looks at the clock every millisecond. Whatever it is late by, no
process of ours could run there: the host had given the core to somebody else, or was slow to wake it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

Stall = tuple[float, float]
"""From when to when, by `time.perf_counter`, which all processes of a machine share."""

LOOK_S, LATE_S = 0.001, 0.0005


@contextmanager
def watching(cores: Collection[int]) -> Iterator[list[Stall]]:
    """Fill the list with the stalls of the block once it is over. It takes the right to real-time scheduling."""
    watchers = [
        subprocess.Popen([sys.executable, __file__, str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for core in cores
    ]
    stalls: list[Stall] = []
    try:
        yield stalls
    finally:
        # Its input ends, and so it says what it saw. Where the block has failed, that is what counts.
        said = [watcher.communicate()[0] for watcher in watchers]
        stalls += [(start, end) for text in said if text for start, end in json.loads(text)]


def is_stalled(stalls: Sequence[Stall], began: float, ended: float) -> bool:
    """Whether one of them falls into that time. Pure."""
    return any(start < ended and began < end for start, end in stalls)


def watch(core: int) -> None:
    """Tell the stalls of one core, once standard input has ended."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    stalls: list[Stall] = []
    while not ended.is_set():
        due = time.perf_counter() + LOOK_S
        time.sleep(LOOK_S)
        if (now := time.perf_counter()) > due + LATE_S:
            stalls.append((due, now))
    print(json.dumps(stalls))


if __name__ == "__main__":
    watch(int(sys.argv[1]))
