"""The machine's inventory: GPUs, free space on the workspace's disk, whether jobs get a sandbox, and job folders.

All of it must be quick.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..bounded_run import run_bounded
from ..gpus import BINDINGS, DEVICE_FILE, DEVICES
from ..sandbox.sealing import has_sealed
from ..sandbox.shortage import Shortage
from ..sandbox.trial import can_sandbox, find_missing
from .gpu_tools import TOOLS, FoundGpu, Tool

TIMEOUT_S = 20.0
"""How long the tools of GPU vendors may take together. They wake idle GPUs. If a driver hangs, they never end."""

MAX_REASON = 300
MAX_JOBS = 1_000

TOOL_FOLDERS = "/usr/local/nvidia/bin:/opt/rocm/bin"
"""The folders of programs of NVIDIA's driver in containers, and of ROCm. The PATH of an SSH session has neither."""

BUS = Path("/sys/bus/pci/devices")
DISPLAYS = ("0x03", "0x12")
"""The beginnings of the classes of GPUs: display controllers, processing accelerators (the PCI ID Repository)."""


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
    """Whether jobs get a sandbox. If there is no room for a trial at the moment, whether they got one before."""
    try:
        return can_sandbox(find_missing(workspace, 0.0))
    except Shortage:
        return has_sealed(workspace)


class ToolError(Exception):
    """A tool of a GPU vendor does not list its GPUs. The message is a clause for people."""


def find_gpus(
    timeout_s: float = TIMEOUT_S, folders: str = TOOL_FOLDERS, bus: Path = BUS, devices: Path = DEVICES
) -> tuple[list[dict[str, Any]], str | None]:
    """The GPUs of all vendors, and a failure as a clause for people. A vendor without tools here has no GPUs.

    If the vendor has a `Binding.pci_id`, a failure counts only if the bus has a GPU of the vendor: its tool may have
    been installed for nothing.
    """
    deadline, gpus = time.monotonic() + timeout_s, []
    for vendor, tools in TOOLS.items():
        try:
            found = list_gpus(tools, partial(run_tool, timeout_s=timeout_s, deadline=deadline), folders)
        except ToolError as failure:
            if not (pci_id := BINDINGS[vendor].pci_id) or is_on_bus(pci_id, bus):
                return [], str(failure)
            continue
        gpus += [describe_gpu(vendor, gpu, bus) for gpu in found]
    return ([], closed) if (closed := find_closed(gpus, devices)) else (gpus, None)


def list_gpus(tools: Sequence[Tool], run: Callable[..., str], folders: str) -> list[FoundGpu]:
    """The GPUs of a vendor, from its first tool that lists them. If all fail, raises the `ToolError` of the first."""
    failures = []
    for tool in tools:
        program = shutil.which(tool.program, path=f"{os.environ.get('PATH', os.defpath)}:{folders}")
        if program is None:
            continue
        try:
            return tool.list_gpus(partial(run, program, tool.program))
        except ToolError as failure:
            failures.append(failure)
        except ValueError:
            failures.append(ToolError(f"{tool.program} gave an answer that cannot be read"))
    if failures:
        raise failures[0]
    return []


def run_tool(program: str, name: str, *words: str, timeout_s: float, deadline: float) -> str:
    """What a tool prints. Raises `ToolError`."""
    try:
        status, out, err = run_bounded([program, *words], max(deadline - time.monotonic(), 0.0))
    except OSError as error:
        raise ToolError(f"{name} cannot run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ToolError(f"{name} did not end within {timeout_s:g} seconds") from None
    if status:
        said = " ".join((out + err).decode(errors="replace").split()) or f"exit status {status}"
        raise ToolError(f"{name} failed: {said[:MAX_REASON]}")
    return out.decode(errors="replace")


def describe_gpu(vendor: str, gpu: FoundGpu, bus: Path) -> dict[str, Any]:
    """A GPU for the inventory, with all its device files. The list is empty if they are unknown."""
    files = [*gpu.files, *find_display_files(gpu.place, bus)]
    return {
        "vendor": vendor,
        "id": gpu.id,
        "files": [*BINDINGS[vendor].shared_files, *files] if files else [],
        "name": gpu.name,
        "memory_mib": gpu.memory_mib,
        "driver": gpu.driver,
    }


def find_display_files(place: str, bus: Path) -> list[str]:
    """The files in /dev/dri of the GPU at a bus address."""
    found = (f"dri/{path.name}" for path in (bus / place / "drm").glob("*")) if place else ()
    return sorted(filter(DEVICE_FILE.fullmatch, found))


def find_closed(gpus: Iterable[Mapping[str, Any]], devices: Path) -> str | None:
    """Why the account cannot use one of the GPUs, as a clause for people. None if it can use all of them."""
    for gpu in gpus:
        for name in gpu["files"] if BINDINGS[gpu["vendor"]].needs_group else ():
            path = devices / name
            if not name.startswith("dri/card") and path.exists() and not os.access(path, os.R_OK | os.W_OK):
                return f"the account may not open {path}: add it to the file's group, {name_group(path)}"
    return None


def name_group(path: Path) -> str:
    """The name of a file's group, or its number if it has no name."""
    try:
        return path.group()
    except KeyError:
        return str(path.stat().st_gid)


def is_on_bus(pci_id: str, bus: Path) -> bool:
    """Whether the PCI bus has a GPU of the vendor with this number."""
    for path in bus.glob("*"):
        with suppress(OSError):
            vendor, kind = ((path / name).read_text(errors="replace").strip() for name in ("vendor", "class"))
            if vendor == pci_id and kind.startswith(DISPLAYS):
                return True
    return False


def list_jobs(request: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of the folders in `jobs/`, oldest first, with their modification times. Limited to `MAX_JOBS`."""
    found = []
    with suppress(FileNotFoundError), os.scandir(Path(request["workspace"], "jobs")) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # A folder may be removed meanwhile.
                if re.fullmatch(r"[0-9a-f]{10}", entry.name) and entry.is_dir(follow_symlinks=False):
                    found.append({"id": entry.name, "mtime": int(entry.stat(follow_symlinks=False).st_mtime)})
    return {"jobs": sorted(found, key=lambda job: (job["mtime"], job["id"]))[:MAX_JOBS]}
