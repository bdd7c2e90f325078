"""The forms of operators: pause and resume new jobs, drain and resume machines, rename jobs, delete logs, lift
confidentiality.

Each form does the same as the command of that name at the terminal. People who are not operators get the answer for a
page that does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.operations import jobs, machines
from bot.web.auth.sessions import Visitor
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.forms import ActionRefused, Fields, handle_form
from handlers.commands.rights import Person, Surface
from handlers.jobs import pauses
from runner.model.job import Job
from runner.rows.pauses import EVERYWHERE

log = structlog.get_logger()

Act = Callable[[web.Request, AsyncConnection, Person, Fields], Awaitable[str]]
"""Carries out a form in a transaction. Returns the path of the next page."""


class OperatorActions:
    """The handlers of the forms."""

    def __init__(self, deps: DashboardDeps) -> None:
        self._deps = deps

    def routes(self) -> list[web.RouteDef]:
        """The routes of the forms."""
        acts: dict[str, Act] = {
            "/pause": self._pause,
            "/resume": self._resume,
            "/machines/{name}/drain": self._drain,
            "/machines/{name}/resume": self._resume_machine,
            "/jobs/{id}/rename": self._rename,
            "/jobs/{id}/clean": self._clean,
            "/jobs/{id}/lift": self._lift,
        }
        return [web.post(path, self._handle(path, act)) for path, act in acts.items()]

    def _handle(self, path: str, act: Act) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def carry_out(request: web.Request, visitor: Visitor, fields: Fields) -> str:
            person = Person(visitor.login or "", Surface.PAGE, is_operator=visitor.is_operator)
            async with self._deps.context.db.write() as connection:
                try:
                    then = await act(request, connection, person, fields)
                except jobs.NotDone as refused:
                    clause = str(refused)
                    raise ActionRefused(f"{clause[:1].upper()}{clause[1:]}.", 409) from None
            self._deps.context.notify()
            log.info("dashboard.operated", by=visitor.login, action=path)
            return then

        handle = handle_form(self._deps, carry_out)

        async def answer(request: web.Request) -> web.Response:
            self._deps.require_operator(self._deps.sessions.read(request))
            return await handle(request)

        return answer

    async def _pause(self, _: web.Request, connection: AsyncConnection, person: Person, fields: Fields) -> str:
        await pauses.pause(connection, person, self._find_repository(fields), self._deps.context.now())
        return "/"

    async def _resume(self, _: web.Request, connection: AsyncConnection, person: Person, fields: Fields) -> str:
        # A repository that was removed from the configuration may still be paused.
        await pauses.resume(connection, person, fields.get("repository", EVERYWHERE))
        return "/"

    async def _drain(self, request: web.Request, connection: AsyncConnection, person: Person, _: Fields) -> str:
        await machines.drain(connection, person, self._find_machine(request), self._deps.context.now())
        return "/"

    async def _resume_machine(
        self, request: web.Request, connection: AsyncConnection, person: Person, _: Fields
    ) -> str:
        await machines.resume(connection, person, self._find_machine(request))
        return "/"

    async def _rename(self, request: web.Request, connection: AsyncConnection, person: Person, fields: Fields) -> str:
        job = await self._find_job(request)
        await jobs.rename(connection, person, job, fields.get("name", "").strip(), self._deps.context.now())
        return f"/jobs/{job.id}"

    async def _clean(self, request: web.Request, connection: AsyncConnection, person: Person, _: Fields) -> str:
        job = await self._find_job(request)
        await jobs.clean(connection, person, job, self._deps.context.now())
        return f"/jobs/{job.id}"

    async def _lift(self, request: web.Request, connection: AsyncConnection, person: Person, _: Fields) -> str:
        job = await self._find_job(request)
        await jobs.lift(connection, person, job, self._deps.context.now())
        return f"/jobs/{job.id}"

    def _find_repository(self, fields: Fields) -> str:
        name = fields.get("repository", EVERYWHERE)
        rules = self._deps.context.rules_for(name)
        if name != EVERYWHERE and rules is None:
            raise ActionRefused("The configuration has no such repository.", 404)
        return rules.name if rules else EVERYWHERE

    def _find_machine(self, request: web.Request) -> str:
        name = request.match_info["name"]
        if name not in self._deps.context.machines:
            raise ActionRefused("The configuration has no such machine.", 404)
        return name

    async def _find_job(self, request: web.Request) -> Job:
        return await self._deps.find_job(request, self._deps.sessions.read(request))
