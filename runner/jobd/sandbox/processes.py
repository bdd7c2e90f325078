"""Finds all processes of a job, even those that try to hide, and kills them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

KILL_TIMEOUT_S = 20.0


class Process(NamedTuple):
    """A process that was alive a moment ago.

    `started` (clock ticks since boot) tells it from a later one with its PID.
    """

    pid: int
    parent: int
    started: int


def read_process(pid: int) -> Process | None:
    """The process with this PID, if it is alive and not a zombie (`proc(5)`, /proc/pid/stat).

    A process whose first thread has ended also looks like a zombie, but has other threads.
    """
    try:
        fields = read_whole(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    ended = fields[0] in b"ZX" and int(fields[17]) <= 1
    return None if ended else Process(pid, int(fields[1]), int(fields[19]))


def find_processes(job_id: str) -> list[Process]:
    """All processes whose environment names the job, and their descendants; not this process.

    A stage becomes the parent of orphans. So a process that clears its environment and leaves its parent is still
    found.
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
    """The environment that a process was started with; empty if it has ended or belongs to another user."""
    with suppress(OSError):
        return read_whole(f"/proc/{pid}/environ").split(b"\0")
    return []


def read_whole(path: str) -> bytes:
    """A file in /proc.

    Kept fast: after every command, jobd reads one for each process of the machine. Raises `OSError`.
    """
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - see above
        return file.read()


def kill_processes(job_id: str) -> tuple[int, int]:
    """Kill all processes of the job except this one. Returns how many were killed, and how many are still alive."""
    killed: set[tuple[int, int]] = set()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (found := find_processes(job_id)) and time.monotonic() < deadline:
        stopped: set[Process] = set()
        while not stopped.issuperset(found) and time.monotonic() < deadline:  # Stopped processes cannot fork.
            send_signal(set(found) - stopped, signal.SIGSTOP)
            stopped.update(found)
            found = find_processes(job_id)
        send_signal(found, signal.SIGKILL)
        killed.update((process.pid, process.started) for process in found)
        time.sleep(0.01)
    return len(killed), len(found)


def send_signal(processes: Iterable[Process], number: int) -> None:
    """Signal each process, unless its PID now belongs to another one."""
    for process in processes:
        now = read_process(process.pid)
        if now and now.started == process.started:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def reap_orphans(child: int) -> None:
    """Reap ended processes that were reparented to this one, but not `child`."""
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == child:
                return
            os.waitpid(ended.si_pid, 0)
