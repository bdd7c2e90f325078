"""The machine's inventory: GPUs, free space on the workspace's disk, whether jobs get a sandbox, and job folders.

All of it must be quick.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..bounded_run import run_bounded
from ..sandbox.namespaces import can_sandbox, find_missing
from ..sandbox.sealing import has_sealed
from ..sandbox.shortage import Shortage

QUERY = ("index", "uuid", "pci.bus_id", "memory.total", "driver_version", "name")
"""The fields that we ask nvidia-smi for (`--help-query-gpu`). The name is last, because it may contain commas."""

TIMEOUT_S = 20.0
"""How long nvidia-smi may take. It wakes every idle GPU; if the driver hangs, it never returns."""

MAX_REASON = 300
MAX_JOBS = 1_000

DRIVER_PROGRAMS = "/usr/local/nvidia/bin"
"""Where containers have the programs of NVIDIA's driver. The PATH of an SSH session does not have it."""

DRIVER = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver describes each GPU here, in a folder named after its bus address."""


def take_inventory(request: Mapping[str, Any]) -> dict[str, Any]:
    """The machine's GPUs, or why they are unknown; free space on the workspace's disk; whether jobs get a sandbox.

    Raises `OSError`.
    """
    workspace = Path(request["workspace"])
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk = os.statvfs(workspace)
    gpus, failure = find_gpus()
    return {
        "gpus": gpus,
        "gpu_trouble": failure,
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "total_bytes": disk.f_blocks * disk.f_frsize,
        "free_inodes": disk.f_favail if disk.f_files else None,  # Some file systems create inodes on demand.
        "sealed": is_sealing(workspace),
    }


def is_sealing(workspace: Path) -> bool:
    """Whether jobs get a sandbox; as before if the machine has no room for a trial at the moment."""
    try:
        return can_sandbox(find_missing(workspace, 0.0))
    except Shortage:
        return has_sealed(workspace)


def find_gpus(
    timeout_s: float = TIMEOUT_S, driver_programs: str = DRIVER_PROGRAMS
) -> tuple[list[dict[str, Any]], str | None]:
    """The GPUs, and a failure as a clause for people. Without nvidia-smi there are no GPUs and no failure."""
    program = shutil.which("nvidia-smi", path=f"{os.environ.get('PATH', os.defpath)}:{driver_programs}")
    if program is None:
        return [], None
    words = [program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        status, out, err = run_bounded(words, timeout_s)
    except OSError as error:
        return [], f"nvidia-smi cannot run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi did not end within {timeout_s:g} seconds"
    if status:
        said = " ".join((out + err).decode(errors="replace").split()) or f"exit status {status}"
        return [], f"nvidia-smi failed: {said[:MAX_REASON]}"
    try:
        return list(read_gpus(out.decode(errors="replace"), find_minors(DRIVER))), None
    except ValueError:
        return [], "nvidia-smi gave an answer that cannot be read"


def read_gpus(text: str, minors: Mapping[tuple[int, str], str]) -> Iterator[dict[str, Any]]:
    """The GPUs in nvidia-smi's answer. Raises `ValueError` if it cannot be read."""
    for line in filter(str.strip, text.splitlines()):
        index, uuid, place, memory, driver, name = (part.strip() for part in line.split(",", len(QUERY) - 1))
        yield {
            "index": int(index),
            # The device file has another number if the driver found the GPUs in another order than the bus has them.
            "device": minors.get(read_place(place), str(int(index))),
            "uuid": uuid,
            "name": name,
            "memory_mib": int(memory) if memory.isdecimal() else None,  # "[N/A]" if the GPU uses the machine's memory.
            "driver": driver,
        }


def find_minors(folder: Path) -> dict[tuple[int, str], str]:
    """The device file number of each GPU, by bus address, as far as the driver reports it."""
    minors = {}
    for path in folder.glob("*/information"):
        with suppress(OSError, ValueError):
            if found := re.search(r"^Device Minor:\s*(\d+)$", path.read_text(errors="replace"), re.MULTILINE):
                minors[read_place(path.parent.name)] = found[1]
    return minors


def read_place(text: str) -> tuple[int, str]:
    """A bus address, `00000000:3B:00.0` or `0000:3b:00.0`, in a form to compare. Raises `ValueError`."""
    domain, _, rest = text.partition(":")
    return int(domain, 16), rest.lower()


def list_jobs(request: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of the folders in `jobs/`, oldest first, with their modification times. Limited to `MAX_JOBS`."""
    found = []
    with suppress(FileNotFoundError), os.scandir(Path(request["workspace"], "jobs")) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # A folder may be removed meanwhile.
                if re.fullmatch(r"[0-9a-f]{10}", entry.name) and entry.is_dir(follow_symlinks=False):
                    found.append({"id": entry.name, "mtime": int(entry.stat(follow_symlinks=False).st_mtime)})
    return {"jobs": sorted(found, key=lambda job: (job["mtime"], job["id"]))[:MAX_JOBS]}
