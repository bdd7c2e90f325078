"""The pages with lists: overview, jobs, deliveries, spend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from aiohttp import web

from bot.operations.deliveries import NotReplayed, fetch_deliveries, replay
from bot.web.auth.sessions import FormRefused, Visitor
from bot.web.auth.visibility import VisibleJobs
from bot.web.dashboard import listing
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.listing import PageFilter
from bot.web.dashboard.machines import describe_machines
from bot.web.dashboard.spend import DAYS, fetch_runs, sum_all
from handlers.commands.rights import Person, Surface
from runner.characters import make_storable
from runner.model.job import Job, JobState
from runner.rows import job_rows
from runner.rows.machine_states import fetch_machine_states, fetch_sightings
from runner.rows.pauses import EVERYWHERE, Pause, fetch_pauses

RECENT = 8
"""The number of jobs on the overview. They are the newest ones."""


class ListPages:
    """The handlers of the pages with lists."""

    def __init__(self, deps: DashboardDeps, slots: Mapping[str, int]) -> None:
        self._deps = deps
        self._slots = slots

    def routes(self) -> list[web.RouteDef]:
        """The routes of these pages."""
        return [
            web.get("/", self.show_overview),
            web.get("/jobs", self.show_jobs),
            web.get("/deliveries", self.show_deliveries),
            web.post("/deliveries/{id}/replay", self.replay),
            web.get("/spend", self.show_spend),
        ]

    async def show_overview(self, request: web.Request) -> web.Response:
        """The queue, the newest jobs, and the machines."""
        visitor = self._open(request)
        scope = await self._deps.visibility.find_scope(visitor)
        async with self._deps.context.db.read() as connection:
            active = await job_rows.fetch_active_jobs(connection)
            leases = await job_rows.fetch_leases(connection)
            states = await fetch_machine_states(connection)
            sightings = await fetch_sightings(connection)
            pauses = await fetch_pauses(connection)
            recent = await listing.fetch_page(connection, scope, PageFilter(), self._deps.context.now(), RECENT)
        shown = tuple(job for job in active if shows(scope, job))
        sees_machines = await self._deps.visibility.sees_machines(visitor)
        machines = describe_machines(self._slots, states, leases, sightings, self._deps.renderer)
        machines = machines if sees_machines else []
        on = {machine["name"]: [job for job in shown if job.machine == machine["name"]] for machine in machines}
        return self._deps.renderer.render_page(
            "overview.html",
            visitor,
            counts=Counter(str(job.state) for job in active),
            waiting=[job for job in shown if job.state is JobState.QUEUED],
            machines=machines,
            jobs_on=on,
            pauses=[pause for pause in pauses if _shows_pause(scope, pause)],
            recent=recent.jobs,
            repositories=self._name(scope),
            refresh_s=self._deps.visibility.find_refresh_s(visitor),
        )

    async def show_jobs(self, request: web.Request) -> web.Response:
        """A page of the filtered jobs, and the machines that are out of service."""
        visitor, wanted = self._open(request), listing.read_filter(request.query)
        context = self._deps.context
        scope = await self._deps.visibility.find_scope(visitor)
        async with context.db.read() as connection:
            states, leases = await fetch_machine_states(connection), await job_rows.fetch_leases(connection)
            found = await listing.fetch_page(connection, scope, wanted, context.now())
        sees_machines = await self._deps.visibility.sees_machines(visitor)
        choices = {
            "state": listing.list_states(),
            "preset": list(context.presets),
            "agent": list(context.agents),
            "machine": list(self._slots) if sees_machines else [],
        }
        values: dict[str, Any] = {"wanted": wanted, "choices": choices, "repositories": self._name(scope)}
        values["refresh_s"] = self._deps.visibility.find_refresh_s(visitor)
        machines = describe_machines(self._slots, states, leases, {}, self._deps.renderer)
        machines = machines if sees_machines else []
        return self._deps.renderer.render_page("jobs.html", visitor, found=found, machines=machines, **values)

    async def show_deliveries(self, request: web.Request) -> web.Response:
        """The newest deliveries without their bodies, for operators."""
        visitor, failed = self._deps.sessions.read(request), "failed" in request.query
        self._deps.require_operator(visitor)
        async with self._deps.context.db.read() as connection:
            rows = await fetch_deliveries(connection, failed=failed)
        refresh_s = self._deps.visibility.find_refresh_s(visitor)
        return self._deps.renderer.render_page(
            "deliveries.html", visitor, rows=rows, failed=failed, refresh_s=refresh_s
        )

    async def replay(self, request: web.Request) -> web.Response:
        """Retry a delivery, for operators."""
        reader = self._deps.sessions.read(request)
        self._deps.require_operator(reader)
        try:
            _, fields = await self._deps.sessions.read_form(request)
            person = Person(reader.login or "", Surface.PAGE, is_operator=reader.is_operator)
            delivery_id = make_storable(request.match_info["id"])
            async with self._deps.context.db.write() as connection:
                await replay(connection, person, delivery_id, force="force" in fields)
        except FormRefused as forged:
            return self._deps.renderer.render_message(reader, "Not replayed", str(forged), 403)
        except NotReplayed as refused:
            return self._deps.renderer.render_message(reader, "Not replayed", f"The {refused}.", 409)
        self._deps.context.notify()
        return self._deps.redirect("/deliveries")

    async def show_spend(self, request: web.Request) -> web.Response:
        """The recent costs, for operators."""
        visitor = self._deps.sessions.read(request)
        self._deps.require_operator(visitor)
        async with self._deps.context.db.read() as connection:
            runs = await fetch_runs(connection, self._deps.context.now() - timedelta(days=DAYS))
        return self._deps.renderer.render_page("spend.html", visitor, tables=sum_all(runs), days=DAYS)

    def _open(self, request: web.Request) -> Visitor:
        visitor = self._deps.sessions.read(request)
        if not self._deps.visibility.is_open(visitor):
            raise self._deps.refuse(visitor)
        return visitor

    def _name(self, scope: VisibleJobs) -> list[str]:
        """The configured repositories that the visitor may see."""
        known = self._deps.context.repositories.values()
        return sorted(rules.name for rules in known if scope.everything or rules.name.lower() in scope.read)


def shows(scope: VisibleJobs, job: Job) -> bool:
    """Whether lists show a job, with the same rule as `listing.choose`. Pure."""
    name = job.repository.lower()
    if scope.everything:
        return True
    if job.private and name not in scope.private:
        return False
    return name in scope.start or (job.thread is not None and (scope.public or name in scope.read))


def _shows_pause(scope: VisibleJobs, pause: Pause) -> bool:
    return scope.everything or pause.repository == EVERYWHERE or pause.repository in scope.read
