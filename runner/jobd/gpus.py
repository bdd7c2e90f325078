"""Binds jobs to GPUs, with the variables that the vendors' runtimes read, and with the GPUs' device files.

`verbs.gpu_tools` reads which GPUs there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

DEVICES = Path("/dev")

DEVICE_FILE = re.compile(r"nvidia[0-9]{1,4}|nvidia-caps/nvidia-cap[0-9]{1,4}|kfd|dri/(card|renderD)[0-9]{1,4}")
"""Matches the device files of GPUs, relative to /dev, but not those of NVIDIA's driver (`nvidiactl`, `nvidia-uvm`)."""


class Binding(NamedTuple):
    """How jobs are bound to the GPUs of a vendor."""

    variable: str
    """The variable that says which GPUs a process may use, by their ids."""
    with_numbers: Mapping[str, str] = {}
    """More variables, which are set if ids are numbers."""
    shared_files: Sequence[str] = ()
    """Device files that every GPU of the vendor needs in addition to its own."""
    needs_group: bool = False
    """Whether an account has to be in a group, `render` on most machines, to open the device files."""
    pci_id: str = ""
    """The vendor's number on the PCI bus.

    Empty if the vendor's tool is installed together with its driver. Every failure of the tool counts then.
    """


BINDINGS: Mapping[str, Binding] = {
    "nvidia": Binding("CUDA_VISIBLE_DEVICES"),
    # HIP counts only what ROCr has left over, so HIP_VISIBLE_DEVICES is not set (ROCm's "GPU isolation techniques").
    "amd": Binding("ROCR_VISIBLE_DEVICES", shared_files=("kfd",), needs_group=True, pci_id="0x1002"),
    # With these variables, the numbers are those of whole cards, in the order of the bus (Level Zero's specification,
    # "Environment Variables"). Without them, the numbers would be those of tiles.
    "intel": Binding(
        "ZE_AFFINITY_MASK",
        with_numbers={"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"},
        needs_group=True,
        pci_id="0x8086",
    ),
}


def is_gpu(value: object) -> bool:
    """Whether this is a GPU of a request: its vendor, its id, and its device files."""
    if not isinstance(value, dict) or value.keys() != {"vendor", "id", "files"}:
        return False
    vendor, files = value["vendor"], value["files"]
    is_named = isinstance(vendor, str) and vendor in BINDINGS and isinstance(value["id"], str)
    return is_named and isinstance(files, list) and all(map(_is_device_file, files))


def _is_device_file(value: object) -> bool:
    return isinstance(value, str) and DEVICE_FILE.fullmatch(value) is not None


def read_gpus(prepared: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The GPUs of the slot that an environment was prepared for. Empty if the job sees all GPUs of the machine."""
    gpus = prepared.get("gpus")
    return gpus if isinstance(gpus, list) else ()


def can_hide_others(gpus: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the device files of a job's own GPUs are known, so that its sandbox can close those of the others."""
    return bool(gpus) and all(gpu["files"] for gpu in gpus)


def find_others(gpus: Sequence[Mapping[str, Any]], devices: Path = DEVICES) -> list[Path]:
    """The device files of all other GPUs. Empty if `gpus` is empty, or if the files of one of `gpus` are unknown."""
    if not can_hide_others(gpus):
        return []
    own = {name for gpu in gpus for name in gpu["files"]}
    return [devices / name for name in _list_files(devices) if name not in own]


def _list_files(devices: Path) -> Iterator[str]:
    for pattern in ("nvidia*", "nvidia-caps/*", "kfd", "dri/*"):
        for path in sorted(devices.glob(pattern)):
            name = str(path.relative_to(devices))
            if DEVICE_FILE.fullmatch(name):
                yield name


def name_gpus(gpus: Sequence[Mapping[str, Any]], *, sealed: bool) -> dict[str, str]:
    """The variables that name a job's GPUs to its processes. Empty if `gpus` is empty.

    A vendor's variables are left out if its ids are numbers and the sandbox hides the other GPUs, because a runtime
    numbers only the GPUs that it can open.
    """
    found: dict[str, str] = {}
    for vendor, binding in BINDINGS.items():
        ids = [gpu["id"] for gpu in gpus if gpu["vendor"] == vendor]
        by_number = any(map(str.isdecimal, ids))
        if ids and not (by_number and sealed and can_hide_others(gpus)):
            found.update({binding.variable: ",".join(ids), **(binding.with_numbers if by_number else {})})
    return found
