"""What there is on the machine: GPUs, room on the workspace's disk, whether jobs can be sealed, folders of jobs.

None of it may take long.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..sandbox.namespaces import find_missing, is_sealable

QUERY = ("index", "uuid", "pci.bus_id", "memory.total", "driver_version", "name")
"""What `nvidia-smi --help-query-gpu` calls what we ask for. The name is last: nobody says what may be in one."""

PATIENCE_S = 20.0
"""How long nvidia-smi may take. It wakes every GPU that nobody uses; stuck in its driver, it never returns."""

MAX_OUTPUT = 65_536
"""Bytes that a pipe takes while nobody reads it, by default (`pipe(7)`)."""

MAX_REASON = 300
MAX_JOBS = 1_000

DRIVER = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver tells of each GPU, in a folder named after its place on the bus."""


def take_inventory(request: Mapping[str, Any]) -> dict[str, Any]:
    """The machine's GPUs, or why they cannot be told, room on the workspace's disk, and whether jobs can be sealed.

    Raises `OSError`.
    """
    workspace = Path(request["workspace"])
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk = os.statvfs(workspace)
    gpus, trouble = find_gpus()
    return {
        "gpus": gpus,
        "gpu_trouble": trouble,
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "total_bytes": disk.f_blocks * disk.f_frsize,
        "free_inodes": disk.f_favail if disk.f_files else None,  # Some file systems make them as they go.
        "sealed": is_sealable(find_missing(workspace)),
    }


def find_gpus(patience_s: float = PATIENCE_S) -> tuple[list[dict[str, Any]], str | None]:
    """The GPUs, none where there is no nvidia-smi; and why it cannot say them, as a clause for people."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], None
    words = [program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        status, out, err = run_bounded(words, patience_s)
    except OSError as error:
        return [], f"nvidia-smi cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi did not end within {patience_s:g} seconds"
    if status:
        said = " ".join((out + err).decode(errors="replace").split()) or f"exit status {status}"
        return [], f"nvidia-smi failed: {said[:MAX_REASON]}"
    try:
        return list(read_gpus(out.decode(errors="replace"), find_minors(DRIVER))), None
    except ValueError:
        return [], "nvidia-smi answered something that makes no sense"


def run_bounded(argv: Sequence[str], limit_s: float) -> tuple[int, bytes, bytes]:
    """A program's exit status and output. Raises `TimeoutExpired`, also where it says too much, and `OSError`.

    It is not waited for any longer: what is stuck in a driver cannot be killed.
    """
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout
    assert process.stderr
    try:
        status = process.wait(limit_s)
        return status, read_now(process.stdout.fileno()), read_now(process.stderr.fileno())
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.returncode = 0  # Nobody will wait for it.
        raise
    finally:
        process.stdout.close()
        process.stderr.close()


def read_now(pipe: int) -> bytes:
    """What is in a pipe, whoever may still hold its other end."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        return os.read(pipe, MAX_OUTPUT)
    return b""


def read_gpus(text: str, minors: Mapping[tuple[int, str], str]) -> Iterator[dict[str, Any]]:
    """The GPUs in nvidia-smi's answer. Raises `ValueError` where it is none."""
    for line in filter(str.strip, text.splitlines()):
        index, uuid, place, memory, driver, name = (part.strip() for part in line.split(",", len(QUERY) - 1))
        yield {
            "index": int(index),
            # Its device file has another number where the driver found the GPUs in another order than the bus has them.
            "device": minors.get(read_place(place), str(int(index))),
            "uuid": uuid,
            "name": name,
            "memory_mib": int(memory) if memory.isdecimal() else None,  # "[N/A]" where it is the machine's own memory.
            "driver": driver,
        }


def find_minors(folder: Path) -> dict[tuple[int, str], str]:
    """The number of each GPU's device file, by its place on the bus, as far as the driver tells it."""
    minors = {}
    for path in folder.glob("*/information"):
        with suppress(OSError, ValueError):
            if found := re.search(r"^Device Minor:\s*(\d+)$", path.read_text(errors="replace"), re.MULTILINE):
                minors[read_place(path.parent.name)] = found[1]
    return minors


def read_place(text: str) -> tuple[int, str]:
    """A place on the bus, `00000000:3B:00.0` or `0000:3b:00.0`, in a form to compare. Raises `ValueError`."""
    domain, _, rest = text.partition(":")
    return int(domain, 16), rest.lower()


def list_jobs(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ids of the folders below `jobs/`, the oldest first, with the time at which each was last touched. Bounded."""
    found = []
    with suppress(FileNotFoundError), os.scandir(Path(request["workspace"], "jobs")) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # One may go meanwhile.
                if re.fullmatch(r"[0-9a-f]{10}", entry.name) and entry.is_dir(follow_symlinks=False):
                    found.append({"id": entry.name, "mtime": int(entry.stat(follow_symlinks=False).st_mtime)})
    return {"jobs": sorted(found, key=lambda job: (job["mtime"], job["id"]))[:MAX_JOBS]}
