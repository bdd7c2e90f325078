"""The part of the configuration that can change while the service runs: machines and repositories.

Every user has a `LiveMapping`, which shows the newest configuration: a new file takes effect with one assignment.
Machines and repositories are identified by name. Removed ones get nothing new, but stay available to their jobs.
Everything else needs a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from bot.config.contradictions import name_key
from bot.config.settings import ConfigError, Settings
from handlers.rules import RepositoryRules
from runner.db.database import Database
from runner.model.environment import Profile
from runner.model.jobd_answers import JobdError
from runner.model.machines import Machine
from runner.rows import job_rows
from runner.transport.host_errors import HostError
from runner.transport.hosts import Host, HostOpener, open_host
from runner.transport.jobd_client import JobdClient

log = structlog.get_logger()

RELOADED = ("machines", "repos", "profiles")
"""The tables of the file that take effect without a restart."""

Value = TypeVar("Value")


class LiveMapping(Mapping[str, Value]):
    """A mapping that reads the current mapping each time."""

    def __init__(self, look: Callable[[], Mapping[str, Value]]) -> None:
        self._look = look

    def __getitem__(self, key: str) -> Value:
        return self._look()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._look())

    def __len__(self) -> int:
        return len(self._look())


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands now."""

    settings: Settings
    repositories: Mapping[str, RepositoryRules]
    machines: Mapping[str, Machine]
    profiles: Mapping[str, Profile]
    """Including removed repositories, whose jobs continue."""
    clients: Mapping[str, JobdClient]
    """Including removed machines, whose jobs are followed to their end."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences in a new file, by name."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]
    """Changed tables that do not take effect without a restart."""


class Roster:
    """Holds the current configuration, and replaces it."""

    def __init__(self, settings: Settings, silence_s: float, opens: HostOpener = open_host) -> None:
        """A machine that is silent for `silence_s` counts as unreachable. `opens` opens connections to machines."""
        self._silence_s = silence_s
        self._open_host = opens
        self._hosts: dict[str, tuple[Machine, Host]] = {}
        self._clients: dict[str, JobdClient] = {}
        self._replaced: list[Host] = []
        self._standing = self._draw_up(settings, {})
        self.repositories = LiveMapping(lambda: self._standing.repositories)
        self.machines = LiveMapping(lambda: self._standing.machines)
        self.profiles = LiveMapping(lambda: self._standing.profiles)
        self.clients = LiveMapping(lambda: self._standing.clients)
        self.slots = LiveMapping(lambda: {name: machine.slots for name, machine in self._standing.machines.items()})

    def find_names(self) -> frozenset[str]:
        """All repositories that the configuration names now, in lower case."""
        return self._standing.settings.repository_names()

    def reload(self, read: Callable[[], Settings]) -> None:
        """Use the configuration from `read`. An invalid file changes nothing, and all its problems are logged."""
        old = self._standing.settings
        try:
            new = read()
            problems = (*find_unknown_agents(old, new), *find_unknown_skills(old, new), *find_respelled(old, new))
        except ConfigError as error:
            problems = error.problems
        if problems:
            log.error("config.not_reloaded", problems=problems)
            return
        changes = compare(old, new)
        given = {name: getattr(new, name) for name in RELOADED}
        self._standing = self._draw_up(old.model_copy(update=given), self._standing.profiles)
        log.info("config.reloaded", added=changes.added, removed=changes.removed, changed=changes.changed)
        if changes.needs_restart:
            log.warning("config.needs_a_restart", tables=changes.needs_restart)

    async def let_go(self, db: Database) -> None:
        """Close unused connections. A late use opens one again."""
        while self._replaced:
            await self._replaced.pop().close()
        gone = [name for name in self._hosts if name not in self._standing.machines]
        if not gone:
            return
        async with db.read() as connection:
            leased = {lease.machine for lease in await job_rows.fetch_leases(connection)}
        for name in gone:
            if name not in leased:
                await self._hosts[name][1].close()

    async def warn_of_open_machines(self) -> None:
        """Log which machines are this host and cannot protect the service's files from jobs."""
        for machine in self.machines.values():
            if machine.kind == "local":
                # An unreachable machine is checked again before it gets a job.
                with suppress(HostError, JobdError):
                    found = await self.clients[machine.name].capabilities()
                    if not found.sealed:
                        log.warning("machine.jobs_can_read_our_files", machine=machine.name, reason=found.words)

    async def close(self) -> None:
        """Close every connection."""
        for host in [*self._replaced, *(host for _, host in self._hosts.values())]:
            await host.close()

    def _draw_up(self, settings: Settings, known: Mapping[str, Profile]) -> Standing:
        machines = {machine.name: machine for machine in settings.machine_list()}
        for machine in machines.values():
            self._reach(machine)
        return Standing(
            settings=settings,
            repositories={rules.name.lower(): rules for rules in settings.repository_rules()},
            machines=machines,
            profiles={**known, **{profile.repository: profile for profile in settings.profile_list()}},
            clients=dict(self._clients),
        )

    def _reach(self, machine: Machine) -> None:
        """Open a client for a machine, unless its connection settings are unchanged."""
        before = self._hosts.get(machine.name)
        if before and is_reached_alike(before[0], machine):
            return
        if before:
            self._replaced.append(before[1])
        host = self._open_host(machine, self._silence_s)
        self._hosts[machine.name] = (machine, host)
        self._clients[machine.name] = JobdClient(machine, host)


def is_reached_alike(one: Machine, other: Machine) -> bool:
    """Whether two entries have the same connection settings. Pure."""
    offered = ("slots", "labels", "gpus_per_slot", "min_free_gb")
    return replace(one, **{name: getattr(other, name) for name in offered}) == other


def compare(old: Settings, new: Settings) -> Changes:
    """Compare two files. Pure."""
    before, after = _name_parts(old), _name_parts(new)
    others = (name for name in Settings.model_fields if name not in RELOADED)
    return Changes(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(name for name in after if name in before and before[name] != after[name]),
        needs_restart=tuple(name for name in others if getattr(old, name) != getattr(new, name)),
    )


def find_unknown_agents(old: Settings, new: Settings) -> tuple[str, ...]:
    """The agents that repositories of a new file need, and that the running service does not have. Pure."""
    return tuple(
        f"{name_key(('repos', name))}: [agents.{agent}] is new, which needs a restart"
        for name, table in new.repos.items()
        for agent in dict.fromkeys((table.agent, *table.agents))
        if agent not in old.agents
    )


def find_unknown_skills(old: Settings, new: Settings) -> tuple[str, ...]:
    """The skills that repositories of a new file name, and that the running service does not have. Pure."""
    return tuple(
        f"{name_key(('repos', name))}: [skills.{skill}] is new, which needs a restart"
        for name, table in new.repos.items()
        for skill in table.skills
        if skill in new.skills and skill not in old.skills
    )


def find_respelled(old: Settings, new: Settings) -> tuple[str, ...]:
    """The repositories whose names a new file spells with other capitals. Pure.

    Jobs, cases and caps have the name as it was, so their state would be lost, and labels would start jobs again.
    """
    known = {name.lower(): name for name in old.repos}
    return tuple(
        f"{name_key(('repos', name))}: its jobs have the name {known[name.lower()]}: keep that"
        for name in new.repos
        if known.get(name.lower(), name) != name
    )


def _name_parts(settings: Settings) -> dict[str, Any]:
    machines = {f"machines.{table.name}": table for table in settings.machines}
    return {**machines, **{name_key(("repos", name)): table for name, table in settings.repos.items()}}
