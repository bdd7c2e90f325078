"""What a process and all that it started take of the machine, from /proc; and on which core they run."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
LOOK_S = 0.1
"""How often the memory is looked at: its peak is the most that was seen."""


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What this thread starts inside the block runs on that core alone, and so does whatever that starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def find_tree(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in task.read_text().split())
            except OSError:
                continue
    return found


def read_cpu_s(pid: int) -> float:
    """Seconds of CPU that a process tree has used."""
    total = 0.0
    for one in find_tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) * TICK_S
    return total


def read_memory(pid: int) -> int:
    """Bytes that a process tree has in memory."""
    total = 0
    for one in find_tree(pid):
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * PAGE
        except OSError:
            continue
    return total


class Watched:
    """A process on a core of its own, with its peak of memory; it writes into a file."""

    def __init__(
        self, command: Sequence[str | Path], core: int, written: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        with on_core(core), written.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.written = written
        self.peak = 0
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.peak = max(self.peak, read_memory(self.process.pid))

    def cpu_s(self) -> float:
        """Seconds of CPU so far."""
        return read_cpu_s(self.process.pid)

    def stop(self) -> None:
        """End it."""
        self._ended.set()
        self._watcher.join()
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
