from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from runner.machines import Lease, Machine, choose_machine, eligible


def machine(name: str, slots: int = 1, *labels: str) -> Machine:
    return Machine(name, "/srv/ptq", slots=slots, labels=frozenset(labels))


def leases(name: str, *slots: int) -> list[Lease]:
    return [Lease(name, slot, f"job {slot}") for slot in slots]


def chosen(machines: Sequence[Machine], taken: Sequence[Lease] = (), *requires: str) -> tuple[str, int] | None:
    lease = choose_machine(machines, taken, requires)
    return (lease.machine, lease.slot) if lease else None


def test_only_a_machine_with_every_required_label_is_chosen() -> None:
    pool = [machine("plain"), machine("gpu", 1, "gpu"), machine("both", 1, "gpu", "h100")]
    assert [found.name for found in eligible(pool, ["gpu"])] == ["gpu", "both"]
    assert chosen(pool, (), "h100", "gpu") == ("both", 0)
    assert chosen(pool, (), "tpu") is None


def test_the_least_loaded_machine_is_chosen_by_its_share_of_taken_slots() -> None:
    pool = [machine("small", 2), machine("large", 8)]
    assert chosen(pool, leases("small", 0) + leases("large", 0, 1, 2)) == ("large", 3)
    assert chosen(pool, leases("small", 0) + leases("large", 0, 1, 2, 3, 4)) == ("small", 1)


def test_of_machines_with_the_same_load_the_first_of_the_configuration_is_chosen() -> None:
    assert chosen([machine("b", 2), machine("a", 2)]) == ("b", 0)


def test_a_slot_in_the_middle_is_used_again() -> None:
    assert chosen([machine("a", 3)], leases("a", 0, 2)) == ("a", 1)


def test_a_full_pool_has_no_slot() -> None:
    assert chosen([machine("a", 2)], leases("a", 0, 1)) is None
    assert chosen([]) is None


def test_a_machine_to_avoid_is_passed_over_though_it_is_idle() -> None:
    pool = [machine("down", 9), machine("up", 1)]
    assert choose_machine(pool, [], [], avoid=["down"]) == Lease("up", 0, "")
    assert choose_machine(pool, [], [], avoid=["down", "up"]) is None


def test_jobs_beyond_the_slots_of_a_smaller_configuration_still_count() -> None:
    assert chosen([machine("a", 1)], leases("a", 5)) is None
    assert chosen([machine("a", 2)], leases("a", 5)) == ("a", 0)


def test_leases_of_a_machine_that_is_gone_take_nothing_from_others() -> None:
    assert chosen([machine("a", 1)], leases("gone", 0)) == ("a", 0)


@given(
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    taken=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5))),
)
def test_a_chosen_slot_is_free_and_exists(slots: list[int], taken: set[tuple[int, int]]) -> None:
    pool = [machine(str(number), count) for number, count in enumerate(slots)]
    found = chosen(pool, [Lease(str(number), slot, "job") for number, slot in taken])
    full = all(sum(number == place for number, _ in taken) >= count for place, count in enumerate(slots))
    assert (found is None) is full
    if found:
        assert (int(found[0]), found[1]) not in taken
        assert found[1] < slots[int(found[0])]
