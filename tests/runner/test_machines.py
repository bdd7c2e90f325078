from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.model.machines import (
    FAULTS,
    FAULTS_IN_A_ROW,
    FAULTY_RESTS,
    MAX_REST,
    Lease,
    Machine,
    Outage,
    WarmBase,
    break_circuit,
    choose_machine,
    eligible,
    find_out,
)
from tests.support.jobs import NOON


def machine(name: str, slots: int = 1, *labels: str) -> Machine:
    return Machine(name, "/srv/ptq", slots=slots, labels=frozenset(labels))


def leases(name: str, *slots: int) -> list[Lease]:
    return [Lease(name, slot, f"job {slot}") for slot in slots]


def chosen(machines: Sequence[Machine], taken: Sequence[Lease] = (), *requires: str) -> tuple[str, int] | None:
    lease = choose_machine(eligible(machines, requires, private=None), taken)
    return (lease.machine, lease.slot) if lease else None


def test_only_a_machine_with_every_required_label_is_chosen() -> None:
    pool = [machine("plain"), machine("gpu", 1, "gpu"), machine("both", 1, "gpu", "h100")]
    assert [found.name for found in eligible(pool, ["gpu"], private=None)] == ["gpu", "both"]
    assert chosen(pool, (), "h100", "gpu") == ("both", 0)
    assert chosen(pool, (), "tpu") is None


def test_jobs_of_private_repositories_run_only_where_the_operator_lets_them() -> None:
    pool = [machine("plain"), replace(machine("secret"), serves=frozenset({"private"}))]
    pool += [replace(machine("both"), serves=frozenset({"private", "public"}))]
    assert [found.name for found in eligible(pool, (), private=False)] == ["plain", "both"]
    assert [found.name for found in eligible(pool, (), private=True)] == ["secret", "both"]
    assert [found.name for found in eligible(pool, (), private=None)] == ["plain", "secret", "both"]


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
    assert choose_machine(pool, [], avoid=["down"]) == Lease("up", 0, "")
    assert choose_machine(pool, [], avoid=["down", "up"]) is None


def test_jobs_beyond_the_slots_of_a_smaller_configuration_still_count() -> None:
    assert chosen([machine("a", 1)], leases("a", 5)) is None
    assert chosen([machine("a", 2)], leases("a", 5)) == ("a", 0)


def test_leases_of_a_machine_that_is_gone_take_nothing_from_others() -> None:
    assert chosen([machine("a", 1)], leases("gone", 0)) == ("a", 0)


@pytest.mark.slow
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


@given(
    slots=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    taken=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2))),
    avoided=st.sets(st.integers(0, 3)),
    last=st.integers(0, 4),
)
def test_the_last_resort_is_taken_only_where_there_is_no_other(
    slots: list[int], taken: set[tuple[int, int]], avoided: set[int], last: int
) -> None:
    pool = [machine(str(number), count) for number, count in enumerate(slots)]
    held = [Lease(str(number), slot, "job") for number, slot in taken]
    avoid = {str(number) for number in avoided}
    found = choose_machine(pool, held, avoid, last_resort=str(last))
    others = [machine for machine in pool if machine.name not in {*avoid, str(last)}]
    if others:
        assert found == choose_machine(others, held)
    else:
        assert found == choose_machine([machine for machine in pool if machine.name == str(last)], held, avoid)
    assert found is None or found.machine not in avoid


# How long a machine that is out is left alone

LEAST = timedelta(seconds=2)


def outages(gaps: Sequence[float]) -> list[Outage]:
    """What is known of a machine each time that it is found out, so many seconds after it might have been asked."""
    found = [find_out(None, "it is silent", permanent=False, now=NOON, least=LEAST)]
    for gap in gaps:
        now = found[-1].retry_at + timedelta(seconds=gap)
        found.append(find_out(found[-1], "it is silent", permanent=False, now=now, least=LEAST))
    return found


def test_a_machine_is_asked_at_first_soon_and_later_every_minute() -> None:
    rests = [(outage.retry_at - outage.seen_at).total_seconds() for outage in outages([0] * 7)]
    assert rests == [2, 2, 4, 8, 16, 32, 60, 60]


@given(st.lists(st.floats(-10_000, 10_000), max_size=8))
def test_a_rest_has_bounds_and_ends_whatever_the_clock_does(gaps: list[float]) -> None:
    for outage in outages(gaps):
        assert LEAST <= outage.retry_at - outage.seen_at <= MAX_REST
        assert outage.since <= outage.seen_at
        assert not outage.is_due(outage.seen_at)
        assert outage.is_due(outage.retry_at)
        # A clock that was hours ahead when it was found out must not keep it out for hours.
        assert outage.is_due(outage.seen_at - timedelta(hours=3))


# A base that is there already


def warm(name: str, slot: int | None = None) -> WarmBase:
    return WarmBase(name, slot, "recipe")


def chosen_warm(
    machines: Sequence[Machine], taken: Sequence[Lease], *bases: WarmBase, avoid: Sequence[str] = ()
) -> tuple[str, int] | None:
    lease = choose_machine(machines, taken, avoid, warm=bases)
    return (lease.machine, lease.slot) if lease else None


def test_a_machine_with_a_warm_base_goes_before_a_less_loaded_one() -> None:
    pool = [machine("cold", 4), machine("warm", 4)]
    assert chosen_warm(pool, leases("warm", 0, 1, 2), warm("warm")) == ("warm", 3)


def test_nobody_waits_for_a_warm_base_while_there_is_a_slot() -> None:
    pool = [machine("cold", 4), machine("warm", 1)]
    assert chosen_warm(pool, leases("warm", 0), warm("warm")) == ("cold", 0)
    assert chosen_warm(pool, [], warm("warm"), avoid=["warm"]) == ("cold", 0)


def test_of_warm_machines_the_least_loaded_is_chosen() -> None:
    pool = [machine("a", 2), machine("b", 2), machine("c", 2)]
    assert chosen_warm(pool, leases("a", 0), warm("a"), warm("b")) == ("b", 0)


def test_a_base_made_in_place_counts_for_its_own_slot_alone() -> None:
    pool = [machine("a", 3), machine("b", 3)]
    assert chosen_warm(pool, [], warm("b", 2)) == ("b", 2)
    assert chosen_warm(pool, leases("b", 2), warm("b", 2)) == ("a", 0)


# Machines on which preparations fail


def test_a_few_faults_are_borne_and_more_of_them_put_a_machine_out_for_ever_longer() -> None:
    broken = [break_circuit(faults, "disk_full", NOON) for faults in range(9)]
    assert broken[:FAULTS_IN_A_ROW] == [None] * FAULTS_IN_A_ROW
    rests = [(outage.retry_at - NOON).total_seconds() / 60 for outage in broken if outage]
    assert rests == [5, 10, 20, 40, 60, 60]
    assert broken[3] is not None
    assert broken[3].reason == "3 jobs in a row could not be prepared there, the last because its disk is full"
    assert not broken[3].permanent


@given(st.integers(3, 10**6), st.sampled_from(sorted(FAULTS)))
def test_such_an_outage_ends_however_many_faults_there_were(faults: int, code: str) -> None:
    outage = break_circuit(faults, code, NOON)
    assert outage
    assert not outage.is_due(NOON)
    assert outage.is_due(NOON + timedelta(seconds=FAULTY_RESTS.longest_s))
    assert outage.is_due(NOON - timedelta(seconds=1)), "the clock went back"
