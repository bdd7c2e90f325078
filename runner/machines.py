"""Machines, their slots, how they stand, and the choice between them. Pure: refuses to know how bytes reach one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

MAX_REST = timedelta(seconds=60)
"""How long a machine that is out is left alone at most."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One `[[machines]]` entry: a host with slots. `kind = "local"` is the service's own machine."""

    name: str
    """How people see it, in comments and logs; never its address."""
    workspace: str
    """Absolute path on the machine of the folder that is ours."""
    kind: Literal["ssh", "local"] = "ssh"
    host: str = ""
    port: int = 22
    user: str = ""
    client_key_file: Path | None = None
    known_hosts_file: Path | None = None
    slots: int = 1
    labels: frozenset[str] = field(default_factory=frozenset)
    python: str = "python3"
    """The interpreter (3.9 or newer) that runs our machine-side program there."""
    sandbox: Literal["auto", "required"] = "auto"
    """Whether jobs may run there as the account itself where the machine cannot seal them from each other."""
    environment: Literal["auto", "overlay", "copy", "slot"] = "auto"
    """How environments come from their base there: as well as the machine can, or only so."""
    private: tuple[str, ...] = ()
    """Folders there that no job sees."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A job's hold on one slot of a machine."""

    machine: str
    slot: int
    job_id: str


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a machine gets no new jobs just now, and until when it is left alone."""

    reason: str
    permanent: bool
    """Whether nothing will change until an operator has acted."""
    since: datetime
    seen_at: datetime
    """When it was last found so."""
    retry_at: datetime

    def is_due(self, now: datetime) -> bool:
        """Whether it is time to ask again. A time beyond every rest comes from a clock that went wrong."""
        return not now < self.retry_at <= now + MAX_REST


def find_out(before: Outage | None, reason: str, *, permanent: bool, now: datetime, least: timedelta) -> Outage:
    """The outage of a machine that was just found out, again or for the first time.

    It rests for as long as it has been gone, within bounds: each rest about doubles the time, so that the end of a
    hiccup is seen quickly and a dead host is left in peace.
    """
    since = min(before.since, now) if before else now
    rest = min(max(now - since, least), MAX_REST)
    return Outage(reason, permanent, since, now, now + rest)


@dataclass(frozen=True, slots=True)
class MachineState:
    """What all replicas and the command line know of a machine."""

    drained_at: datetime | None = None
    """Since when an operator lets it have no new jobs; None lets it."""
    drained_by: str | None = None
    outage: Outage | None = None

    @property
    def takes_jobs(self) -> bool:
        """Whether new jobs may go there."""
        return self.drained_at is None and self.outage is None

    @property
    def trouble(self) -> str | None:
        """Why it takes no jobs, as a clause for people; None when it takes some."""
        if self.outage:
            return self.outage.reason
        return "its operator has drained it" if self.drained_at else None


USABLE = MachineState()
"""What nobody has said anything about."""


def eligible(machines: Iterable[Machine], requires: Iterable[str]) -> list[Machine]:
    """The machines that carry every label of `requires`."""
    wanted = set(requires)
    return [machine for machine in machines if wanted <= machine.labels]


def choose_machine(
    machines: Iterable[Machine],
    leases: Iterable[Lease],
    requires: Iterable[str],
    avoid: Iterable[str] = (),
    last_resort: str | None = None,
) -> Lease | None:
    """Pick a free slot on the least loaded machine that has every label of `requires`, or None.

    Machines named in `avoid` (just now unreachable, say) are passed over, and `last_resort` too while there is any
    other, be that full. The lease has no job yet.
    """
    taken: defaultdict[str, set[int]] = defaultdict(set)
    for lease in leases:
        taken[lease.machine].add(lease.slot)

    def load(machine: Machine) -> float:
        return len(taken[machine.name]) / machine.slots

    avoided = set(avoid)
    candidates = [machine for machine in eligible(machines, requires) if machine.name not in avoided]
    candidates = [machine for machine in candidates if machine.name != last_resort] or candidates
    machine = min(candidates, key=load, default=None)  # of equals the first: the order of the configuration counts
    if machine is None or load(machine) >= 1:
        return None
    slot = min(set(range(machine.slots)) - taken[machine.name])
    return Lease(machine.name, slot, job_id="")
