"""What a bench needs of its machine, told before it begins: what is missing, and how to get it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.browser import find_chromium


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a bench needs."""

    what: str
    is_there: bool
    advice: str
    """How to get it; or, where the bench can do without, what its absence means."""
    is_must: bool = True
    """Whether the bench cannot run without it."""


def may_run(needs: Sequence[Need]) -> bool:
    """Tell what is needed, and what of it is missing. Whether the bench can run."""
    print(render_needs(needs), file=sys.stderr, flush=True)
    return all(need.is_there or not need.is_must for need in needs)


def render_needs(needs: Sequence[Need]) -> str:
    """A line for each need. Pure."""
    lines = []
    for need in needs:
        if need.is_there:
            lines.append(f"  here     {need.what}")
        else:
            lines.append(f"  {'MISSING' if need.is_must else 'missing'}  {need.what}: {need.advice}")
    if any(need.is_must and not need.is_there for need in needs):
        lines.append("The bench cannot run without what is MISSING.")
    return "\n".join(["This bench needs:", *lines])


def two_cores(purpose: str) -> Need:
    """Two cores that this process may use."""
    found = len(os.sched_getaffinity(0))
    advice = "one core does everything here, and so the figures say little of a machine with more"
    return Need(f"2 cores ({found} here): {purpose}", found >= 2, advice, is_must=False)


def quiet_machine() -> Need:
    """Nobody else at work."""
    load = os.getloadavg()[0]
    advice = "others are at work on this machine, and so all figures are worse than they could be"
    return Need(f"a machine without other work (a load of {load:.1f} now)", load < 1.0, advice, is_must=False)


def memory(megabytes: int) -> Need:
    """Memory that is free."""
    free = read_free_memory(Path("/proc/meminfo").read_text())
    what = f"{megabytes} MB of free memory ({free} here)"
    return Need(what, free >= megabytes, "end other programs, or take a larger machine", is_must=False)


def read_free_memory(meminfo: str) -> int:
    """Megabytes that programs can have without swapping, of the text of /proc/meminfo (proc(5)). Pure."""
    with suppress(StopIteration):
        line = next(line for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) // 1024
    return 0


def disk(folder: Path, gigabytes: float) -> Need:
    """Room on the disk of a folder."""
    free = shutil.disk_usage(folder).free / 1e9
    what = f"{gigabytes:.1f} GB on the disk of {folder} ({free:.1f} here)"
    return Need(what, free >= gigabytes, "make room there, or name another folder with --folder, or a smaller --scale")


def sshd(program: Path | None) -> Need:
    """OpenSSH's server."""
    return Need("OpenSSH's sshd", program is not None, "apt-get install openssh-server")


def chromium() -> Need:
    """A browser."""
    advice = "apt-get install chromium-headless-shell, or name one in PTQ_TEST_CHROMIUM (see CONTRIBUTING.md)"
    return Need("a Chromium", find_chromium() is not None, advice)


def real_time() -> Need:
    """The right to go before everything else on a core."""
    advice = "run it as root; otherwise nobody knows when a core was not ours, and every request counts"
    return Need("the right to real-time scheduling", may_go_first(), advice, is_must=False)


def may_go_first() -> bool:
    """Whether this process may have a real-time priority."""
    before = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, before, os.sched_param(0))
    return True
