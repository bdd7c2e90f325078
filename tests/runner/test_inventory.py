from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.model.inventory import (
    FRESH,
    GB,
    MAX_GPUS,
    Inventory,
    Sighting,
    find_missing_gpus,
    find_shortage,
    is_news,
    overlaps,
    parse_inventory,
    remember,
    share_gpus,
)
from runner.model.machines import Gpu, Lease, Machine
from tests.support.jobs import NOON

GPU: Mapping[str, Any] = {
    **{"vendor": "nvidia", "id": "GPU-0a", "files": ["nvidia0"]},
    **{"name": "H100", "memory_mib": 81559, "driver": "550.54"},
}
ANSWER: Mapping[str, Any] = {
    **{"gpus": [GPU], "gpu_trouble": None},
    **{"free_bytes": 50 * GB, "total_bytes": 100 * GB, "free_inodes": 7},
}
SEEN = parse_inventory(ANSWER)


def gpus(count: int) -> list[Gpu]:
    return [Gpu("nvidia", f"GPU-{number}", (f"nvidia{number}",), "H100", 81559, "550.54") for number in range(count)]


def shares(count: int, slots: int, per_slot: int | None = None) -> list[list[int]]:
    every = gpus(count)
    return [[every.index(gpu) for gpu in share_gpus(every, slot, slots, per_slot)] for slot in range(slots)]


def test_slots_share_gpus_out_among_themselves() -> None:
    assert shares(8, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert shares(8, 3) == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert shares(1, 1) == [[0]]


def test_with_fewer_gpus_than_slots_they_go_round() -> None:
    assert shares(2, 5) == [[0], [1], [0], [1], [0]]


def test_a_slot_has_as_many_gpus_as_its_operator_says() -> None:
    assert shares(8, 3, 2) == [[0, 1], [2, 3], [4, 5]]
    assert shares(4, 3, 2) == [[0, 1], [2, 3], [0, 1]]
    assert shares(3, 2, 2) == [[0, 1], [0, 2]]
    assert shares(2, 2, 64) == [[0, 1], [0, 1]]
    assert shares(8, 2, 0) == [[], []], "each job sees all of them"


def test_a_machine_without_gpus_binds_nothing() -> None:
    assert shares(0, 2) == shares(0, 2, 3) == [[], []]


@given(count=st.integers(1, 16), slots=st.integers(1, 16))
def test_where_there_are_enough_every_gpu_belongs_to_one_slot_and_slots_are_alike(count: int, slots: int) -> None:
    found = shares(count, slots)
    if count >= slots:
        assert sorted(number for share in found for number in share) == list(range(count))
        assert all(share == list(range(share[0], share[0] + len(share))) for share in found), "neighbours"
        assert max(map(len, found)) - min(map(len, found)) <= 1
    else:
        assert all(len(share) == 1 for share in found)
        assert {number for share in found for number in share} == set(range(count))


@given(count=st.integers(1, 16), slots=st.integers(1, 8), per_slot=st.integers(1, 20), slot=st.integers(0, 30))
def test_whatever_is_configured_a_slot_has_that_many_different_gpus_that_are_there(
    count: int, slots: int, per_slot: int, slot: int
) -> None:
    share = share_gpus(gpus(count), slot, slots, per_slot)  # A slot may be beyond those of a new configuration.
    assert len(set(share)) == len(share) == min(per_slot, count)
    assert {*share} <= {*gpus(count)}


# What a machine may say


def test_what_a_machine_says_is_read() -> None:
    assert Inventory((Gpu(**{**GPU, "files": ("nvidia0",)}),), None, 50 * GB, 100 * GB, 7) == SEEN


@pytest.mark.parametrize(
    "oddity",
    [
        {"gpus": None},
        {"gpus": ["x"]},
        {"gpus": [{**GPU, "files": ["../x"]}]},
        {"gpus": [{**GPU, "files": ["nvidia0"] * 9}]},
        {"gpus": [{**GPU, "files": None}]},
        {"gpus": [{**GPU, "vendor": "another"}]},
        {"gpus": [{**GPU, "vendor": ["nvidia"]}]},
        {"gpus": [{**GPU, "id": "a,b"}]},
        {"gpus": [{**GPU, "id": ""}]},
        {"gpus": [{**GPU, "memory_mib": "x"}]},
        {"gpus": [GPU] * (MAX_GPUS + 1)},
        {"free_bytes": -1},
        {"free_bytes": None},
        {"free_bytes": True},
        {"total_bytes": 10**30},
        {"free_inodes": 0.5},
    ],
)
def test_what_makes_no_sense_is_refused(oddity: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no |without"):
        parse_inventory({**ANSWER, **oddity})


def test_long_words_are_cut() -> None:
    seen = parse_inventory({**ANSWER, "gpu_trouble": "x" * 10**6, "gpus": [{**GPU, "name": "y" * 10**6}]})
    assert len(seen.gpu_trouble or "") + len(seen.gpus[0].name) < 1000


@pytest.mark.parametrize(
    ("count", "machine", "held", "free"),
    [
        (4, Machine("a", "/srv", slots=4), {1: [1]}, [0, 2, 3]),
        (4, Machine("a", "/srv", slots=4), {0: [0, 1]}, [2, 3]),  # It began with two slots.
        (4, Machine("a", "/srv", slots=2), {3: [3]}, [0]),  # It began with four slots.
        (4, Machine("a", "/srv", slots=2), {0: []}, []),  # It sees all GPUs.
        (3, Machine("a", "/srv", slots=4), {2: [2]}, [0, 1, 3]),
        (3, Machine("a", "/srv", slots=4), {0: [3]}, [1, 2, 3]),  # It has a GPU that is gone.
        (2, Machine("a", "/srv", slots=4), {0: [0], 1: [1]}, [2, 3]),  # Slots share by configuration.
        (2, Machine("a", "/srv", slots=2, gpus_per_slot=2), {0: [0, 1]}, [1]),
        (2, Machine("a", "/srv", slots=2, gpus_per_slot=0), {0: []}, [1]),
        (0, Machine("a", "/srv", slots=2), {0: []}, [1]),
    ],
)
def test_a_job_begins_only_with_gpus_that_no_job_of_another_slot_has(
    count: int, machine: Machine, held: dict[int, list[int]], free: list[int]
) -> None:
    every, seen = gpus(4), gpus(count)
    leases = [Lease("a", slot, "x", tuple(every[number] for number in numbers)) for slot, numbers in held.items()]
    found = [
        slot
        for slot in range(machine.slots)
        if slot not in held
        and not overlaps(share_gpus(seen, slot, machine.slots, machine.gpus_per_slot), machine, seen, leases)
    ]
    assert found == free


# What follows from it


def test_a_machine_with_too_little_room_takes_no_jobs() -> None:
    machine = Machine("a", "/srv", min_free_gb=10.0)
    assert find_shortage(machine, replace(SEEN, free_bytes=10 * GB)) is None
    assert find_shortage(machine, replace(SEEN, free_bytes=9_940_000_000)) == (
        "its disk has 9.9 GB free, but min_free_gb is 10"
    )
    assert find_shortage(replace(machine, min_free_gb=0.0), replace(SEEN, free_bytes=0)) is None


def test_a_machine_that_cannot_name_the_gpus_it_had_takes_no_jobs() -> None:
    failing = replace(SEEN, gpus=(), gpu_trouble="nvidia-smi failed")
    assert (
        find_shortage(Machine("a", "/srv"), remember(SEEN, failing))
        == "its GPUs cannot be used; the machine says: nvidia-smi failed"
    )
    for before in (None, replace(SEEN, gpus=()), failing):
        assert find_shortage(Machine("a", "/srv"), remember(before, failing)), "each job would see all of them"
        assert find_shortage(Machine("a", "/srv", gpus_per_slot=0), remember(before, failing)) is None
    assert remember(SEEN, replace(SEEN, gpus=())).gpus == (), "somebody has taken them out"


def test_gpus_that_the_labels_promise_are_missed() -> None:
    def miss(*labels: str, **values: Any) -> tuple[str, str] | None:
        return find_missing_gpus(Machine("a", "/srv", labels=frozenset(labels), **values), SEEN)

    assert miss("gpu", "cuda", "fast") is None
    assert miss("gpu", "rocm") == (
        "it has the label rocm, but amd-smi or rocm-smi lists no GPU there",
        "install AMD's driver and ROCm's amd-smi there, or remove the label",
    )
    assert miss("xpu") is not None
    bare = replace(SEEN, gpus=())
    assert find_missing_gpus(Machine("a", "/srv", labels=frozenset({"fast"})), bare) is None
    words, fix = find_missing_gpus(Machine("a", "/srv", gpus_per_slot=2), bare) or ("", "")
    assert words == "ptq.toml says that it has GPUs, but no tool lists one (nvidia-smi, amd-smi or rocm-smi, xpu-smi)"
    assert fix.startswith("install NVIDIA's driver there; install AMD's ")


def test_what_changes_all_the_time_is_written_down_now_and_then() -> None:
    sighting, fuller = Sighting(NOON, SEEN), replace(SEEN, free_bytes=1, free_inodes=1)
    assert is_news(None, SEEN, NOON)
    assert not is_news(sighting, fuller, NOON + FRESH / 2)
    assert is_news(sighting, fuller, NOON + FRESH)
    assert is_news(sighting, replace(SEEN, gpus=()), NOON)
    assert is_news(sighting, SEEN, NOON - timedelta(hours=1)), "the clock went back"
