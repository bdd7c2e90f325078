"""Finds all processes of a job, even those that try to hide, and kills them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

KILL_TIMEOUT_S = 20.0
MAX_PAUSE_S = 0.5
"""The longest pause between two searches. A process that hangs in the kernel can take minutes to end."""

MARK = b"PTQ_JOB_ID="
"""The variable that names the job of a process."""

PIECE = 65_536
"""How many bytes of a file in /proc are read at once. Most such files are smaller."""

KERNEL_THREAD = 0x00200000
"""`PF_KTHREAD` of Linux's sched.h. A machine with many processors has a thousand such threads."""

MAX_LOOKS = 5
"""How many times a process is read at most while its parent is missing."""


class Process(NamedTuple):
    """A process that was alive a moment ago.

    `started` (clock ticks since boot) tells it from a later process with the same PID.
    """

    pid: int
    parent: int
    started: int


def read_process(pid: int) -> Process | None:
    """The process with this PID, if it is alive, not a zombie, and not a thread of the kernel.

    `proc(5)` explains the fields of /proc/pid/stat. A process whose first thread has ended also looks like a zombie,
    but has other threads.
    """
    try:
        fields = read_whole(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    ended = fields[0] in b"ZX" and int(fields[17]) <= 1
    return None if ended or int(fields[6]) & KERNEL_THREAD else Process(pid, int(fields[1]), int(fields[19]))


def find_processes(job_id: str) -> list[Process]:
    """All processes of the job, except this one.

    Of a process and its ancestors, the outermost one whose environment names a job decides whose process it is. A job
    can name another job in its own processes, but not in its stage, which is above them and adopts their orphans. So a
    process is still found after it has cleared its environment and left its parent.
    """
    processes = list_processes()
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent if process.parent in processes else 0, []).append(process)
    above = set(list_line(os.getpid(), processes))
    found: list[Process] = []
    waiting: list[tuple[Process, bool | None]] = [(process, None) for process in children.pop(0, [])]
    while waiting:
        process, is_own = waiting.pop()
        if is_own is None:
            is_own = names_job(process.pid, job_id)
            # jobd itself may run in a job. That job is then an ancestor of all others, so it is ignored.
            is_own = None if process.pid in above and not is_own else is_own
        if is_own and process.pid != os.getpid():
            found.append(process)
        waiting += [(child, is_own) for child in children.pop(process.pid, [])]
    return found


def list_processes() -> dict[int, Process]:
    """All living processes by PID. Each one's parent is included, unless it belongs to another user and is hidden."""
    found: dict[int, Process] = {}
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - called very often
    for _ in range(MAX_LOOKS):
        for pid in pids:
            found.pop(pid, None)
            if process := read_process(pid):
                found[pid] = process
        # A missing parent is new, or has ended. If it has ended, the process has another parent now.
        orphans = [process for process in found.values() if process.parent and process.parent not in found]
        pids = [pid for process in orphans for pid in (process.pid, process.parent)]
        if not pids:
            break
    return found


def list_line(pid: int, processes: Mapping[int, Process]) -> Iterator[int]:
    """A process, its parent, the parent's parent, and so on."""
    while pid in processes:
        yield pid
        pid = processes[pid].parent


def names_job(pid: int, job_id: str) -> bool | None:
    """Whether the environment of a process names this job. None if it names no job.

    Processes of other accounts do not count. They can name any job, and jobd can read them if it is root.
    """
    text = read_environment(pid)
    if MARK not in text:  # As for most processes. There are many of them, and many variables in each.
        return None
    named = [word for word in text.split(b"\0") if word.startswith(MARK)]
    return MARK + job_id.encode() in named if named and is_of_our_account(pid) else None


def is_of_our_account(pid: int) -> bool:
    """Whether our account started a process.

    The owner of its files in /proc does not show that: if another account starts `su`, these files belong to root.
    """
    with suppress(OSError):
        (real,) = re.findall(rb"^Uid:\t(\d+)", read_whole(f"/proc/{pid}/status"), re.MULTILINE)
        return int(real) == os.getuid()
    return False


def read_environment(pid: int) -> bytes:
    """The environment that a process was started with. Empty if it has ended or belongs to another user."""
    with suppress(OSError):
        return read_whole(f"/proc/{pid}/environ")
    return b""


def read_whole(path: str) -> bytes:
    """The contents of a file in /proc. Raises `OSError`.

    This must be fast: after every command, jobd reads such a file for each process of the machine.
    """
    descriptor, parts = os.open(path, os.O_RDONLY), [b""]
    try:
        while part := os.read(descriptor, PIECE):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def kill_processes(job_id: str) -> tuple[int, int]:
    """Kill all processes of the job except this one. Returns how many were killed, and how many are still alive.

    A killed process takes a while to end. Meanwhile its ancestors may have ended, so that
    `find_processes` no longer finds it.
    """
    killed: set[Process] = set()
    deadline, pause_s = time.monotonic() + KILL_TIMEOUT_S, 0.01
    while (found := [*find_processes(job_id), *filter(is_alive, killed)]) and time.monotonic() < deadline:
        stopped: set[Process] = set()
        while not stopped.issuperset(found) and time.monotonic() < deadline:  # Stopped processes cannot fork.
            send_signal(set(found) - stopped, signal.SIGSTOP)
            stopped.update(found)
            found = find_processes(job_id)
        send_signal(found, signal.SIGKILL)
        killed.update(found)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
    return len({process.pid for process in killed}), len({process.pid for process in found})


def is_alive(process: Process) -> bool:
    """Whether a process is still alive. Its PID may belong to another one by now."""
    now = read_process(process.pid)
    return bool(now and now.started == process.started)


def send_signal(processes: Iterable[Process], number: int) -> None:
    """Signal each process that is still alive."""
    for process in processes:
        if is_alive(process):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def reap_orphans(child: int) -> None:
    """Reap ended processes that were reparented to this one, but not `child`."""
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == child:
                return
            os.waitpid(ended.si_pid, 0)
