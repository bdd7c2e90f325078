"""What people do by forms: launch, follow up, rebase, cancel. Each is what a command in the thread does, by its rules.

What is refused is said on the page, and nowhere else; what is begun its thread hears of as always.
"""

from __future__ import annotations

import structlog
from aiohttp import web

from bot.web.auth.sessions import Visit
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.forms import Denied, Fields, admit, answering, make_occasion, name_occasion
from bot.web.dashboard.listing import MAX_TYPED
from handlers.commands.options import Options
from handlers.commands.rights import Operation, Person
from handlers.events import Repository
from handlers.jobs.cancel import cancel
from handlers.jobs.start import RETRY, StartRequest, start_unheard
from handlers.jobs.tasks import TaskRequest, start_off_thread
from handlers.rules import REBASE

log = structlog.get_logger()

MAX_ADVICE = 20_000
"""Characters of advice."""


class Actions:
    """The handlers of the forms, and of the page to launch from."""

    def __init__(self, desk: DashboardDeps) -> None:
        self._desk = desk

    def routes(self) -> list[web.RouteDef]:
        """Every address."""
        return [
            web.get("/launch", self.show_launch),
            web.post("/launch", answering(self._desk, self.launch)),
            web.post("/jobs/{id}/follow-up", answering(self._desk, self.follow_up)),
            web.post("/jobs/{id}/rebase", answering(self._desk, self.rebase)),
            web.post("/jobs/{id}/cancel", answering(self._desk, self.cancel)),
        ]

    async def show_launch(self, request: web.Request) -> web.Response:
        """The form that starts a job, on an issue or by one's own words."""
        visit, context = self._desk.visits.read(request), self._desk.context
        if visit.login is None:
            raise self._desk.refuse(visit)
        may = await self._desk.sight.find_scope(visit)
        known = context.repositories.values()
        names = sorted(rules.name for rules in known if may.everything or rules.name.lower() in may.start)
        return self._desk.drawing.render(
            "launch.html",
            visit,
            repositories=names,
            presets=[*context.presets, RETRY],
            agents=list(context.agents),
            machines=list(context.machines),
            given={name: request.query.get(name, "")[:MAX_TYPED] for name in ("repository", "issue", "preset")},
            occasion=make_occasion(),
        )

    async def launch(self, request: web.Request, visit: Visit, fields: Fields) -> str:
        """Start a job on an issue; or, where none is named, by the words alone."""
        person, repository = await admit(self._desk, visit, fields.get("repository", ""), Operation.START)
        preset, number = fields.get("preset", ""), fields.get("issue", "").strip().removeprefix("#")
        if number:
            return await self._start(visit, fields, person, repository, _read_number(number), preset)
        task = TaskRequest(
            words=_read_advice(fields),
            preset=preset,
            ref=fields.get("ref", "").strip() or None,
            options=_read_options(fields),
            occasion=name_occasion(visit, fields),
        )
        job = await start_off_thread(self._desk.context, person, repository, task)
        self._desk.context.ring()
        log.info("dashboard.launched", **job.log_context(), by=visit.login)
        return f"/jobs/{job.id}"

    async def follow_up(self, request: web.Request, visit: Visit, fields: Fields) -> str:
        """`/ptq retry`, with advice, on the issue of a job."""
        return await self._go_on(request, visit, fields, RETRY)

    async def rebase(self, request: web.Request, visit: Visit, fields: Fields) -> str:
        """`/ptq rebase`, perhaps onto another branch or commit, on the issue of a job."""
        return await self._go_on(request, visit, fields, REBASE)

    async def cancel(self, request: web.Request, visit: Visit, fields: Fields) -> str:
        """`/ptq cancel`, of this one job."""
        job = await self._desk.find_job(request, visit)
        person, _ = await admit(self._desk, visit, job.repository, Operation.CANCEL)
        context = self._desk.context
        async with context.db.write() as connection:
            is_ending = await cancel(connection, person, job, context.now())
        if not is_ending:
            raise Denied("The job has ended already.", 409)
        context.ring()
        log.info("dashboard.cancelled", **job.log_context(), by=visit.login)
        return f"/jobs/{job.id}"

    async def _go_on(self, request: web.Request, visit: Visit, fields: Fields, preset: str) -> str:
        job = await self._desk.find_job(request, visit)
        person, repository = await admit(self._desk, visit, job.repository, Operation.START)
        if job.thread is None:
            raise Denied("This job belongs to no issue, so nothing carries on from it.", 409)
        return await self._start(visit, fields, person, repository, job.thread, preset)

    async def _start(
        self,
        visit: Visit,
        fields: Fields,
        person: Person,
        repository: Repository,
        number: int,
        preset: str,
    ) -> str:
        context = self._desk.context
        issue = await context.github.fetch_issue(person.rules.name, number)
        if issue.pull_request:
            raise Denied(f"#{number} is a pull request: name the issue that it is about.", 409)
        request = StartRequest(
            person=person,
            repository=repository,
            issue=issue,
            preset=preset,
            triggered_at=context.now(),
            by_our_clock=True,
            trigger=name_occasion(visit, fields),
            options=_read_options(fields),
            onto=fields.get("onto", "").strip() or None,
            steering=_read_advice(fields),
        )
        job = await start_unheard(context, request, unopposed=not request.options.anyway)
        log.info("dashboard.launched", **job.log_context(), by=visit.login)
        return f"/jobs/{job.id}"


def _read_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Denied("An issue is named by its number.", 409)
    return int(text)


def _read_advice(fields: Fields) -> str:
    advice = fields.get("advice", "").replace("\r\n", "\n").strip()
    if len(advice) > MAX_ADVICE:
        raise Denied(f"Advice has {MAX_ADVICE:,} characters at most.", 409)
    return advice


def _read_options(fields: Fields) -> Options:
    given = {name: fields.get(name, "").strip() or None for name in ("agent", "model", "machine")}
    return Options(**given, anyway="anyway" in fields)
