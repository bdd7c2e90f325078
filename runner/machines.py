"""Machines, their slots, and the choice between them. Pure: refuses to know how bytes reach a machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


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


@dataclass(frozen=True, slots=True)
class Lease:
    """A job's hold on one slot of a machine."""

    machine: str
    slot: int
    job_id: str


def eligible(machines: Iterable[Machine], requires: Iterable[str]) -> list[Machine]:
    """The machines that carry every label of `requires`."""
    wanted = set(requires)
    return [machine for machine in machines if wanted <= machine.labels]


def choose_machine(
    machines: Iterable[Machine], leases: Iterable[Lease], requires: Iterable[str], avoid: Iterable[str] = ()
) -> Lease | None:
    """Pick a free slot on the least loaded machine that has every label of `requires`, or None.

    Machines named in `avoid` (just now unreachable, say) are passed over. The lease has no job yet.
    """
    taken: defaultdict[str, set[int]] = defaultdict(set)
    for lease in leases:
        taken[lease.machine].add(lease.slot)

    def load(machine: Machine) -> float:
        return len(taken[machine.name]) / machine.slots

    avoided = set(avoid)
    candidates = [machine for machine in eligible(machines, requires) if machine.name not in avoided]
    machine = min(candidates, key=load, default=None)  # of equals the first: the order of the configuration counts
    if machine is None or load(machine) >= 1:
        return None
    slot = min(set(range(machine.slots)) - taken[machine.name])
    return Lease(machine.name, slot, job_id="")
