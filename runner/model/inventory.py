"""What a machine reports about itself: its GPUs and free disk space. Also which GPUs belong to which slot.

Pure. The report is limited and checked here, because an agent may have tampered with the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from runner.model.jobd_answers import SAYS, read_number, read_text
from runner.model.machines import Devices, Lease, Machine

MAX_GPUS = 64
MAX_NAME = 100
MAX_TROUBLE = 400
MAX_STRANGERS = 20
"""The most folders of unknown jobs that are stored by name."""

GB = 1_000_000_000
FRESH = timedelta(seconds=60)
"""A stored inventory is replaced after this time, even if only the free disk space has changed."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    device: str
    """The number of its device file: `/dev/nvidia0` has 0."""
    uuid: str
    """CUDA's name for it, which does not depend on the other visible GPUs."""
    name: str
    """Its model."""
    memory_mib: int | None
    """None if it has no memory of its own."""
    driver: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The resources of a machine. Sizes in bytes."""

    gpus: tuple[Gpu, ...]
    gpu_trouble: str | None
    """Why the machine cannot list its GPUs, as a clause; None if it can, or if it has no driver."""
    free_bytes: int
    total_bytes: int
    free_inodes: int | None
    """How many more files its disk can hold; None if there is no limit."""
    sealed: bool = False
    """Whether it can isolate jobs from each other, as far as is known."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """The last inventory of a machine."""

    at: datetime
    inventory: Inventory
    strangers: tuple[str, ...] = ()
    """Folders of jobs that this service does not know, up to `MAX_STRANGERS`."""
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
    device, uuid = (read_text(told.get(name), MAX_NAME) for name in ("device", "uuid"))
    memory = told.get("memory_mib")
    if not re.fullmatch(r"[0-9]{1,4}", device) or not re.fullmatch(r"[A-Za-z0-9-]{1,80}", uuid):
        raise ValueError("a GPU without a number or a name")
    return Gpu(
        device=device,
        uuid=uuid,
        name=read_text(told.get("name"), MAX_NAME),
        memory_mib=None if memory is None else read_number(memory),
        driver=read_text(told.get("driver"), MAX_NAME),
    )


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
    """Why a machine cannot take jobs, as a clause for people; None if it can."""
    free, least = inventory.free_bytes / GB, machine.min_free_gb
    if free < least:
        return f"its disk has {free:,.1f} GB free, but min_free_gb is {least:g}"
    # With gpus_per_slot = 0, jobs see all GPUs anyway.
    if inventory.gpu_trouble and (inventory.gpus or machine.gpus_per_slot != 0):
        return f"its GPUs cannot be listed; {SAYS}{inventory.gpu_trouble}"
    return None


# Which GPUs belong to which slot


def share_gpus(gpus: Sequence[Gpu], slot: int, slots: int, per_slot: int | None) -> Devices:
    """The GPUs of a slot. None means that its jobs see all GPUs.

    Without `per_slot`, each slot gets its own share of neighbouring GPUs. If there are fewer GPUs than slots, or
    `per_slot` needs more than there are, slots share them in turn.
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
    return tuple((gpus[number].device, gpus[number].uuid) for number in sorted(places))


def overlaps(share: Devices, machine: Machine, gpus: Sequence[Gpu], others: Iterable[Lease]) -> bool:
    """Whether a new job's GPUs are also those of a running job whose slot does not share them.

    That can be after a change of slots or GPUs, because running jobs keep the GPUs that they began with. `others` are
    the leases on the machine.
    """

    def name(devices: Devices) -> set[str]:
        return {uuid for _, uuid in devices} or {gpu.uuid for gpu in gpus}

    def name_shared(slot: int) -> set[str]:
        if slot >= machine.slots:
            return set()
        return name(share_gpus(gpus, slot, machine.slots, machine.gpus_per_slot))

    return any(name(share) & name(other.gpus) - name_shared(other.slot) for other in others)


def describe_shares(gpus: Sequence[Gpu], slots: int, per_slot: int | None) -> str:
    """How a machine's GPUs are divided, for people; empty without GPUs."""
    if not gpus:
        return ""
    shares = [share_gpus(gpus, slot, slots, per_slot) for slot in range(slots)]
    sizes = sorted({len(share) for share in shares})
    if sizes == [0]:
        return "each job sees all of them"
    each = " or ".join(map(str, sizes)) + " for each slot"
    is_shared = sum(map(len, shares)) > len({device for share in shares for device in share})
    return f"{each}, shared between slots" if is_shared else each


def describe_gpus(gpus: Sequence[Gpu]) -> str:
    """Count, model, memory and driver, such as `8 × NVIDIA H100, 81559 MiB, driver 550.54`; empty without GPUs."""
    kinds: dict[str, int] = {}
    for gpu in gpus:
        memory = f", {gpu.memory_mib} MiB" if gpu.memory_mib is not None else ""
        kind = f"{gpu.name}{memory}, driver {gpu.driver}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return "; ".join(f"{count} × {kind}" for kind, count in kinds.items())


def describe_disk(inventory: Inventory) -> str:
    """The free disk space of a machine, for people."""
    return f"{inventory.free_bytes / GB:,.1f} of {inventory.total_bytes / GB:,.1f} GB free"
