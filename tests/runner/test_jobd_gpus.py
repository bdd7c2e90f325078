"""GPUs of all vendors: what their tools print (`tests/payloads/gpus`), and how a job is bound to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.gpus import BINDINGS, find_others, is_gpu, name_gpus, read_gpus
from runner.jobd.verbs import gpu_tools
from runner.jobd.verbs.gpu_tools import TOOLS, Card, FoundGpu, Share
from runner.jobd.verbs.inventory import describe_gpu, find_closed, find_gpus, is_on_bus
from runner.model import inventory
from runner.model.inventory import describe_gpus, parse_inventory

RECORDED = Path(__file__).parents[1] / "payloads" / "gpus"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def gpu(vendor: str, name: str, *files: str) -> dict[str, Any]:
    return {"vendor": vendor, "id": name, "files": list(files)}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Asks a machine that has these tools, each a shell command, and a GPU of each vendor on its bus."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    bus = tmp_path / "bus"
    for place, vendor, kind in (("0000:03:00.0", "0x1002", "0x120000"), ("0000:18:00.0", "0x8086", "0x030000")):
        (bus / place / "drm" / "controlD64").mkdir(parents=True)
        (bus / place / "vendor").write_text(f"{vendor}\n")
        (bus / place / "class").write_text(f"{kind}\n")
    for place, name in (("03", "card1"), ("03", "renderD129"), ("18", "card0"), ("18", "renderD128")):
        (bus / f"0000:{place}:00.0" / "drm" / name).mkdir()
    (tmp_path / "bin").mkdir()

    def ask(bus: Path = bus, **tools: str) -> Any:
        for name, command in tools.items():
            program = tmp_path / "bin" / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\n{command}\n")
            program.chmod(0o755)
        return find_gpus(folders=str(tmp_path / "bin"), bus=bus, devices=tmp_path / "no devices")

    return ask


# What the tools print


CARDS = [
    Card(0, 1, True, FoundGpu("GPU-5", "NVIDIA A100", 81920, "535.129.03", "0000:21:00.0", ("nvidia1",))),
    Card(1, 0, False, FoundGpu("GPU-d", "NVIDIA A100", 81920, "535.129.03", "0000:81:00.0", ("nvidia0",))),
]
CAPABILITIES = """config 1
monitor 2
gpu1/gi3/access 21
gpu1/gi3/ci0/access 22
gpu1/gi4/access 30
gpu1/gi4/ci0/access 31
"""


def test_mig_instances_take_the_place_of_their_gpu() -> None:
    shares = gpu_tools.read_shares(recorded("nvidia-smi.txt"))
    assert shares == {(0, number): Share(number + 3, 0, 9856) for number in range(4)}
    instances = gpu_tools.read_instances(recorded("nvidia-smi-L.txt"))
    found = [*gpu_tools.split_cards(CARDS, instances, shares, gpu_tools.read_capabilities(CAPABILITIES))]
    assert found[0] == FoundGpu(
        "MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a",
        "NVIDIA A100 MIG 1g.20gb",
        9856,
        "535.129.03",
        "0000:21:00.0",
        ("nvidia1", "nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22"),
    )
    assert found[1].files == ("nvidia1", "nvidia-caps/nvidia-cap30", "nvidia-caps/nvidia-cap31")
    assert [one.files for one in found[2:4]] == [(), ()], "their capabilities are unknown"
    assert found[4:] == [CARDS[1].gpu], "it is not in MIG mode"


def test_without_the_table_of_shares_an_instance_has_no_known_memory_and_files() -> None:
    instances = gpu_tools.read_instances(recorded("nvidia-smi-L-old.txt"))
    first, second = gpu_tools.split_cards(CARDS[:1], instances, gpu_tools.read_shares(""), {})
    assert (first.id, first.memory_mib, first.files) == (
        "MIG-GPU-6482a92e-d06b-dc68-c272-e3d8f7ecabbf/7/0",
        None,
        (),
    )
    assert inventory.GPU_ID.fullmatch(second.id)


def test_a_gpu_in_mig_mode_without_instances_is_none_that_a_job_could_use() -> None:
    assert [*gpu_tools.split_cards(CARDS[:1], [], {}, {})] == []


def test_amd_smi_is_read() -> None:
    assert gpu_tools.read_amd_smi(recorded("amd-smi.txt")) == [
        FoundGpu("GPU-4162405e51bb99b0", "AMD Radeon RX 7800 XT", 16368, "6.17.7-ba14.fc43.x86_64", "0000:03:00.0")
    ]
    old = '[{"asic": {"market_name": "N/A"}, "bus": {}, "vram": {"vram_size_mb": 65520}, "driver": "N/A"}]'
    assert gpu_tools.read_amd_smi(old) == [FoundGpu("0", "AMD GPU", 65520, "unknown", "")]


def test_rocm_smi_is_read() -> None:
    model: dict[str, Any] = {
        "name": "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2",
        "memory_mib": 65520,
        "driver": "5.16.9.22.20",
    }
    assert gpu_tools.read_rocm_smi(recorded("rocm-smi.json")) == [
        FoundGpu(id="GPU-07fc3ea34b2236f3", place="0000:c9:00.0", **model),
        FoundGpu(id="GPU-87fc3ea34b2236f3", place="0000:cd:00.0", **model),
    ]
    assert gpu_tools.read_rocm_smi(recorded("rocm-smi-apu.json")) == [
        FoundGpu("0", "Phoenix3", None, "unknown", "0000:c4:00.0")
    ]


def test_amd_gpus_with_the_same_serial_number_are_called_by_numbers() -> None:
    text = recorded("rocm-smi.json").replace("0x87f", "0x7f")
    assert [one.id for one in gpu_tools.read_rocm_smi(text)] == ["0", "1"]


def test_xpu_smi_is_read() -> None:
    answers = {("discovery", "-j"): "xpu-smi-list.json", ("discovery", "-d", "0", "-j"): "xpu-smi-0.txt"}
    assert gpu_tools.list_by_xpu_smi(lambda *words: recorded(answers[words])) == [
        FoundGpu("0", "Intel(R) Graphics [0xe211]", 24480, "7B7A46009E666C4D10E1134", "0000:18:00.0")
    ]
    virtual = '{"device_list": [{"device_id": 1, "device_type": "GPU", "device_function_type": "virtual"}]}'
    assert gpu_tools.read_xpu_numbers(virtual) == []
    assert gpu_tools.read_xpu_smi('{"device_id": 3}') == FoundGpu("3", "Intel GPU", None, "unknown", "")


@pytest.mark.parametrize(
    "text",
    [
        *("", "no JSON", "{", "[" * 60_000, "[1", "{}", '{"gpu_data": 1}', '{"device_list": null}', "\x00", "[Error]"),
        *('{"device_list": [{"device_type": "GPU", "device_id": "x"}]}', recorded("amd-smi-no-driver.txt")),
    ],
)
def test_an_answer_that_lists_nothing_is_refused(text: str) -> None:
    for read in (gpu_tools.read_amd_smi, gpu_tools.read_xpu_numbers):
        with pytest.raises(ValueError, match=r"no |without"):
            read(text)


@pytest.mark.parametrize(
    "text",
    [
        '[{"asic": {"market_name": ["x"], "asic_serial": {}}, "bus": {"bdf": "../../etc"}, "vram": 7}, 3, null]',
        '[{"asic": {"asic_serial": "0x' + "f" * 99 + '"}, "vram": {"size": {"value": "' + "9" * 99 + '"}}}]',
    ],
)
def test_odd_fields_of_an_answer_are_unknown(text: str) -> None:
    for one in gpu_tools.read_amd_smi(text):
        assert one._replace(id="") == FoundGpu("", "AMD GPU", None, "unknown", "")


def test_a_machine_tells_the_gpus_of_all_vendors(machine: Callable[..., Any]) -> None:
    listed = f'test "$#" = 2 && exec cat {RECORDED}/xpu-smi-list.json; exec cat {RECORDED}/xpu-smi-0.txt'
    gpus, trouble = machine(
        nvidia_smi="echo 0, GPU-aa, 00000000:19:00.0, 81559, 550.54.15, Disabled, NVIDIA H100",
        amd_smi=f"cat {RECORDED}/amd-smi.txt",
        xpu_smi=listed,
    )
    assert trouble is None
    seen = parse_inventory({"gpus": gpus, "free_bytes": 1, "total_bytes": 1})
    assert [(one.vendor, one.id, one.files) for one in seen.gpus] == [
        ("nvidia", "GPU-aa", ("nvidia0",)),
        ("amd", "GPU-4162405e51bb99b0", ("kfd", "dri/card1", "dri/renderD129")),
        ("intel", "0", ("dri/card0", "dri/renderD128")),
    ]
    assert describe_gpus(seen.gpus[1:]) == (
        "1 × AMD Radeon RX 7800 XT, 16368 MiB, driver 6.17.7-ba14.fc43.x86_64; "
        "1 × Intel(R) Graphics [0xe211], 24480 MiB, driver 7B7A46009E666C4D10E1134"
    )


def test_the_next_tool_is_asked_if_one_fails(machine: Callable[..., Any]) -> None:
    gpus, trouble = machine(amd_smi="echo no module named amdsmi >&2; exit 1", rocm_smi=f"cat {RECORDED}/rocm-smi.json")
    assert ([one["name"] for one in gpus], trouble) == (["AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2"] * 2, None)


def test_a_tool_that_fails_is_trouble_only_where_the_bus_has_such_a_gpu(
    machine: Callable[..., Any], tmp_path: Path
) -> None:
    tools = {"amd_smi": f"cat {RECORDED}/amd-smi-no-driver.txt", "rocm_smi": "echo broken >&2; exit 2"}
    assert machine(**tools) == ([], "amd-smi gave an answer that cannot be read")
    assert machine(bus=tmp_path / "empty", **tools) == ([], None)


def test_a_sound_card_of_the_vendor_is_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "0000:00:1f.3").mkdir()
    (tmp_path / "0000:00:1f.3" / "vendor").write_text("0x8086\n")
    (tmp_path / "0000:00:1f.3" / "class").write_text("0x040300\n")
    assert not is_on_bus("0x8086", tmp_path)
    (tmp_path / "0000:00:1f.3" / "class").write_text("0x038000\n")
    assert is_on_bus("0x8086", tmp_path)


@pytest.mark.skipif(not os.getuid(), reason="root may open every file")
def test_gpus_that_the_account_may_not_open_are_trouble(tmp_path: Path) -> None:
    (tmp_path / "dri").mkdir()
    for name in ("kfd", "dri/card1", "dri/renderD129", "nvidia0"):
        (tmp_path / name).touch(mode=0o600 if name == "kfd" else 0)
    found = find_closed([gpu("nvidia", "GPU-aa", "nvidia0"), gpu("amd", "0", "kfd", "dri/card1")], tmp_path)
    assert found is None
    found = find_closed([gpu("intel", "0", "dri/card1", "dri/renderD129")], tmp_path)
    assert found is not None
    assert found.startswith(f"the account may not open {tmp_path}/dri/renderD129: add it to the file's group, ")


def test_without_a_bus_address_the_device_files_are_unknown(tmp_path: Path) -> None:
    assert describe_gpu("amd", FoundGpu("0", "x", None, "1", ""), tmp_path)["files"] == []
    assert describe_gpu("nvidia", FoundGpu("0", "x", None, "1", "", ("nvidia3",)), tmp_path)["files"] == ["nvidia3"]


# How a job is bound to them


def test_each_vendors_runtime_is_told_its_gpus() -> None:
    bind = partial(name_gpus, sealed=True)
    assert bind([gpu("nvidia", "MIG-a", "nvidia0"), gpu("nvidia", "MIG-b")]) == {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}
    assert bind([gpu("amd", "GPU-4162405e51bb99b0", "kfd")]) == {"ROCR_VISIBLE_DEVICES": "GPU-4162405e51bb99b0"}
    assert bind([gpu("nvidia", "GPU-a"), gpu("amd", "GPU-b")]) == {
        "CUDA_VISIBLE_DEVICES": "GPU-a",
        "ROCR_VISIBLE_DEVICES": "GPU-b",
    }
    assert bind([]) == {}


def test_numbers_count_only_where_the_other_gpus_are_not_hidden() -> None:
    known, unknown = gpu("intel", "1", "dri/renderD129"), gpu("intel", "1")
    mask = {
        "ZE_AFFINITY_MASK": "1",
        "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE",
        "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1",
    }
    assert name_gpus([known], sealed=True) == {}, "it is the only one, so its number is 0"
    assert name_gpus([known], sealed=False) == mask
    assert name_gpus([unknown], sealed=True) == mask
    assert name_gpus([gpu("amd", "2")], sealed=False) == {"ROCR_VISIBLE_DEVICES": "2"}


def test_the_device_files_of_other_gpus_are_closed_whatever_their_vendor(tmp_path: Path) -> None:
    names = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap21")
    for name in (*names, "kfd", "dri/card1", "dri/renderD128", "dri/renderD129", "dri/by-path", "null"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def closed(*gpus: dict[str, Any]) -> set[str]:
        return {str(path.relative_to(tmp_path)) for path in find_others(gpus, tmp_path)}

    part = gpu("nvidia", "MIG-a", "nvidia0", "nvidia-caps/nvidia-cap21")
    drm = {"dri/card1", "dri/renderD128", "dri/renderD129"}
    assert closed(part) == {"nvidia1", "nvidia-caps/nvidia-cap1", "kfd", *drm}
    amd = gpu("amd", "GPU-b", "kfd", "dri/renderD128")
    assert closed(amd) == {"nvidia0", "nvidia1", *names[4:], *drm} - {"dri/renderD128"}
    assert closed(part, amd) == {"nvidia1", "nvidia-caps/nvidia-cap1", "dri/card1", "dri/renderD129"}
    assert closed() == set(), "it sees all GPUs"
    assert closed(amd, gpu("intel", "0")) == set(), "one of its own could be among them"


@pytest.mark.parametrize(
    "odd",
    [
        *(None, "GPU-a", {}, gpu("other", "1"), gpu("amd", "1", "../null"), gpu("amd", "1", "sda")),
        *({**gpu("amd", "1"), "more": 1}, {**gpu("amd", "1"), "id": 1}, {**gpu("amd", "1"), "files": "kfd"}),
        {**gpu("amd", "1"), "vendor": ["amd"]},
    ],
)
def test_what_is_no_gpu_is_refused(odd: object) -> None:
    assert is_gpu(gpu("amd", "1", "kfd", "dri/renderD128"))
    assert not is_gpu(odd)


def test_both_sides_know_the_same_vendors() -> None:
    assert BINDINGS.keys() == TOOLS.keys() == inventory.VENDORS.keys()
    assert read_gpus({"gpus": {"0": "GPU-aa"}}) == (), "an environment that an earlier version prepared"
