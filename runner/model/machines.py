"""Machines, their slots and states, and the choice between them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from runner.model.back_off import BackOff

MAX_REST = timedelta(seconds=60)
"""The longest wait before an unreachable machine is tried again."""

FAULTS: Mapping[str, str] = {
    "disk_full": "its disk is full",
    "environment_unusable": "environments cannot be mounted or copied there",
    "internal": "ptq-bot's program fails there",
    "no_environment": "it cannot create environments as configured",
    "no_git": "git cannot be run there",
    "no_python": "its Python cannot be run",
    "not_sealed": "jobs cannot be sealed there",
    "sandbox_shortage": "it has no room for another sandbox",
    "workspace_unusable": "its workspace cannot be written",
    "wrong_commit": "it checks out other commits than it is told to",
}
"""Error code -> failure of a machine, for people. The machine's own message is not shown, because it may contain the
last lines of somebody's log."""

FAULTS_IN_A_ROW = 3
"""A machine gets no new jobs after this many preparations in a row have failed because of it."""

FAULTY_RESTS = BackOff(first_s=300.0, longest_s=3600.0)
"""How long such a machine gets no new jobs."""

PUBLIC, PRIVATE = "public", "private"
"""The kinds of repositories."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One `[[machines]]` entry: a host with slots. `kind = "local"` is the service's own machine."""

    name: str
    """Its name in comments and logs. Its address is never shown."""
    workspace: str
    """Absolute path of the work folder on the machine."""
    kind: Literal["ssh", "local"] = "ssh"
    host: str = ""
    port: int | None = None
    """None means 22, or what `ssh_config_file` says."""
    user: str = ""
    client_key_file: Path | None = None
    known_hosts_file: Path | None = None
    jump_hosts: tuple[str, ...] = ()
    """The jump hosts, each as `user@host:port`, in order."""
    ssh_config_file: Path | None = None
    """Provides address, port, user and jump hosts if they are missing here, and nothing else."""
    slots: int = 1
    labels: frozenset[str] = field(default_factory=frozenset)
    serves: frozenset[str] = frozenset({PUBLIC})
    """The kinds of repositories whose jobs may run there. A job may leave files that later jobs can read."""
    python: str = "python3"
    """The interpreter (3.9 or newer) that runs our machine-side program there."""
    sandbox: Literal["auto", "required"] = "auto"
    """Whether jobs may run without a sandbox if the machine cannot provide one."""
    environment: Literal["auto", "overlay", "copy", "slot"] = "auto"
    """How environments are made from their base. `auto` uses the best way that works there."""
    gpus_per_slot: int | None = None
    """The number of GPUs of each slot. None divides all GPUs between the slots. 0 lets every job see all GPUs."""
    min_free_gb: float = 0.0
    """The machine gets no new jobs if its disk has less free space than this, in GB of 10^9 bytes."""
    private: tuple[str, ...] = ()
    """Folders and files that no job in a sandbox sees."""
    writable: tuple[str, ...] = ()
    """Folders outside the workspace that every job in a sandbox may write to."""

    def is_for(self, *, private: bool) -> bool:
        """Whether jobs of private repositories, or of public ones, may run there."""
        return _name_kind(private=private) in self.serves


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or a part of one that programs use like a GPU."""

    vendor: str
    """A key of `VENDORS` in `runner.model.inventory`."""
    id: str
    """The name that its vendor's runtime uses: a UUID, or a number if it has no other name."""
    files: tuple[str, ...]
    """Its device files, below /dev. Empty if they are unknown."""
    name: str
    """Its model."""
    memory_mib: int | None
    """None if it has no memory of its own."""
    driver: str


def restore_gpus(stored: Iterable[Mapping[str, Any]] | None) -> tuple[Gpu, ...]:
    """GPUs from their stored fields."""
    return tuple(Gpu(**{**gpu, "files": tuple(gpu["files"])}) for gpu in stored or ())


@dataclass(frozen=True, slots=True)
class Lease:
    """A job's hold on one slot of a machine."""

    machine: str
    slot: int
    job_id: str
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that the job may use. Empty means all."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A lease, and the repository and person that it counts for."""

    lease: Lease
    repository: str
    requested_by: str
    begins: bool = False
    """Whether the job is not prepared yet, so that it may still fail because of the machine."""


@dataclass(frozen=True, slots=True)
class WarmBase:
    """An existing base of environments. A job that uses it is ready in seconds."""

    machine: str
    slot: int | None
    """The only slot that can use it. None means all slots."""
    recipe: str
    """Identifies the recipe that it was built with."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a machine gets no new jobs, and when it is tried again."""

    reason: str
    permanent: bool
    """Whether an operator has to act."""
    since: datetime
    seen_at: datetime
    """The last time it was observed."""
    retry_at: datetime

    def is_due(self, now: datetime) -> bool:
        """Whether to try again now. Also true if the clock went back to before the outage."""
        return not self.seen_at <= now < self.retry_at


def find_out(before: Outage | None, reason: str, *, permanent: bool, now: datetime, least: timedelta) -> Outage:
    """The outage of a machine that was just observed, again or for the first time.

    The wait until the next try is as long as the outage so far, from `least` to `MAX_REST`. So the end of a short
    outage is noticed quickly, and a dead host is rarely tried.
    """
    since = min(before.since, now) if before else now
    rest_s = BackOff(least.total_seconds(), MAX_REST.total_seconds()).since((now - since).total_seconds())
    return Outage(reason, permanent, since, now, now + timedelta(seconds=rest_s))


def break_circuit(faults: int, code: str, now: datetime) -> Outage | None:
    """The outage of a machine after this many failed preparations in a row, the last one with this code of `FAULTS`.

    None after fewer than `FAULTS_IN_A_ROW`. A machine that fails in this way still answers normally, so only another
    job can show whether it works again.
    """
    if faults < FAULTS_IN_A_ROW:
        return None
    rest = timedelta(seconds=FAULTY_RESTS.after(faults - FAULTS_IN_A_ROW + 1))
    reason = f"{faults} jobs in a row could not be prepared there, the last because {FAULTS[code]}"
    return Outage(reason, False, now, now, now + rest)


@dataclass(frozen=True, slots=True)
class MachineState:
    """The stored state of a machine, which all replicas and the command line share."""

    drained_at: datetime | None = None
    """When an operator drained it. None if it is not drained."""
    drained_by: str | None = None
    outage: Outage | None = None
    faults: int = 0
    """How many preparations failed because of the machine since the last success."""

    @property
    def is_on_trial(self) -> bool:
        """Whether a single job has to succeed before the machine gets more."""
        return self.faults >= FAULTS_IN_A_ROW

    @property
    def takes_jobs(self) -> bool:
        """Whether it gets new jobs."""
        return self.drained_at is None and self.outage is None

    @property
    def trouble(self) -> str | None:
        """Why it gets no new jobs, as a clause for people. None if it gets new jobs."""
        if self.outage:
            return self.outage.reason
        return "its operator has drained it" if self.drained_at else None


USABLE = MachineState()
"""The state of a machine without a row."""


def eligible(machines: Iterable[Machine], requires: Iterable[str], *, private: bool | None) -> list[Machine]:
    """The machines that have every label in `requires` and serve repositories of this kind.

    None for `private` means that no part of a repository is sent to the machine, so both kinds are suitable.
    """
    wanted = set(requires)
    return [
        machine
        for machine in machines
        if wanted <= machine.labels and (private is None or machine.is_for(private=private))
    ]


def needs(requires: Iterable[str], *, private: bool) -> tuple[str, ...]:
    """The conditions of `eligible`, for people."""
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
    """Choose a free slot on one of these `eligible` machines. None if there is none.

    Machines with a `warm` base come first, because building a base costs more time than any load. After that, the
    machine with the smallest load comes first. Machines in `avoid` (unreachable ones, for example) are skipped.
    `last_resort` is skipped if there is any other machine, even a full one. The lease has no job yet.
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
    # Of equal machines, `min` chooses the first in the configuration.
    machine = min(candidates, key=lambda machine: (not warm_slots(machine), load(machine)))
    return Lease(machine.name, min(warm_slots(machine) or free(machine)), job_id="")
