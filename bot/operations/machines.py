"""`ptq-bot machines list`, `check`, `drain` and `resume`, beside a running service.

Only `check` connects to machines. The other commands use the database, and the service sees changes within seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.settings import Settings
from bot.operations.context import find_operator, read_database, write_database
from bot.operations.reports import render_json
from handlers.commands.rights import Operation, Person
from handlers.text.sanitize import one_line, redact
from runner.characters import show_for_terminal
from runner.model.inventory import Sighting, describe_disk, describe_gpus, describe_shares
from runner.model.jobd_answers import JobdError
from runner.model.machines import USABLE, Lease, Machine, MachineState
from runner.rows import job_rows, machine_states
from runner.rows.machine_states import fetch_machine_states, fetch_sightings
from runner.transport.host_errors import HostError
from runner.transport.hosts import open_host
from runner.transport.jobd_client import Capabilities, JobdClient


class UnknownMachine(Exception):  # noqa: N818
    """The configuration has no such machine; the message says which names are possible."""


async def list_machines(settings: Settings, *, as_json: bool = False) -> str:
    """State and inventory of every configured machine, as text or as JSON. Raises `DatabaseError`."""
    async with read_database(settings) as connection:
        states = await fetch_machine_states(connection)
        leases = await job_rows.fetch_leases(connection)
        sightings = await fetch_sightings(connection)
    if as_json:
        described = describe_machines(settings.machine_list(), states, leases, sightings)
        return render_json(described, settings.secret_values())
    text = render_machines(settings.machine_list(), states, leases, sightings)
    return show_for_terminal(redact(text, settings.secret_values()))


@dataclass(frozen=True, slots=True)
class CheckedMachine:
    """What a machine answers when it is asked how it isolates jobs."""

    name: str
    capabilities: Capabilities | None = None
    error: str | None = None
    """Why it could not be asked."""


async def check_machines(settings: Settings, *, as_json: bool = False) -> str:
    """Ask every machine whether it can isolate jobs, and what jobs can still reach. Returns text or JSON."""
    found = [await _check(machine) for machine in settings.machine_list()]
    if as_json:
        return render_json(found, settings.secret_values())
    lines = [line for one in found for line in _render_checked(one)]
    return show_for_terminal(redact("".join(f"{line}\n" for line in lines), settings.secret_values()))


async def _check(machine: Machine) -> CheckedMachine:
    host = open_host(machine)
    try:
        return CheckedMachine(machine.name, await JobdClient(machine, host).capabilities())
    except (HostError, JobdError) as error:
        return CheckedMachine(machine.name, error=one_line(str(error), 300))
    finally:
        await host.close()


def _render_checked(checked: CheckedMachine) -> list[str]:
    found = checked.capabilities
    if found is None:
        return [f"{checked.name}  cannot be asked: {checked.error}"]
    first = f"{checked.name}  {one_line(found.words, 300)}; environments by {one_line(found.way, 20)}"
    return [first, *(f"  open: {one_line(clause, 300)}" for clause in found.open)]


async def drain_machine(settings: Settings, name: str) -> str:
    """Stop scheduling jobs on a machine; running jobs finish. Raises `UnknownMachine` and `DatabaseError`."""
    find_machine(settings, name)
    async with write_database(settings) as connection:
        await drain(connection, find_operator(), name, datetime.now(UTC))
    return f"{name} is drained: it gets no new jobs, and those that are there go on to their end.\n"


async def resume_machine(settings: Settings, name: str) -> str:
    """Put a machine back in service, and clear its failures. Raises `UnknownMachine` and `DatabaseError`."""
    find_machine(settings, name)
    async with write_database(settings) as connection:
        await resume(connection, find_operator(), name)
    return f"{name} gets jobs again, if it answers.\n"


async def drain(connection: AsyncConnection, person: Person, name: str, now: datetime) -> None:
    """Stop scheduling jobs on a machine. Raises `NotPermitted`."""
    person.require(Operation.DRAIN_MACHINE)
    await machine_states.drain(connection, name, person.name, now)


async def resume(connection: AsyncConnection, person: Person, name: str) -> None:
    """Put a machine back in service, and clear its failures. Raises `NotPermitted`."""
    person.require(Operation.RESUME_MACHINE)
    await machine_states.resume(connection, name)


def find_machine(settings: Settings, name: str) -> Machine:
    """The configured machine of this name. Raises `UnknownMachine`."""
    machines = {machine.name: machine for machine in settings.machine_list()}
    if name not in machines:
        raise UnknownMachine(f"there is no machine {show_for_terminal(name)!r}; configured: {', '.join(machines)}")
    return machines[name]


def render_machines(
    machines: Sequence[Machine],
    states: Mapping[str, MachineState],
    leases: Sequence[Lease],
    sightings: Mapping[str, Sighting],
) -> str:
    """Name, used slots and state of each machine in columns, followed by its jobs and its last inventory. Pure."""
    held = {machine.name: [lease.job_id for lease in leases if lease.machine == machine.name] for machine in machines}
    rows = [
        (machine, f"{len(held[machine.name])}/{machine.slots} slots", _describe(states.get(machine.name, USABLE)))
        for machine in machines
    ]
    name_width = max(len(machine.name) for machine, _, _ in rows)
    slots_width = max(len(slots) for _, slots, _ in rows)
    lines = []
    for machine, slots, state in rows:
        lines.append(f"{machine.name:<{name_width}}  {slots:<{slots_width}}  {state}\n")
        lines += [f"{'':<{name_width}}  jobs: {', '.join(held[machine.name])}\n"] * bool(held[machine.name])
        if sighting := sightings.get(machine.name):
            lines += [f"{'':<{name_width}}  {line}\n" for line in _describe_sighting(machine, sighting)]
    return "".join(lines)


def describe_machines(
    machines: Sequence[Machine],
    states: Mapping[str, MachineState],
    leases: Sequence[Lease],
    sightings: Mapping[str, Sighting],
) -> list[dict[str, Any]]:
    """The same as `render_machines`, as plain values. Pure."""
    return [
        {
            "name": machine.name,
            "slots": machine.slots,
            "labels": sorted(machine.labels),
            "leases": [{"slot": lease.slot, "job": lease.job_id} for lease in leases if lease.machine == machine.name],
            "state": states.get(machine.name, USABLE),
            "sighting": sightings.get(machine.name),
        }
        for machine in machines
    ]


def _describe_sighting(machine: Machine, sighting: Sighting) -> Iterator[str]:
    """The inventory of a machine: one line each for GPUs, disk and unknown folders."""
    inventory = sighting.inventory
    if inventory.gpus:
        shares = describe_shares(inventory.gpus, machine.slots, machine.gpus_per_slot)
        yield one_line(f"{describe_gpus(inventory.gpus)}; {shares}", 300)
    if inventory.gpu_trouble:
        yield f"GPUs unknown: {one_line(inventory.gpu_trouble, 300)}"
    yield f"{describe_disk(inventory)} at {_say(sighting.at)}"
    if sighting.stranger_count:
        more = ", ..." * (sighting.stranger_count > len(sighting.strangers))
        named = f"{', '.join(sighting.strangers)}{more}"
        yield f"folders below jobs/ that this service does not know: {sighting.stranger_count} ({named})"


def _describe(state: MachineState) -> str:
    said = [f"drained by {state.drained_by} at {_say(state.drained_at)}"] if state.drained_at else []
    if outage := state.outage:
        said.append(f"out since {_say(outage.since)}: {one_line(outage.reason, 300)}")
    if state.faults and not state.outage:
        said.append(f"{state.faults} jobs in a row could not be prepared there")
    return "; ".join(said) or "in use"


def _say(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
