"""Who gets the next slot: fairly between repositories and people, and nobody waits for ever. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from runner.model.job import Job
from runner.model.machines import Holder, Lease

LONG = timedelta(days=1)
"""Who has waited for so long goes before all who have not: a crowd of one's own elsewhere must not hold one up for
ever."""

NEVER = datetime.min.replace(tzinfo=UTC)

Choose = Callable[[Job, Sequence[Lease]], Lease | None]
"""The slot that a job gets while these are taken; None where none fits."""


@dataclass(frozen=True, slots=True)
class Turns:
    """When each repository and each person last got a slot, by name. Who is not there never did, or long ago."""

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
    """The slot of each waiting job that gets one, by the job's id.

    Slots go one by one to the job of the repository that holds the fewest, of those to the person who does, of those
    to whom had no turn for the longest time, of those to the oldest. Where there is none for a job, there is none for
    any that is `alike`.
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
    """Who has how much just now."""

    def __init__(self, holders: Iterable[Holder], turns: Turns) -> None:
        held = [*holders]
        self.leases = [holder.lease for holder in held]
        self._repositories = Counter(holder.repository for holder in held)
        self._people = Counter(holder.requested_by for holder in held)
        self._repository_turns, self._person_turns = dict(turns.repositories), dict(turns.people)

    def serve(self, job: Job, lease: Lease, now: datetime) -> None:
        """Note that a job gets a slot."""
        self.leases.append(lease)
        self._repositories[job.repository] += 1
        self._people[job.requested_by] += 1
        self._repository_turns[job.repository] = self._person_turns[job.requested_by] = now

    def rank(self, job: Job, now: datetime) -> tuple[bool, int, int, datetime, datetime, str]:
        """The smallest goes next."""
        if now - job.created_at >= LONG:
            return False, 0, 0, NEVER, job.created_at, job.id
        # With few slots nobody holds any when one is free: the crowd that was served last is the one to wait.
        last_turn = max(
            self._repository_turns.get(job.repository, NEVER), self._person_turns.get(job.requested_by, NEVER)
        )
        held = self._repositories[job.repository], self._people[job.requested_by]
        return True, *held, last_turn, job.created_at, job.id
