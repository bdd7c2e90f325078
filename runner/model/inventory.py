"""The inventory that a machine reports: its GPUs and its free disk space. Also which GPUs belong to which slot. Pure.

The report is limited and checked here, because an agent may have tampered with the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from runner.model.jobd_answers import SAYS, read_number, read_text
from runner.model.machines import Gpu, Lease, Machine

MAX_GPUS = 64
MAX_NAME = 100
MAX_FILES = 8
MAX_TROUBLE = 400
MAX_STRANGERS = 20
"""The most folders of unknown jobs that are stored by name."""

GPU_ID = re.compile(r"[A-Za-z0-9-]{1,80}(/[0-9]{1,4}/[0-9]{1,4})?")
"""The id of a GPU. The slashes are for old drivers, which call a MIG instance `MIG-GPU-(UUID)/7/0`."""
DEVICE_FILE = re.compile(r"[A-Za-z0-9-]{1,40}(/[A-Za-z0-9-]{1,40})?")

GB = 1_000_000_000
FRESH = timedelta(seconds=60)
"""A stored inventory is replaced after this time, even if only the free disk space has changed."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """A vendor of GPUs, with the labels and messages for operators."""

    labels: frozenset[str]
    """Labels that say that a machine has GPUs of this vendor."""
    tools: str
    """The programs that list the vendor's GPUs on a machine."""
    fix: str
    """What to do if these programs list no GPUs, as a clause."""


VENDORS: Mapping[str, Vendor] = {
    "nvidia": Vendor(frozenset({"cuda", "nvidia"}), "nvidia-smi", "install NVIDIA's driver there"),
    "amd": Vendor(frozenset({"rocm", "amd"}), "amd-smi or rocm-smi", "install AMD's driver and ROCm's amd-smi there"),
    "intel": Vendor(frozenset({"xpu", "intel"}), "xpu-smi", "install Intel's driver, Level Zero and xpu-smi there"),
}
ANY_GPU = "gpu"
"""The label that says that a machine has GPUs of any vendor."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The resources of a machine. Sizes in bytes."""

    gpus: tuple[Gpu, ...]
    gpu_trouble: str | None
    """Why the machine cannot list its GPUs, as a clause. None if it can, or if it has no driver."""
    free_bytes: int
    total_bytes: int
    free_inodes: int | None
    """How many more files its disk can hold. None if there is no limit."""
    sealed: bool = False
    """Whether the machine has reported that it can isolate jobs from each other."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """The last inventory of a machine."""

    at: datetime
    inventory: Inventory
    strangers: tuple[str, ...] = ()
    """Names of folders of jobs that this service does not know, at most `MAX_STRANGERS`."""
    stranger_count: int = 0


def parse_inventory(answer: Mapping[str, Any]) -> Inventory:
    """Parse a machine's answer. Raises `ValueError` if it is not valid."""
    gpus, trouble, inodes = answer.get("gpus"), answer.get("gpu_trouble"), answer.get("free_inodes")
    if not isinstance(gpus, list) or len(gpus) > MAX_GPUS:
        raise ValueError("no list of GPUs")
    return Inventory(
        gpus=tuple(map(_parse_gpu, gpus)),
        gpu_trouble=None if trouble is None else read_text(trouble, MAX_TROUBLE),
        free_bytes=read_number(answer.get("free_bytes")),
        total_bytes=read_number(answer.get("total_bytes")),
        free_inodes=None if inodes is None else read_number(inodes),
        sealed=answer.get("sealed") is True,
    )


def _parse_gpu(told: Any) -> Gpu:
    if not isinstance(told, dict):
        raise ValueError("no GPU")
    vendor, gpu_id = (read_text(told.get(key), MAX_NAME) for key in ("vendor", "id"))
    files, memory = told.get("files"), told.get("memory_mib")
    if vendor not in VENDORS or not GPU_ID.fullmatch(gpu_id):
        raise ValueError("a GPU without a vendor or an id")
    if not isinstance(files, list) or len(files) > MAX_FILES or not all(map(_is_device_file, files)):
        raise ValueError("a GPU without device files")
    return Gpu(
        vendor=vendor,
        id=gpu_id,
        files=tuple(files),
        name=read_text(told.get("name"), MAX_NAME),
        memory_mib=None if memory is None else read_number(memory),
        driver=read_text(told.get("driver"), MAX_NAME),
    )


def _is_device_file(told: Any) -> bool:
    return isinstance(told, str) and DEVICE_FILE.fullmatch(told) is not None


def remember(before: Inventory | None, now: Inventory) -> Inventory:
    """The inventory to store: a machine that cannot list its GPUs keeps the known ones."""
    return replace(now, gpus=before.gpus) if before and now.gpu_trouble else now


def is_news(before: Sighting | None, now: Inventory, at: datetime) -> bool:
    """Whether to store the inventory. Values that always change are stored only now and then."""
    if before is None or not before.at <= at < before.at + FRESH:
        return True
    old = before.inventory
    return replace(now, free_bytes=old.free_bytes, free_inodes=old.free_inodes) != old


def find_shortage(machine: Machine, inventory: Inventory) -> str | None:
    """Why a machine cannot take jobs, as a clause for people. None if it can."""
    free, least = inventory.free_bytes / GB, machine.min_free_gb
    if free < least:
        return f"its disk has {free:,.1f} GB free, but min_free_gb is {least:g}"
    # With gpus_per_slot = 0, jobs see all GPUs anyway.
    if inventory.gpu_trouble and (inventory.gpus or machine.gpus_per_slot != 0):
        return f"its GPUs cannot be used; {SAYS}{inventory.gpu_trouble}"
    return None


def find_missing_gpus(machine: Machine, inventory: Inventory) -> tuple[str, str] | None:
    """Which GPUs of ptq.toml a machine does not have, as a clause, and what to do about it. None if it has them."""
    there = {gpu.vendor for gpu in inventory.gpus}
    for name, vendor in VENDORS.items():
        if name not in there and (promised := machine.labels & vendor.labels):
            words = f"it has the label {min(promised)}, but {vendor.tools} lists no GPU there"
            return words, f"{vendor.fix}, or remove the label"
    if there or not (machine.gpus_per_slot or ANY_GPU in machine.labels):
        return None
    tools = ", ".join(vendor.tools for vendor in VENDORS.values())
    fixes = "; ".join(vendor.fix for vendor in VENDORS.values())
    return (
        f"ptq.toml says that it has GPUs, but no tool lists one ({tools})",
        f"{fixes}; or remove gpus_per_slot and the label {ANY_GPU}",
    )


# Which GPUs belong to which slot


def share_gpus(gpus: Sequence[Gpu], slot: int, slots: int, per_slot: int | None) -> tuple[Gpu, ...]:
    """The GPUs of a slot. Empty means that its jobs see all GPUs.

    Without `per_slot`, each slot gets its own share of neighbouring GPUs. If there are too few GPUs for separate
    shares, slots share GPUs in turn.
    """
    count, place = len(gpus), slot % slots
    if not count or per_slot == 0:
        return ()
    if per_slot is not None:
        places = [(place * per_slot + number) % count for number in range(min(per_slot, count))]
    elif count < slots:
        places = [place % count]
    else:
        places = list(range(place * count // slots, (place + 1) * count // slots))
    return tuple(gpus[number] for number in sorted(places))


def overlaps(share: Sequence[Gpu], machine: Machine, gpus: Sequence[Gpu], others: Iterable[Lease]) -> bool:
    """Whether a running job has one of a new job's GPUs (`share`), although its slot does not share that GPU now.

    This can happen after slots or GPUs have changed, because running jobs keep the GPUs that they began with. `others`
    are the leases on the machine.
    """

    def name(some: Sequence[Gpu]) -> set[tuple[str, str]]:
        return {(gpu.vendor, gpu.id) for gpu in some or gpus}

    def name_shared(slot: int) -> set[tuple[str, str]]:
        if slot >= machine.slots:
            return set()
        return name(share_gpus(gpus, slot, machine.slots, machine.gpus_per_slot))

    return any(name(share) & name(other.gpus) - name_shared(other.slot) for other in others)


def describe_shares(gpus: Sequence[Gpu], slots: int, per_slot: int | None) -> str:
    """How a machine's GPUs are divided, for people. Empty without GPUs."""
    if not gpus:
        return ""
    shares = [share_gpus(gpus, slot, slots, per_slot) for slot in range(slots)]
    sizes = sorted({len(share) for share in shares})
    if sizes == [0]:
        return "each job sees all of them"
    each = " or ".join(map(str, sizes)) + " for each slot"
    is_shared = sum(map(len, shares)) > len({gpu for share in shares for gpu in share})
    return f"{each}, shared between slots" if is_shared else each


def describe_gpus(gpus: Sequence[Gpu]) -> str:
    """Count, model, memory and driver, such as `8 × NVIDIA H100, 81559 MiB, driver 550.54`. Empty without GPUs."""
    kinds: dict[str, int] = {}
    for gpu in gpus:
        memory = f", {gpu.memory_mib} MiB" if gpu.memory_mib is not None else ""
        kind = f"{gpu.name}{memory}, driver {gpu.driver}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return "; ".join(f"{count} × {kind}" for kind, count in kinds.items())


def describe_disk(inventory: Inventory) -> str:
    """The free disk space of a machine, for people."""
    return f"{inventory.free_bytes / GB:,.1f} of {inventory.total_bytes / GB:,.1f} GB free"
