"""Refreshes the bases of environments: each is brought to the newest commit of its repository's branch regularly.

Nothing is stored for a refresh. Its id is derived from its machine, its repository and its time, and a machine starts
each id only once. So another replica, or this one after a restart, follows the same refresh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from runner.model.environment import Profile
from runner.model.job import Job
from runner.model.jobd_answers import JobdError, StageState, read_text
from runner.model.machines import USABLE, Machine, eligible
from runner.rows import job_rows
from runner.rows.machine_states import fetch_machine_states
from runner.rows.notifications import draft_broken_base, insert_notification
from runner.steps.gateway import Fetcher
from runner.steps.runtime import Runtime
from runner.transport.host_errors import HostError

log = structlog.get_logger()

EPOCH = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


def find_period(profile: Profile, now: datetime) -> datetime:
    """The time since which a base counts as fresh. With the default of one day, this is midnight, UTC."""
    length = timedelta(hours=profile.refresh_hours)
    return EPOCH + (now - EPOCH) // length * length


def name_refresh(machine: Machine, profile: Profile, now: datetime) -> str:
    """The id of the refresh that is due."""
    text = f"{machine.name} {machine.workspace} {profile.repository} {find_period(profile, now):%F %R}"
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def name_refreshes(runtime: Runtime, machine: Machine) -> set[str]:
    """The ids of all refreshes that may be running on a machine."""
    return {name_refresh(machine, profile, runtime.now()) for profile in runtime.profiles.values()}


class Refresher:
    """Refreshes the base of each repository on each machine. One replica at a time does this."""

    def __init__(self, runtime: Runtime, machines: Mapping[str, Machine]) -> None:
        self._runtime = runtime
        self._machines = machines
        self._ended: set[str] = set()
        self._with_gateway: set[str] = set()
        """The refreshes that have access to the gateway."""

    async def step(self) -> None:
        """Start refreshes that are due, and clean up those that have ended."""
        async with self._runtime.db.read() as connection:
            states = await fetch_machine_states(connection)
        due = set()
        for machine, profile, newest in await self._list_pairs():
            job_id = name_refresh(machine, profile, self._runtime.now())
            due.add(job_id)
            if job_id in self._ended or not states.get(machine.name, USABLE).takes_jobs:
                continue
            with structlog.contextvars.bound_contextvars(machine=machine.name, repository=profile.repository):
                try:
                    if await self._follow(machine, job_id, profile, newest):
                        self._ended.add(job_id)
                except HostError as error:
                    log.info("base.not_refreshed_now", reason=str(error))
                except JobdError as error:
                    if error.code != "ended":
                        await self._note_broken(machine, profile, error.message)
                    self._ended.add(job_id)
        self._ended &= due
        await self._close_routes(due)

    async def _close_routes(self, due: Collection[str]) -> None:
        """Close the gateway for refreshes that have ended or are no longer due."""
        for job_id in [job_id for job_id in self._with_gateway if job_id in self._ended or job_id not in due]:
            await self._runtime.gateway.close(job_id)
            self._with_gateway.remove(job_id)

    async def _list_pairs(self) -> list[tuple[Machine, Profile, Job]]:
        """Machines and repositories that may have an old base, each with the newest earlier job.

        A repository without an earlier job has no base.
        """
        found = []
        async with self._runtime.db.read() as connection:
            for profile in filter(lambda profile: profile.refresh_hours, self._runtime.profiles.values()):
                period = find_period(profile, self._runtime.now())
                newest = await job_rows.fetch_newest_job(connection, profile.repository, period)
                if newest:
                    machines = eligible(self._machines.values(), profile.requires, private=newest.private)
                    found += [(one, profile, newest) for one in machines if one.name in self._runtime.clients]
        return found

    async def _note_broken(self, machine: Machine, profile: Profile, reason: str | None) -> None:
        log.error("base.refresh_failed", reason=reason)
        notification = draft_broken_base(
            machine.name, profile.repository, reason or "it was killed", self._runtime.now()
        )
        async with self._runtime.db.write() as connection:
            await insert_notification(connection, notification)

    async def _follow(self, machine: Machine, job_id: str, profile: Profile, newest: Job) -> bool:
        """Start a refresh, or check its state. Returns whether it is over and cleaned up."""
        client = self._runtime.clients[machine.name]
        poll = await client.poll(job_id, "base", log_limit=0)
        if poll.state in (StageState.ABSENT, StageState.RUNNING):
            self._with_gateway.add(job_id)
            fetcher = replace(Fetcher.of(newest), id=job_id)
            route = await self._runtime.gateway.open_git_route(fetcher, client)
        if poll.state is StageState.ABSENT:
            # Not the job's branch: it may be the target of a rebase, and other jobs must not begin from there.
            recipe = profile.recipe(newest.clone_url, profile.trunk)
            await client.make_base(job_id, replace(recipe, git=route.env, relay=route.by_relay), only_existing=True)
        if poll.state in (StageState.ABSENT, StageState.RUNNING):
            return False
        if poll.state is not StageState.DONE:
            await self._note_broken(machine, profile, poll.message)
        elif isinstance(base := poll.result.get("base"), dict):
            log.info("base.refreshed", commit=read_text(base.get("commit"), 64))
        await client.clean(job_id)
        return True
