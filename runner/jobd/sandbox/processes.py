"""Finds the processes of a job, whatever they did to hide, and kills them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

KILL_PATIENCE_S = 20.0


class Process(NamedTuple):
    """One that was alive a moment ago. `started` (clock ticks since boot) tells it from a later one with its number."""

    pid: int
    parent: int
    started: int


def read_process(pid: int) -> Process | None:
    """The process of this number, if it is alive and no zombie (`proc(5)`, /proc/pid/stat).

    One whose first thread has ended looks like a zombie, and has others.
    """
    try:
        fields = read_whole(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    ended = fields[0] in b"ZX" and int(fields[17]) <= 1
    return None if ended else Process(pid, int(fields[1]), int(fields[19]))


def find_processes(job_id: str) -> list[Process]:
    """Every process that was started for the job, by its environment, and whatever descends from one; without us.

    A stage makes itself the parent of orphans: what clears its environment and leaves its parent is found below it.
    """
    numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - asked all the time
    processes = {process.pid: process for process in map(read_process, numbers) if process}
    mark = f"PTQ_JOB_ID={job_id}".encode()
    own = {pid for pid in processes if mark in read_environment(pid)}
    new = own
    while new:
        new = {pid for pid, process in processes.items() if process.parent in own} - own
        own = own | new
    return [processes[pid] for pid in own - {os.getpid()}]


def read_environment(pid: int) -> list[bytes]:
    """The environment that a process was started with; empty when it has ended, or is another user's."""
    with suppress(OSError):
        return read_whole(f"/proc/{pid}/environ").split(b"\0")
    return []


def read_whole(path: str) -> bytes:
    """A file of /proc; after every command one is read for each process of the machine. Raises `OSError`."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - see above
        return file.read()


def kill_processes(job_id: str) -> tuple[int, int]:
    """Kill everything of the job but ourselves. Returns how many were killed, and how many are alive nevertheless."""
    killed: set[tuple[int, int]] = set()
    deadline = time.monotonic() + KILL_PATIENCE_S
    while (found := find_processes(job_id)) and time.monotonic() < deadline:
        stopped: set[Process] = set()
        while not stopped.issuperset(found) and time.monotonic() < deadline:  # What is stopped forks no more.
            send_signal(set(found) - stopped, signal.SIGSTOP)
            stopped.update(found)
            found = find_processes(job_id)
        send_signal(found, signal.SIGKILL)
        killed.update((process.pid, process.started) for process in found)
        time.sleep(0.01)
    return len(killed), len(found)


def send_signal(processes: Iterable[Process], number: int) -> None:
    """Signal each, unless its number belongs to another one by now."""
    for process in processes:
        now = read_process(process.pid)
        if now and now.started == process.started:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def reap_orphans(child: int) -> None:
    """Take the exit statuses of ended processes that became our children, but not that of `child`."""
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == child:
                return
            os.waitpid(ended.si_pid, 0)
