"""Machines, their slots, how they stand, and the choice between them. Pure: refuses to know how bytes reach one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from runner.model.back_off import BackOff

MAX_REST = timedelta(seconds=60)
"""How long a machine that does not answer is left alone at most."""

FAULTS: Mapping[str, str] = {
    "disk_full": "its disk is full",
    "environment_unusable": "environments cannot be mounted or copied there",
    "internal": "our program fails there",
    "no_environment": "it cannot make environments as its configuration wants them",
    "no_git": "it has no git that can be run",
    "no_python": "its Python cannot be run",
    "not_sealed": "jobs cannot be sealed there",
    "workspace_unusable": "its workspace cannot be written",
    "wrong_commit": "it checks out other commits than it is told to",
}
"""Why a preparation fails through its machine's fault, by the protocol's name, in words of ours: a machine's own may
hold the last lines of somebody's log."""

FAULTS_IN_A_ROW = 3
"""So many preparations that fail through the machine's fault, with none that succeeds in between, put it out."""

FAULTY_RESTS = BackOff(first_s=300.0, longest_s=3600.0)
"""How long it then gets no job."""

Devices = tuple[tuple[str, str], ...]
"""GPUs: for each the number of its device file, and the name by which CUDA knows it."""


PUBLIC, PRIVATE = "public", "private"
"""The kinds of repositories."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One `[[machines]]` entry: a host with slots. `kind = "local"` is the service's own machine."""

    name: str
    """How people see it, in comments and logs; never its address."""
    workspace: str
    """Absolute path on the machine of the folder that is ours."""
    kind: Literal["ssh", "local"] = "ssh"
    host: str = ""
    port: int | None = None
    """None means 22, or what `ssh_config_file` says."""
    user: str = ""
    client_key_file: Path | None = None
    known_hosts_file: Path | None = None
    jump_hosts: tuple[str, ...] = ()
    """The hosts that one comes there through, each as `user@host:port`, in the order in which they are passed."""
    ssh_config_file: Path | None = None
    """Says what this leaves open: address, port, user, jump hosts. Nothing else is taken from it."""
    slots: int = 1
    labels: frozenset[str] = field(default_factory=frozenset)
    serves: frozenset[str] = frozenset({PUBLIC})
    """The kinds of repositories whose jobs may run there: what one job leaves in reach of others depends on it."""
    python: str = "python3"
    """The interpreter (3.9 or newer) that runs our machine-side program there."""
    sandbox: Literal["auto", "required"] = "auto"
    """Whether jobs may run there as the account itself where the machine cannot seal them from each other."""
    environment: Literal["auto", "overlay", "copy", "slot"] = "auto"
    """How environments come from their base there: as well as the machine can, or only so."""
    gpus_per_slot: int | None = None
    """How many GPUs each slot has; None shares out all there are, 0 lets every job see all of them."""
    min_free_gb: float = 0.0
    """With less than so many GB (of 10^9 bytes) free on its workspace's disk it gets no new jobs."""
    private: tuple[str, ...] = ()
    """Folders and files there that no sealed job sees."""

    def is_for(self, *, private: bool) -> bool:
        """Whether jobs of private repositories, or of public ones, may run there."""
        return _name_kind(private=private) in self.serves


@dataclass(frozen=True, slots=True)
class Lease:
    """A job's hold on one slot of a machine."""

    machine: str
    slot: int
    job_id: str
    gpus: Devices = ()
    """Those that the job may use; none means all there are."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A lease, and on whose behalf it is held."""

    lease: Lease
    repository: str
    requested_by: str
    begins: bool = False
    """Whether nobody knows yet if the job can be prepared there."""


@dataclass(frozen=True, slots=True)
class WarmBase:
    """A base of environments that is there already: a job that begins from it is ready in seconds."""

    machine: str
    slot: int | None
    """The one slot that it is good for; None for any of the machine's."""
    recipe: str
    """Names what it was made by."""


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
        """Whether it is time to ask again; also where the clock went back to before it was found out."""
        return not self.seen_at <= now < self.retry_at


def find_out(before: Outage | None, reason: str, *, permanent: bool, now: datetime, least: timedelta) -> Outage:
    """The outage of a machine that was just found out, again or for the first time.

    It rests for as long as it has been gone, from `least` to `MAX_REST`. So the end of a hiccup is seen quickly, and a
    dead host is left in peace.
    """
    since = min(before.since, now) if before else now
    rest_s = BackOff(least.total_seconds(), MAX_REST.total_seconds()).since((now - since).total_seconds())
    return Outage(reason, permanent, since, now, now + timedelta(seconds=rest_s))


def break_circuit(faults: int, code: str, now: datetime) -> Outage | None:
    """The outage of a machine on which so many preparations failed in a row, the last with this code of `FAULTS`.

    None while there are few of them. Whoever asks such a machine finds it well: only another job shows whether it is.
    """
    if faults < FAULTS_IN_A_ROW:
        return None
    rest = timedelta(seconds=FAULTY_RESTS.after(faults - FAULTS_IN_A_ROW + 1))
    reason = f"{faults} jobs in a row could not be prepared there, the last because {FAULTS[code]}"
    return Outage(reason, False, now, now, now + rest)


@dataclass(frozen=True, slots=True)
class MachineState:
    """What all replicas and the command line know of a machine."""

    drained_at: datetime | None = None
    """Since when an operator lets it have no new jobs; None lets it."""
    drained_by: str | None = None
    outage: Outage | None = None
    faults: int = 0
    """How many preparations have failed there through its own fault since one succeeded."""

    @property
    def is_on_trial(self) -> bool:
        """Whether one job is to show first that the machine is well again."""
        return self.faults >= FAULTS_IN_A_ROW

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


def eligible(machines: Iterable[Machine], requires: Iterable[str], *, private: bool | None) -> list[Machine]:
    """The machines that carry every label of `requires` and serve repositories of this kind.

    `private` is None only where nothing of a repository is sent to a machine: then either kind will do.
    """
    wanted = set(requires)
    return [
        machine
        for machine in machines
        if wanted <= machine.labels and (private is None or machine.is_for(private=private))
    ]


def needs(requires: Iterable[str], *, private: bool) -> tuple[str, ...]:
    """What `eligible` asks of a machine, in words."""
    return (*requires, f"{_name_kind(private=private)} repositories")


def _name_kind(*, private: bool) -> str:
    return PRIVATE if private else PUBLIC


def choose_machine(
    machines: Iterable[Machine],
    leases: Iterable[Lease],
    avoid: Iterable[str] = (),
    last_resort: str | None = None,
    warm: Collection[WarmBase] = (),
) -> Lease | None:
    """Pick a free slot on one of these `eligible` machines, or None.

    One with a `warm` base goes first, for making one takes longer than any load; of equals the least loaded. Machines
    named in `avoid` (just now unreachable, say) are passed over, and `last_resort` too while there is any other, be
    that full. The lease has no job yet.
    """
    taken: defaultdict[str, set[int]] = defaultdict(set)
    for lease in leases:
        taken[lease.machine].add(lease.slot)
    places = {(base.machine, base.slot) for base in warm}

    def load(machine: Machine) -> float:
        return len(taken[machine.name]) / machine.slots

    def free(machine: Machine) -> set[int]:
        return set(range(machine.slots)) - taken[machine.name]

    def warm_slots(machine: Machine) -> set[int]:
        return {slot for slot in free(machine) if not places.isdisjoint({(machine.name, slot), (machine.name, None)})}

    avoided = set(avoid)
    candidates = [machine for machine in machines if machine.name not in avoided]
    candidates = [machine for machine in candidates if machine.name != last_resort] or candidates
    candidates = [machine for machine in candidates if load(machine) < 1]
    if not candidates:
        return None
    # Of equals the first: the order of the configuration counts.
    machine = min(candidates, key=lambda machine: (not warm_slots(machine), load(machine)))
    return Lease(machine.name, min(warm_slots(machine) or free(machine)), job_id="")
