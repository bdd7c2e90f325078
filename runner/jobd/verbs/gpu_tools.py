"""Reads what the tools of GPU vendors print into one form.

The formats differ between versions of the tools, so only what is needed is read. If a tool prints something else, the
functions raise `ValueError`. They are pure, except for those that ask a tool or read files of NVIDIA's driver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

Ask = Callable[..., str]
"""Runs a tool with these arguments and returns what it prints."""

DRIVER = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver describes each GPU here, in a folder named after its bus address."""

CAPABILITIES = Path("/proc/driver/nvidia-caps/mig-minors")
"""NVIDIA's driver lists here which device file in /dev/nvidia-caps belongs to which MIG instance."""

MAX_GPUS = 64
MAX_VALUES = 50
"""How many beginnings of JSON are tried. A warning before the JSON may look like one: `[Error] Failed to write`."""
MAX_DESCRIPTION = 500

MIB = 2**20


class FoundGpu(NamedTuple):
    """A GPU, or a MIG instance, as a tool describes it."""

    id: str
    """The name by which the vendor's runtime knows it: a UUID, or a number."""
    name: str
    """Its model."""
    memory_mib: int | None
    driver: str
    place: str
    """Its bus address, as Linux writes it. Empty if it is unknown."""
    files: Sequence[str] = ()
    """Its device files, relative to /dev, without those in /dev/dri."""


# NVIDIA

QUERY = ("index", "uuid", "pci.bus_id", "memory.total", "driver_version", "mig.mode.current", "name")
"""The fields that we ask nvidia-smi for (`--help-query-gpu`). The name is last, because it may contain commas."""


class Card(NamedTuple):
    """A GPU of NVIDIA."""

    number: int
    """Its number in nvidia-smi."""
    minor: int
    """The number of its device file."""
    in_parts: bool
    """Whether it is in MIG mode: CUDA can then use its instances, but not the GPU itself."""
    gpu: FoundGpu


class Instance(NamedTuple):
    """A MIG instance: the number of its GPU, its own number on that GPU, its profile, and its UUID."""

    card: int
    number: int
    profile: str
    uuid: str


class Share(NamedTuple):
    """What a MIG instance consists of: its GPU instance and its compute instance, by id, and its memory."""

    gpu_instance: int
    compute_instance: int
    memory_mib: int


def list_by_nvidia_smi(ask: Ask) -> list[FoundGpu]:
    """NVIDIA's GPUs and MIG instances."""
    cards = read_cards(ask(f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"), find_minors(DRIVER))
    if not any(card.in_parts for card in cards):
        return [card.gpu for card in cards]
    capabilities = ""
    with suppress(OSError):
        capabilities = CAPABILITIES.read_text(errors="replace")
    return list(split_cards(cards, read_instances(ask("-L")), read_shares(ask()), read_capabilities(capabilities)))


def read_cards(text: str, minors: Mapping[str, int]) -> list[Card]:
    """The GPUs in nvidia-smi's answer to `QUERY`. Raises `ValueError`."""
    cards = []
    for line in filter(str.strip, text.splitlines()):
        index, uuid, bus, memory, driver, mig, name = (part.strip() for part in line.split(",", len(QUERY) - 1))
        number, place = int(index), read_place(bus)
        # The device file has another number if the driver found the GPUs in another order than the bus has them.
        minor = minors.get(place, number)
        # The memory is "[N/A]" if the GPU uses the machine's memory.
        gpu = FoundGpu(uuid, name, read_size(memory, 1), driver, place, (f"nvidia{minor}",))
        cards.append(Card(number, minor, mig == "Enabled", gpu))
    return cards


def read_instances(text: str) -> list[Instance]:
    """The MIG instances that `nvidia-smi -L` lists below their GPUs."""
    found, card = [], -1
    for line in text.splitlines():
        if gpu := re.match(r"GPU ([0-9]{1,4}):", line):
            card = int(gpu[1])
        elif part := re.match(r"\s+MIG (\S{1,40})\s+Device\s+([0-9]{1,4}): \(UUID: (MIG-[^)\s]+)\)", line):
            found.append(Instance(card, int(part[2]), part[1], part[3]))
    return found


def read_shares(text: str) -> dict[tuple[int, int], Share]:
    """The table "MIG devices" that nvidia-smi prints without arguments, by the numbers of GPU and instance."""
    row = re.compile(r"\|\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s+\|\s+\d+MiB\s*/\s*(\d{1,9})MiB")
    rows = [[int(number) for number in found.groups()] for line in text.splitlines() if (found := row.match(line))]
    return {(card, number): Share(gpu, compute, memory) for card, gpu, compute, number, memory in rows}


def read_capabilities(text: str) -> dict[str, int]:
    """Capability, such as `gpu0/gi3/ci0/access`, -> the number of its file in /dev/nvidia-caps."""
    return {name: int(minor) for name, minor in re.findall(r"^(gpu\S{1,60}/access) ([0-9]{1,4})$", text, re.MULTILINE)}


def split_cards(
    cards: Iterable[Card],
    instances: Sequence[Instance],
    shares: Mapping[tuple[int, int], Share],
    capabilities: Mapping[str, int],
) -> Iterator[FoundGpu]:
    """The GPUs. In place of a GPU in MIG mode, its MIG instances.

    The device files of an instance are those of its GPU and of its two capabilities. If one of the capabilities is
    missing, the device files are unknown.
    """
    for card in cards:
        if not card.in_parts:
            yield card.gpu
            continue
        for instance in (one for one in instances if one.card == card.number):
            share, caps = shares.get((card.number, instance.number)), []
            if share:
                within = f"gpu{card.minor}/gi{share.gpu_instance}"
                names = (f"{within}/access", f"{within}/ci{share.compute_instance}/access")
                caps = [f"nvidia-caps/nvidia-cap{capabilities[name]}" for name in names if name in capabilities]
            yield card.gpu._replace(
                id=instance.uuid,
                name=f"{card.gpu.name} MIG {instance.profile}",
                memory_mib=share.memory_mib if share else None,
                files=(*card.gpu.files, *caps) if len(caps) == 2 else (),
                place=card.gpu.place if len(caps) == 2 else "",
            )


def find_minors(folder: Path) -> dict[str, int]:
    """The device file number of each GPU, by bus address, as far as the driver reports it."""
    minors = {}
    for path in folder.glob("*/information"):
        with suppress(OSError):
            found = re.search(r"^Device Minor:\s*(\d{1,4})$", path.read_text(errors="replace"), re.MULTILINE)
            if found and (place := read_place(path.parent.name)):
                minors[place] = int(found[1])
    return minors


# AMD


def list_by_amd_smi(ask: Ask) -> list[FoundGpu]:
    """AMD's GPUs, as ROCm's current tool lists them."""
    return read_amd_smi(ask("static", "--asic", "--bus", "--vram", "--driver", "--json"))


def list_by_rocm_smi(ask: Ask) -> list[FoundGpu]:
    """AMD's GPUs, as ROCm's older tool lists them."""
    shown = ("--showproductname", "--showuniqueid", "--showbus", "--showmeminfo", "vram", "--showdriverversion")
    return read_rocm_smi(ask(*shown, "--json"))


def read_amd_smi(text: str) -> list[FoundGpu]:
    """The GPUs in the answer of `amd-smi static --json`: a list, and since ROCm 7 a list in an object."""
    told = load(text)
    gpus = told.get("gpu_data") if isinstance(told, dict) else told
    if not isinstance(gpus, list):
        raise ValueError("no list of GPUs")
    found = [
        FoundGpu(
            id=read_word(gpu, "asic", "asic_serial"),
            name=read_word(gpu, "asic", "market_name") or "AMD GPU",
            memory_mib=read_size(read_word(gpu, "vram", "size", "value") or read_word(gpu, "vram", "vram_size_mb"), 1),
            driver=read_version(read_word(gpu, "driver", "version") or read_word(gpu, "driver", "driver_version")),
            place=read_place(read_word(gpu, "bus", "bdf")),
        )
        for gpu in gpus
    ]
    return name_by_serials(found)


def read_rocm_smi(text: str) -> list[FoundGpu]:
    """The GPUs in the answer of `rocm-smi --json`. The capitals in its names differ between versions."""
    told = load(text)
    if not isinstance(told, dict):
        raise ValueError("no cards")
    lower = {
        name: {key.lower(): value for key, value in about.items()}
        for name, about in told.items()
        if isinstance(about, dict)
    }
    cards = [about for name, about in lower.items() if re.fullmatch("card[0-9]{1,4}", name)]
    driver = read_version(read_word(lower, "system", "driver version"))
    found = [
        FoundGpu(
            id=read_word(card, "unique id"),
            name=read_word(card, "card series") or read_word(card, "device name") or "AMD GPU",
            memory_mib=read_size(read_word(card, "vram total memory (b)"), MIB),
            driver=driver,
            place=read_place(read_word(card, "pci bus")),
        )
        for card in cards
    ]
    return name_by_serials(found)


def name_by_serials(gpus: Sequence[FoundGpu]) -> list[FoundGpu]:
    """The GPUs with ROCr's ids in place of their serial numbers.

    The ids are numbers if a GPU has no serial number (APUs, old models), or if several have the same (partitions).
    """
    serials = {int(gpu.id, 16) for gpu in gpus if re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", gpu.id)} - {0}
    if len(serials) == len(gpus):
        return [gpu._replace(id=f"GPU-{int(gpu.id, 16):016x}") for gpu in gpus]
    return [gpu._replace(id=str(number)) for number, gpu in enumerate(gpus)]


# Intel


def list_by_xpu_smi(ask: Ask) -> list[FoundGpu]:
    """Intel's GPUs. Level Zero knows them only by number, and `gpus.BINDINGS` makes its numbers those of xpu-smi."""
    return [read_xpu_smi(ask("discovery", "-d", number, "-j")) for number in read_xpu_numbers(ask("discovery", "-j"))]


def read_xpu_numbers(text: str) -> list[str]:
    """xpu-smi's numbers of the whole GPUs, from the answer of `xpu-smi discovery -j`."""
    told = load(text)
    gpus = told.get("device_list") if isinstance(told, dict) else None
    if not isinstance(gpus, list):
        raise ValueError("no list of GPUs")
    whole = [
        read_word(gpu, "device_id")
        for gpu in gpus
        if read_word(gpu, "device_type") == "GPU" and read_word(gpu, "device_function_type") != "virtual"
    ]
    if not all(map(str.isdecimal, whole)):
        raise ValueError("a GPU without a number")
    return whole[:MAX_GPUS]


def read_xpu_smi(text: str) -> FoundGpu:
    """The GPU in the answer of `xpu-smi discovery -d NUMBER -j`: an object, or a list of one in an object."""
    told = load(text)
    if isinstance(told, dict) and isinstance(told.get("device_list"), list) and told["device_list"]:
        told = told["device_list"][0]
    return FoundGpu(
        id=read_word(told, "device_id"),
        name=read_word(told, "device_name") or "Intel GPU",
        memory_mib=read_size(read_word(told, "memory_physical_size_byte"), MIB),
        driver=read_version(read_word(told, "driver_version")),
        place=read_place(read_word(told, "pci_bdf_address")),
    )


# For all of them


def load(text: str) -> Any:
    """The first JSON value in a tool's answer. Raises `ValueError`."""
    for start in islice(re.finditer(r"^[ \t]*[\[{]", text, re.MULTILINE), MAX_VALUES):
        with suppress(ValueError, RecursionError):
            return json.JSONDecoder().raw_decode(text, start.end() - 1)[0]
    raise ValueError("no JSON")


def read_word(value: Any, *names: str) -> str:
    """The text or number at these names. Empty if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    said = str(value).strip() if isinstance(value, (str, int)) else ""
    return "" if said in ("N/A", "unknown") else said


def read_size(text: str, unit: int) -> int | None:
    """A size in MiB. None if it is unknown. `unit` says how many of the tool's units are a MiB."""
    return int(text) // unit if re.fullmatch("[0-9]{1,15}", text) else None


def read_version(text: str) -> str:
    """The version in a driver's description, such as that of `Linuxversion6.8.0-51-generic(buildd@...)`."""
    text = text[:MAX_DESCRIPTION]
    found = re.search(r"(?<![0-9])[0-9]+\.[0-9][\w.+-]*", text) or re.search(r"[\w.+-]+", text)
    return found[0] if found else "unknown"


def read_place(text: str) -> str:
    """A bus address, `00000000:3B:00.0` or `0000:3b:00.0`, as Linux writes it. Empty for any other text."""
    found = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", text.lower())
    return f"{int(found[1], 16):04x}:{found[2]}" if found else ""


class Tool(NamedTuple):
    """A tool of a vendor."""

    program: str
    list_gpus: Callable[[Ask], list[FoundGpu]]


TOOLS: Mapping[str, Sequence[Tool]] = {
    "nvidia": (Tool("nvidia-smi", list_by_nvidia_smi),),
    "amd": (Tool("amd-smi", list_by_amd_smi), Tool("rocm-smi", list_by_rocm_smi)),
    "intel": (Tool("xpu-smi", list_by_xpu_smi),),
}
"""Vendor -> its tools. If a tool is missing or fails, the next one is asked."""
