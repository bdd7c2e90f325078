"""What people and probes read over HTTP: health, status, a page for each job; `dashboard` has the rest.

Everything on a job's page may have been written by an agent: it is redacted and escaped, whatever it is, and the page
may load and run nothing but our own files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.web.auth.auth_config import AuthConfig
from bot.web.auth.sessions import Visit
from bot.web.dashboard.actions import Actions
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.drawing import HEADERS
from bot.web.dashboard.job_page import look_around
from bot.web.dashboard.listing import name_state
from bot.web.dashboard.lists import Lists
from bot.web.dashboard.machines import describe_machines
from bot.web.dashboard.notes import NotePages
from bot.web.dashboard.sign_in import SignIn
from bot.web.job_logs import SENT_LOG, SHOWN_LOG, CleanLogs, End, JobLogs, TooMany
from bot.web.large_answers import MAX_UNDER_WAY, LargeAnswers
from bot.web.live_channel import View, may_read
from bot.web.live_log import MAX_STREAMS, Decisions, LiveLogs
from bot.web.turns import PageTurns, run_for_page
from handlers.cases.withheld import fetch_withheld
from handlers.context import Context
from handlers.effects.outbox import count_backlog, list_troubles
from handlers.inbox.inbox import count_deliveries
from handlers.inbox.receiving import MAX_PENDING
from handlers.text.report import has_words, is_withheld
from handlers.words.costs import describe_meter
from handlers.words.report_comment import render_duration
from runner.agents import Agent
from runner.checks.verification import CheckKind, Side
from runner.model.job import DIGEST_SHOWN, Job, Report
from runner.model.meter import Meter
from runner.rows import job_rows
from runner.rows.check_rows import fetch_checks
from runner.rows.claims import fetch_claimed
from runner.rows.machine_states import fetch_machine_states, fetch_sightings
from runner.rows.pauses import fetch_pauses
from runner.scheduler.supervisor import name_claim
from runner.steps.spool import GROWING, STAGES, Spool

STATIC = {path.name: path for path in (Path(__file__).parent / "static").iterdir() if path.is_file()}
"""The files that every page may load, by name."""
ARTIFACTS = {"report.md": "body", "worklog.md": "worklog", "repro.py": "repro", "change.patch": "patch"}
"""What came out of a job as files, each with its field of the report."""

REFRESH_S = 5
"""How often the page of an active job loads itself anew, where scripts do not run."""

TITLES = {
    CheckKind.ISSUE: "the script of",
    CheckKind.AGENT: "the agent's",
    CheckKind.TESTS: "the tests in",
}
SIDES = {
    Side.BASE: "On base",
    Side.TEXT: "The change as text alone, the base's code runs",
    Side.CHANGED: "With the change",
}


class Pages:
    """The handlers of every GET."""

    def __init__(
        self,
        context: Context,
        spool: Spool,
        machines: Mapping[str, int],
        agents: Mapping[str, Agent],
        count_held: Callable[[], int] = lambda: 0,
        max_pending: int = MAX_PENDING,
        follows: Callable[[str], bool] = lambda job_id: True,
        max_streams: int = MAX_STREAMS,
        auth: AuthConfig | None = None,
        max_under_way: int = MAX_UNDER_WAY,
    ) -> None:
        """`count_held` says how many missed labels wait for the operator (`handlers.recovery`).

        `follows` says of an active job whether this replica is the one that reads its logs; without `auth` nobody can
        sign in.
        """
        self._context = context
        self._count_held = count_held
        self._slots = machines
        self._follows = follows
        self._max_pending = max_pending
        self._desk = DashboardDeps.set_up(context, auth or AuthConfig())
        drawing = self._desk.drawing
        self._logs = JobLogs(context.db, spool, agents, drawing.secrets)
        self._clean_logs = CleanLogs(self._logs.clean)
        decided = Decisions(self._find_reader, self._look, drawing.draw, HEADERS)
        signs_in = self._desk.oauth is not None
        self.live = LiveLogs(decided, spool, self._logs, max_streams, people_sign_in=signs_in)
        """To be closed when the service stops."""
        self._turns = PageTurns(self._find_login, HEADERS)
        self._large = LargeAnswers(self._find_login, HEADERS, max_under_way, people_sign_in=signs_in)

    def routes(self) -> list[web.RouteDef]:
        """Every page, also those that are in files of their own."""
        desk, oauth = self._desk, self._desk.oauth
        signs_in = SignIn(desk, oauth) if oauth else None
        pages = [
            *Lists(desk, self._slots).routes(),
            *(Actions(desk).routes() if signs_in else []),
            *(NotePages(desk, oauth, signs_in).routes() if oauth and signs_in else []),
            web.get("/status", self.show_status),
            web.get("/jobs/{id}", self.show_job),
            web.get("/jobs/{id}/actions", self.show_actions),
            web.get("/jobs/{id}/patch", self.show_patch),
            web.get("/jobs/{id}/files/{name}", self.send_artifact),
            web.get("/jobs/{id}/log/{stage}", self.show_log),
        ]
        others = [
            *(signs_in.routes() if signs_in else []),
            web.get("/healthz", self.show_health),
            web.get("/readyz", self.show_readiness),
            self.live.route(),
            web.get("/static/{name}", send_static),
        ]
        return [*map(self._large.guard, [*map(self._turns.guard, pages), *others])]

    async def show_health(self, request: web.Request) -> web.Response:
        """The process lives."""
        return web.json_response({"status": "ok"})

    async def show_readiness(self, request: web.Request) -> web.Response:
        """Whether deliveries can be stored; an outage of GitHub or of a machine must not turn webhooks away."""
        try:
            await self._context.db.accepts_writes()
            waiting = await count_deliveries(self._context.db, ("pending",))
        except Exception as error:  # Whatever it is, the answer is no.
            body = {"status": "the database takes no writes", "error": type(error).__name__}
            return web.json_response(body, status=503)
        if waiting["pending"] >= self._max_pending:
            return web.json_response({"status": "the inbox is full", **waiting}, status=503)
        return web.json_response({"status": "ok"})

    async def show_status(self, request: web.Request) -> web.Response:
        """Machines, jobs and deliveries, in numbers."""
        async with self._context.db.read() as connection:
            jobs = await job_rows.fetch_active_jobs(connection)
            leases = await job_rows.fetch_leases(connection)
            machine_states = await fetch_machine_states(connection)
            sightings = await fetch_sightings(connection)
            pauses = await fetch_pauses(connection)
        states = [str(job.state) for job in jobs]
        counted = {state: states.count(state) for state in sorted(set(states))}
        deliveries = await count_deliveries(self._context.db, ("pending", "failed"))
        machines = describe_machines(self._slots, machine_states, leases, sightings, self._desk.drawing)
        backlog = asdict(await count_backlog(self._context.db))
        numbers = {"jobs": counted, "deliveries": deliveries, "replies": backlog, "held_labels": self._count_held()}
        numbers["pauses"] = len(pauses)
        values = {"machines": machines, **numbers}
        return web.json_response(values, dumps=partial(json.dumps, default=datetime.isoformat))

    async def show_job(self, request: web.Request) -> web.Response:
        """One job: state, history, report, diff, log."""
        visit, job = await self._find(request)
        growing, reads_log = GROWING.get(job.state), await self._desk.sight.reads_log(visit, job)
        stages = [stage for stage in STAGES if may_read(stage, reads_log=reads_log)]
        logs = {stage: await self._logs.read(job, stage, SHOWN_LOG) for stage in stages}
        logs = {stage: log for stage, log in logs.items() if log.data or stage == growing}
        around = await look_around(self._desk, visit, job)
        async with self._context.db.read() as connection:
            values = await self._fetch_standing(connection, job)
            values["checks"] = await fetch_checks(connection, job.id)
            # Last of all, so that nothing is shown of a run whose report came meanwhile and is confidential.
            values["report"] = await job_rows.fetch_report(connection, job.id)
        values |= {"around": around, "posted": "posted" in request.query, "reads_log": reads_log}
        return await run_for_page(partial(self._draw_job, visit, job, logs=logs, **values))

    async def show_actions(self, request: web.Request) -> web.Response:
        """The part of a job's page that says what its reader may do: another one, once the job has ended."""
        visit, job = await self._find(request)
        around = await look_around(self._desk, visit, job)
        report, withheld = await self._fetch_result(visit, job)
        async with self._context.db.read() as connection:
            is_confidential = await fetch_withheld(connection, job.id)
        return withheld or self._desk.drawing.render(
            "job_actions.html", visit, job=job, around=around, report=report, is_confidential=is_confidential
        )

    async def _fetch_standing(self, connection: AsyncConnection, job: Job) -> dict[str, Any]:
        """What a job's page says of how it stands, to whomever."""
        is_mine = not job.active or self._follows(job.id)
        return {
            "events": await job_rows.fetch_events(connection, job.id),
            "meter": await job_rows.fetch_meter(connection, job.id),
            "earlier": await job_rows.fetch_job(connection, job.follows) if job.follows else None,
            "troubles": await list_troubles(connection, job),
            "elsewhere": not is_mine and name_claim(job.id) in await fetch_claimed(connection),
        }

    def _draw_job(
        self,
        visit: Visit,
        job: Job,
        *,
        report: Report | None,
        meter: Meter | None,
        logs: Mapping[str, End],
        reads_log: bool,
        **values: Any,
    ) -> web.Response:
        if withheld := self._withhold(visit, job, report):
            return withheld
        report = report if reads_log or has_words(report) else None
        texts = [(title, text) for title, text in report.texts() if text.strip()] if report else []
        drawn = {stage: self._logs.draw(job, stage, log) for stage, log in logs.items()}
        is_confidential = is_withheld(report)
        if is_confidential:  # What all readers of a stream have in common ends there.
            drawn = {stage: replace(log, live_from=None) for stage, log in drawn.items()}
        return self._desk.drawing.render(
            "job.html",
            visit,
            report=report,
            texts=texts,
            logs=drawn,
            # How an active job stands travels with its log, for people who may not read that, too.
            follows=GROWING[job.state] if job.active and GROWING[job.state] not in drawn else None,
            reads_log=reads_log,
            no_log="" if reads_log else self._desk.sight.explain_no_log(visit, job),
            refresh_s=REFRESH_S,
            digest_shown=DIGEST_SHOWN,
            sides=SIDES,
            titles=TITLES,
            is_live=False,
            artifacts=[name for name, field in ARTIFACTS.items() if report and getattr(report, field).strip()],
            is_confidential=is_confidential,
            **self._describe_standing(job, meter),
            **values,
        )

    def _describe_standing(self, job: Job, meter: Meter | None) -> dict[str, Any]:
        took = describe_run(job, meter, self._context.now())
        return {"job": job, "meter": meter, "took": took, "model": (meter and meter.model) or job.model}

    async def _look(self, job_id: str) -> View:
        """How a job that somebody follows stands now."""
        async with self._context.db.read() as connection:
            job = await job_rows.fetch_job(connection, job_id)
            assert job is not None, "no job is ever deleted"
            standing = await self._fetch_standing(connection, job)
            report = await job_rows.fetch_report(connection, job_id)
        return await run_for_page(self._draw_view, job, report, **standing)

    def _draw_view(self, job: Job, report: Report | None, *, meter: Meter | None, **values: Any) -> View:
        draw = self._desk.drawing.draw
        if is_withheld(report):
            return View(job, True, {"gone": draw("confidential.html", "main", **describe_withheld(job))})
        values = {**values, **self._describe_standing(job, meter), "is_live": True}
        return View(job, False, {part: draw("job.html", part, **values) for part in ("state", "history")})

    async def show_patch(self, request: web.Request) -> web.Response:
        """The patch as it is shown, which is the patch itself, for `git apply`, where nothing had to be written out."""
        report, withheld = await self._fetch_result(*await self._find(request))
        if withheld:
            return withheld
        if report is None or not report.patch:
            raise web.HTTPNotFound(text="this job has no patch\n", headers=HEADERS)
        return web.Response(text=await run_for_page(self._show, "patch", report.patch), headers=HEADERS)

    async def send_artifact(self, request: web.Request) -> web.Response:
        """A text that came out of a job, to keep: whatever is in it, browsers take it for a file of plain text."""
        name = request.match_info["name"]
        report, withheld = await self._fetch_result(*await self._find(request))
        if withheld:
            return withheld
        text = getattr(report, ARTIFACTS[name]) if report and name in ARTIFACTS else ""
        if not text.strip():
            raise web.HTTPNotFound(text="this job has no such file\n", headers=HEADERS)
        named = {"Content-Disposition": f'attachment; filename="{name}"'}
        shown = await run_for_page(self._show, ARTIFACTS[name], text)
        return web.Response(text=shown, headers={**HEADERS, **named})

    async def show_log(self, request: web.Request) -> web.Response:
        """The log of a stage as the machine gave it, but for secrets, colours and what nobody sees."""
        (visit, job), stage = await self._find(request), request.match_info["stage"]
        if not may_read(stage, reads_log=await self._desk.sight.reads_log(visit, job)):
            raise web.HTTPForbidden(text=f"{self._desk.sight.explain_no_log(visit, job)}\n", headers=HEADERS)
        log = await self._logs.read(job, stage, SENT_LOG) if stage in STAGES else None
        cleaned = await self._clean(log) if log and log.data else None
        # Last of all, so that nothing is shown of a run whose report came meanwhile and is confidential.
        _, withheld = await self._fetch_result(visit, job)
        if withheld:
            return withheld
        if cleaned is None:
            raise web.HTTPNotFound(text="this job has no such log\n", headers=HEADERS)
        return web.Response(body=cleaned, headers=HEADERS, content_type="text/plain", charset="utf-8")

    async def _clean(self, log: End) -> bytes:
        try:
            return await self._clean_logs.fetch(log)
        except TooMany:
            headers = {**HEADERS, "Retry-After": "10"}
            text = "too many logs are asked for at once: try again soon\n"
            raise web.HTTPServiceUnavailable(text=text, headers=headers) from None

    async def _find(self, request: web.Request) -> tuple[Visit, Job]:
        visit = self._desk.visits.read(request)
        return visit, await self._desk.find_job(request, visit)

    def _find_login(self, request: web.Request) -> str | None:
        return self._desk.visits.read(request).login

    async def _find_reader(self, request: web.Request) -> tuple[str | None, Job, bool]:
        visit, job = await self._turns.make(request, lambda: self._find(request))
        return visit.login, job, await self._desk.sight.reads_log(visit, job)

    async def _fetch_result(self, visit: Visit, job: Job) -> tuple[Report | None, web.Response | None]:
        """The result of a job, or the notice that replaces it for people who may not read it.

        What a run left without a report is shown like its log.
        """
        async with self._context.db.read() as connection:
            report = await job_rows.fetch_report(connection, job.id)
        if report and not has_words(report) and not await self._desk.sight.reads_log(visit, job):
            report = None
        return report, await run_for_page(self._withhold, visit, job, report)

    def _withhold(self, visit: Visit, job: Job, report: Report | None) -> web.Response | None:
        """The page that replaces a run which only the operator may see; None for any other run."""
        if visit.is_operator or not is_withheld(report):
            return None
        return self._desk.drawing.render("confidential.html", visit, **describe_withheld(job))

    def _show(self, field: str, text: str) -> str:
        drawing = self._desk.drawing
        return drawing.show_patch(text).text if field == "patch" else drawing.redact(text)


async def send_static(request: web.Request) -> web.StreamResponse:
    """A file that every page may load: the style sheet, and htmx, which runs nothing but what stands in attributes."""
    if (path := STATIC.get(request.match_info["name"])) is None:
        raise web.HTTPNotFound(text="there is no such file\n", headers=HEADERS)
    return web.FileResponse(path, headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"})


def describe_withheld(job: Job) -> dict[str, Any]:
    """All that is said of a run that is withheld."""
    return {"job": job, "state": name_state(job.state, is_hidden=True)}


def describe_run(job: Job, meter: Meter | None, now: datetime) -> str:
    """How long a job has run by now and what it has taken, on one line; empty for one that has not started."""
    duration = [render_duration((job.ended_at or now) - job.started_at)] if job.started_at else []
    return ", ".join([*duration, *([describe_meter(meter)] if meter else [])])
