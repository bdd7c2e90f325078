"""Who gets the next slot: a few cases, and the promises, under whatever crowd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.model.fair_share import LONG, Turns, allot
from runner.model.job import Job
from runner.model.machines import Holder, Lease, Machine, choose_machine
from tests.support.jobs import NOON, make_job

ONE_REPOSITORY = "octo/widgets"
NOBODY = Turns()


def job(number: int, repository: str = ONE_REPOSITORY, person: str = "ann", minutes: float | None = None) -> Job:
    asked_at = NOON + timedelta(minutes=number if minutes is None else minutes)
    return make_job(id=f"{number:010}", repository=repository, requested_by=person, created_at=asked_at)


def holder(slot: int, repository: str, person: str = "ann") -> Holder:
    return Holder(Lease("a", slot, f"held {slot}"), repository, person)


def give(
    waiting: Sequence[Job],
    held: Sequence[Holder],
    slots: int,
    after: timedelta = timedelta(hours=2),
    turns: Turns = NOBODY,
) -> list[int]:
    """The numbers of the jobs that get a slot, in the order in which slots go."""
    pool = [Machine("a", "/srv", slots=slots)]
    order: list[int] = []

    def choose(job: Job, leases: Sequence[Lease]) -> Lease | None:
        lease = choose_machine(pool, leases)
        order.extend([int(job.id)] if lease else [])
        return lease

    found = allot(waiting, held, turns, NOON + after, choose, lambda job: ())
    assert {int(job_id) for job_id in found} == set(order)
    assert all(lease.job_id == job_id for job_id, lease in found.items())
    slots_given = [lease.slot for lease in found.values()]
    assert len(set(slots_given)) == len(slots_given)
    return order


def test_of_equals_the_oldest_goes_first() -> None:
    assert give([job(2), job(1), job(3)], [], 2) == [1, 2]


def test_the_repository_that_holds_the_fewest_slots_goes_first() -> None:
    crowd = [job(number) for number in range(5)]
    assert give([*crowd, job(9, "octo/gadgets")], [], 3) == [0, 9, 1]
    assert give([*crowd, job(9, "octo/gadgets")], [holder(0, ONE_REPOSITORY)], 3) == [9, 0]


def test_within_a_repository_the_person_who_holds_the_fewest_slots_goes_first() -> None:
    crowd = [job(number) for number in range(5)]
    assert give([*crowd, job(9, person="bob")], [], 3) == [0, 9, 1]
    elsewhere = [holder(0, "octo/gadgets", "ann")]
    assert give([job(1, person="ann"), job(2, person="bob")], elsewhere, 2) == [2]


def test_a_person_with_a_crowd_in_many_repositories_goes_behind_others() -> None:
    crowd = [job(number, f"octo/{number}") for number in range(5)]
    assert give([*crowd, job(9, "octo/other", "bob")], [], 2) == [0, 9]


def test_of_those_who_hold_as_much_who_had_no_turn_for_the_longest_time_goes_first() -> None:
    waiting = [job(1), job(2, "octo/gadgets", "bob"), job(3, "octo/new", "cid")]
    turns = Turns({ONE_REPOSITORY: NOON + timedelta(minutes=9), "octo/gadgets": NOON}, {})
    assert give(waiting, [], 3, turns=turns) == [3, 2, 1]
    assert give(waiting, [], 3, turns=replace(turns, people={"cid": NOON + timedelta(minutes=30)})) == [2, 1, 3]


def test_who_has_waited_for_a_day_goes_first_however_much_others_of_the_same_hold() -> None:
    held = [holder(0, ONE_REPOSITORY)]
    waiting = [job(1), job(2, "octo/gadgets", "bob", minutes=60)]
    assert give(waiting, held, 2, LONG) == [2]
    assert give(waiting, held, 2, LONG + timedelta(minutes=1)) == [1]


def test_a_job_that_fits_nowhere_keeps_nobody_else_out() -> None:
    def choose(job: Job, leases: Sequence[Lease]) -> Lease | None:
        return None if job.requested_by == "ann" else choose_machine([Machine("a", "/srv")], leases)

    waiting = [job(1), job(2), job(3, person="bob")]
    assert [*allot(waiting, [], NOBODY, NOON, choose, lambda job: job.requested_by)] == [waiting[2].id]


MINUTE = timedelta(minutes=1)
CROWDS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 120), st.integers(1, 60)), min_size=1, max_size=30
)
"""Repository, person, when it is asked for, and how long it runs, in minutes."""


def simulate(crowd: Sequence[tuple[int, int, int, int]], slots: int, until: int) -> dict[int, int]:
    """When each job gets its slot, by its place in the crowd; minutes in which all is as fair as it is meant to be."""
    jobs = [job(number, f"octo/{repo}", f"person {who}", at) for number, (repo, who, at, _) in enumerate(crowd)]
    running, began = dict[int, tuple[int, int]](), dict[int, int]()
    pool, turns = [Machine("a", "/srv", slots=slots)], Turns({}, {})
    for minute in range(until):
        running = {number: (slot, end) for number, (slot, end) in running.items() if end > minute}
        waiting = [job for number, job in enumerate(jobs) if number not in began and crowd[number][2] <= minute]
        held = [
            Holder(Lease("a", slot, jobs[number].id), jobs[number].repository, jobs[number].requested_by)
            for number, (slot, _) in running.items()
        ]
        before = Counter(holder.repository for holder in held)
        now = NOON + minute * MINUTE
        found = allot(waiting, held, turns, now, lambda _, taken: choose_machine(pool, taken), lambda _: ())
        after = before + Counter(job.repository for job in waiting if job.id in found)
        assert len(held) + len(found) == min(slots, len(held) + len(waiting)), "no slot is left free"
        for left in (job for job in waiting if job.id not in found):
            for other in (job for job in waiting if job.id in found):
                assert after[left.repository] >= after[other.repository] - 1, "another had more, and got one more"
        for number, lease in ((int(job_id), lease) for job_id, lease in found.items()):
            running[number] = (lease.slot, minute + crowd[number][3])
            began[number] = minute
            served = jobs[number]
            turns = Turns({**turns.repositories, served.repository: now}, {**turns.people, served.requested_by: now})
    return began


@pytest.mark.slow
@settings(deadline=None)
@given(crowd=CROWDS, slots=st.integers(1, 4))
def test_whatever_the_crowd_everybody_gets_a_slot_and_none_is_given_unfairly(
    crowd: list[tuple[int, int, int, int]], slots: int
) -> None:
    most = 121 + sum(minutes for *_, minutes in crowd)
    assert len(simulate(crowd, slots, most)) == len(crowd)


@pytest.mark.slow
@settings(deadline=None)
@given(size=st.integers(1, 60), by_person=st.booleans(), at=st.integers(1, 100))
def test_a_crowd_keeps_a_newcomer_waiting_for_one_job_at_most(size: int, by_person: bool, at: int) -> None:
    crowd = [(number if by_person else 0, 0, 0, 10) for number in range(size)]
    began = simulate([*crowd, (99, 1, at, 10)], 1, at + 11)
    assert began[size] - at <= 10


def test_newcomers_without_end_do_not_keep_an_old_job_waiting_for_ever() -> None:
    """A person's own crowd in one repository, and others' in the other, always go before this job; but for its age."""
    mine = job(0, "octo/a", "ann", minutes=0)
    held = [holder(0, "octo/a", "bob"), holder(1, "octo/b", "ann")]
    for hour in range(48):
        at = timedelta(hours=hour)
        newcomers = [job(hour + 1, "octo/new", f"person {hour}", hour * 60)]
        if give([mine, *newcomers], held, 3, at) == [0]:
            assert at >= LONG
            return
    raise AssertionError("it never got a slot")
