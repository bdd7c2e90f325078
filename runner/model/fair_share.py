"""Decides who gets the next slot: fair between repositories and people, and without starvation. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from runner.model.job import Job
from runner.model.machines import Holder, Lease

LONG = timedelta(days=1)
"""A job that has waited this long goes first, so that others of its person or repository cannot delay it forever."""

NEVER = datetime.min.replace(tzinfo=UTC)

Choose = Callable[[Job, Sequence[Lease]], Lease | None]
"""Chooses a job's slot while these slots are taken. None if no slot is suitable."""


@dataclass(frozen=True, slots=True)
class Turns:
    """When each repository and each person last got a slot, by name. A missing one never got a slot, or long ago."""

    repositories: Mapping[str, datetime] = field(default_factory=dict)
    people: Mapping[str, datetime] = field(default_factory=dict)


def allot(
    waiting: Iterable[Job],
    holders: Iterable[Holder],
    turns: Turns,
    now: datetime,
    choose: Choose,
    alike: Callable[[Job], Hashable],
) -> dict[str, Lease]:
    """Job id -> slot, for the waiting jobs that get one.

    Slots are given one by one. The next slot goes to the repository with the fewest slots. Among equals, it goes to the
    person with the fewest slots, then to the one who has waited longest since the last slot, then to the oldest job. If
    there is no slot for a job, there is none for jobs that are `alike`.
    """
    table = _Table(holders, turns)
    left, allotted = [*waiting], dict[str, Lease]()
    while left:
        job = min(left, key=lambda job: table.rank(job, now))
        lease = choose(job, table.leases)
        if lease is None:
            left = [other for other in left if alike(other) != alike(job)]
            continue
        left.remove(job)
        allotted[job.id] = replace(lease, job_id=job.id)
        table.serve(job, allotted[job.id], now)
    return allotted


class _Table:
    """The current slots of repositories and people."""

    def __init__(self, holders: Iterable[Holder], turns: Turns) -> None:
        held = [*holders]
        self.leases = [holder.lease for holder in held]
        self._repositories = Counter(holder.repository for holder in held)
        self._people = Counter(holder.requested_by for holder in held)
        self._repository_turns, self._person_turns = dict(turns.repositories), dict(turns.people)

    def serve(self, job: Job, lease: Lease, now: datetime) -> None:
        """Record that a job gets a slot."""
        self.leases.append(lease)
        self._repositories[job.repository] += 1
        self._people[job.requested_by] += 1
        self._repository_turns[job.repository] = self._person_turns[job.requested_by] = now

    def rank(self, job: Job, now: datetime) -> tuple[bool, int, int, datetime, datetime, str]:
        """The sort key: the smallest goes next."""
        if now - job.created_at >= LONG:
            return False, 0, 0, NEVER, job.created_at, job.id
        # With few slots, often nobody holds one when a slot becomes free. Then the last one served has to wait.
        last_turn = max(
            self._repository_turns.get(job.repository, NEVER), self._person_turns.get(job.requested_by, NEVER)
        )
        held = self._repositories[job.repository], self._people[job.requested_by]
        return True, *held, last_turn, job.created_at, job.id
