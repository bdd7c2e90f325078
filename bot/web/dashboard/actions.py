"""The forms that start, steer and cancel jobs: launch, follow up, rebase, tell, cancel. Each does the same as a command
in a thread.

A refusal is shown only on the page. A started job is reported in its thread as usual.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial

import structlog
from aiohttp import web

from bot.operations.launch import IssueOrder, start_on_issue
from bot.web.auth.form_fields import MAX_FORM
from bot.web.auth.sessions import Visitor
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.forms import (
    ActionRefused,
    Fields,
    FormRefusal,
    admit,
    derive_request_key,
    handle_form,
    keep_request_key,
)
from bot.web.dashboard.listing import MAX_TYPED
from handlers.commands.options import Options, list_offers
from handlers.commands.rights import Operation
from handlers.jobs.cancel import cancel
from handlers.jobs.start import RETRY
from handlers.jobs.task_attempts import start_further
from handlers.jobs.tasks import TaskRequest, start_off_thread
from handlers.jobs.tell import NotTold, tell
from handlers.rules import REBASE
from handlers.words.form_errors import strip_marks
from runner.model.job import Job

log = structlog.get_logger()

JOB = "/jobs/{id}"
"""The page with the forms of a job."""

CHOSEN_FIELDS = ("agent", "model", "thinking", "max_turns", "max_cost", "machine")
"""The form's fields for options with a value. They have the names of the fields of `Options`."""

LAUNCH_FIELDS = ("repository", "issue", "preset", *CHOSEN_FIELDS, "ref", "name", "anyway", "fresh")
"""The fields of the form that starts a job, besides the instructions."""

LINKED_FIELDS = ("repository", "issue", "preset")
"""The fields that a link can fill in. A link cannot fill in instructions, because anybody can make a link, and
instructions count as words of the person who sends the form."""

STARTED = "started"
"""A word in the query of the next page. It makes the browser forget the text that was typed (`static/drafts.js`)."""

MAX_ADVICE = 20_000
"""The most characters of instructions."""


class Actions:
    """The handlers of the forms, and of the launch page."""

    def __init__(self, deps: DashboardDeps) -> None:
        self._deps = deps
        self._show_tell = partial(self._show_form, "tell.html", "Tell the agent")

    def routes(self) -> list[web.RouteDef]:
        """The routes of the forms and of the launch page."""
        follow_up, rebase = (partial(self.go_on, preset) for preset in (RETRY, REBASE))
        show_follow_up = partial(self._show_form, "follow_up.html", "Follow up")
        show_rebase = partial(self._show_form, "rebase.html", "Rebase")
        return [
            web.get("/launch", self.show_launch),
            web.post("/launch", handle_form(self._deps, self.launch, self._show_launch, "/launch")),
            web.post("/jobs/{id}/follow-up", handle_form(self._deps, follow_up, show_follow_up, JOB)),
            web.post("/jobs/{id}/rebase", handle_form(self._deps, rebase, show_rebase, JOB)),
            web.get("/jobs/{id}/tell", self.show_tell),
            web.post("/jobs/{id}/tell", handle_form(self._deps, self.tell, self._show_tell, JOB)),
            web.post("/jobs/{id}/cancel", handle_form(self._deps, self.cancel, page=JOB)),
        ]

    async def show_launch(self, request: web.Request) -> web.Response:
        """The form that starts a job, for an issue or a task."""
        visitor = self._deps.sessions.read(request)
        if visitor.login is None:
            raise self._deps.refuse(visitor)
        given = {name: request.query.get(name, "") for name in LINKED_FIELDS}
        return await self._show_launch(request, visitor, given)

    async def _show_launch(
        self, _: web.Request, visitor: Visitor, fields: Fields, refusal: FormRefusal | None = None
    ) -> web.Response:
        """The form, with the values from a link, or from a refused form."""
        context = self._deps.context
        may, chosen = await self._deps.visibility.find_scope(visitor), fields.get("repository", "")[:MAX_TYPED]
        known = context.repositories.values()
        names = sorted(rules.name for rules in known if may.everything or rules.name.lower() in may.start)
        offers = {name: self._offer(name) for name in names}
        # GitHub may not answer now, so a form that is shown again keeps its repository, even if the repository is not
        # configured. So the form does not reveal which repositories are configured.
        if refusal and chosen and chosen.lower() not in map(str.lower, names):
            names.append(chosen)
            offers[chosen] = {"agent": (), "machine": ()}
        limits = dict.fromkeys(LAUNCH_FIELDS, MAX_TYPED) | {"advice": MAX_FORM}
        return self._deps.renderer.render_page(
            "launch.html",
            visitor,
            refusal.status if refusal else 200,
            repositories=names,
            presets=[*context.presets, RETRY],
            offers=offers,
            given={name: fields.get(name, "")[:limit] for name, limit in limits.items()},
            refusal=refusal,
            request_key=keep_request_key(fields),
        )

    def _offer(self, name: str) -> Mapping[str, Sequence[str]]:
        """The agents and machines that jobs in a repository may use, whether it is private or not."""
        rules, context = self._deps.context.rules_for(name), self._deps.context
        if rules is None:
            return {"agent": (), "machine": ()}
        machines = {
            machine: None for private in (False, True) for machine in context.machines_for(rules, private=private)
        }
        return {"agent": [*list_offers(rules, context.agents)], "machine": [*machines]}

    async def launch(self, request: web.Request, visitor: Visitor, fields: Fields) -> str:
        """Start a job on an issue, or a task if no issue is given."""
        name = fields.get("repository", "")
        person, repository = await admit(self._deps, visitor, name, Operation.START, is_typed=True)
        context, preset, occasion = self._deps.context, fields.get("preset", ""), derive_request_key(visitor, fields)
        if number := fields.get("issue", "").strip().removeprefix("#"):
            order = _read_order(fields, preset)
            job = await start_on_issue(context, person, repository, _read_number(number), order, occasion)
        else:
            task = TaskRequest(
                words=_read_advice(fields),
                preset=preset,
                ref=fields.get("ref", "").strip() or None,
                options=_read_options(fields),
                name=fields.get("name", "").strip(),
                occasion=occasion,
            )
            job = await start_off_thread(context, person, repository, task)
        return self._show_started(visitor, job)

    async def show_tell(self, request: web.Request) -> web.Response:
        """The form for a message to the agent, on a page of its own. It is used if the job's own page reloads."""
        visitor = self._deps.sessions.read(request)
        if visitor.login is None:
            raise self._deps.refuse(visitor)
        return await self._show_tell(request, visitor, {}, None)

    async def _show_form(
        self, form: str, title: str, request: web.Request, visitor: Visitor, fields: Fields, refusal: FormRefusal | None
    ) -> web.Response:
        """One of the forms of a job's page, on a page of its own."""
        job = await self._deps.find_job(request, visitor)
        given = {name: fields.get(name, "") for name in ("advice", "onto", "anyway")}
        values = {"form": form, "title": title, "job": job, "given": given, "request_key": keep_request_key(fields)}
        return self._deps.renderer.render_page(
            "job_form.html", visitor, refusal.status if refusal else 200, refusal=refusal, **values
        )

    async def tell(self, request: web.Request, visitor: Visitor, fields: Fields) -> str:
        """Tell the job's agent something, like `/ptq tell`."""
        job = await self._deps.find_job(request, visitor)
        person, _ = await admit(self._deps, visitor, job.repository, Operation.TELL)
        context, words = self._deps.context, _read_advice(fields)
        # A browser that goes back shows the same form, with the same key. Different text in it is another message.
        occasion = f"{derive_request_key(visitor, fields)} {hashlib.sha256(words.encode()).hexdigest()[:16]}"
        try:
            async with context.db.write() as connection:
                await tell(connection, person, job, words, occasion, context.now())
        except NotTold as reason:
            how = " When the job has ended, use Follow up on its page." if reason.is_late else ""
            raise ActionRefused(strip_marks(str(reason)) + how, 409, "advice") from None
        context.notify()
        log.info("dashboard.told", **job.log_context(), by=visitor.login)
        return f"/jobs/{job.id}?{STARTED}"

    async def cancel(self, request: web.Request, visitor: Visitor, fields: Fields) -> str:
        """Cancel the job, like `/ptq cancel`."""
        job = await self._deps.find_job(request, visitor)
        person, _ = await admit(self._deps, visitor, job.repository, Operation.CANCEL)
        context = self._deps.context
        async with context.db.write() as connection:
            is_ending = await cancel(connection, person, job, context.now())
        if not is_ending:
            raise ActionRefused("The job has already ended.", 409)
        context.notify()
        log.info("dashboard.cancelled", **job.log_context(), by=visitor.login)
        return f"/jobs/{job.id}"

    async def go_on(self, preset: str, request: web.Request, visitor: Visitor, fields: Fields) -> str:
        """Start a further attempt at a job's issue or task, like `/ptq retry` or `/ptq rebase`."""
        job = await self._deps.find_job(request, visitor)
        person, repository = await admit(self._deps, visitor, job.repository, Operation.START)
        context, order, occasion = self._deps.context, _read_order(fields, preset), derive_request_key(visitor, fields)
        if job.thread is not None:
            further = await start_on_issue(context, person, repository, job.thread, order, occasion)
        else:
            further = await start_further(context, order.for_task(person, repository, job, occasion))
        return self._show_started(visitor, further)

    def _show_started(self, visitor: Visitor, job: Job) -> str:
        """The page of a new job."""
        self._deps.context.notify()
        log.info("dashboard.launched", **job.log_context(), by=visitor.login)
        return f"/jobs/{job.id}?{STARTED}"


def _read_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ActionRefused("Enter an issue number, such as 12.", 409, "issue")
    return int(text)


def _read_order(fields: Fields, preset: str) -> IssueOrder:
    onto = fields.get("onto", "").strip() or None
    return IssueOrder(preset, _read_options(fields), onto, _read_advice(fields))


def _read_advice(fields: Fields) -> str:
    advice = fields.get("advice", "").replace("\r\n", "\n").strip()
    if len(advice) > MAX_ADVICE:
        raise ActionRefused(f"Instructions can have up to {MAX_ADVICE:,} characters.", 409, "advice")
    return advice


def _read_options(fields: Fields) -> Options:
    given = {name: fields.get(name, "").strip() or None for name in CHOSEN_FIELDS}
    return Options(**given, anyway="anyway" in fields, fresh="fresh" in fields)
