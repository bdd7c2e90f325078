"""Health, status, and the pages and files of jobs. `dashboard` has the other pages.

All content of a job's page is untrusted: it is redacted and escaped, and the page loads and runs only our own files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.web.auth.auth_config import AuthConfig
from bot.web.auth.headers import HEADERS, refuse_busy
from bot.web.auth.page_queue import run_for_page
from bot.web.auth.sessions import Visitor, is_same
from bot.web.dashboard.actions import Actions
from bot.web.dashboard.checks import show_checks
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.job_page import Moves, fetch_details, fetch_offer_mark, list_phases
from bot.web.dashboard.listing import name_state
from bot.web.dashboard.lists import ListPages
from bot.web.dashboard.machines import describe_machines
from bot.web.dashboard.notes import NotePages
from bot.web.dashboard.operator_actions import OperatorActions
from bot.web.dashboard.sign_in import SignIn
from bot.web.job_logs import SENT_LOG, SHOWN_LOG, CleanLogs, JobLogs, LogTail, ShownWorklog, TooMany
from bot.web.large_answers import MAX_UNDER_WAY, LargeAnswers
from bot.web.live_channel import JobView, may_read
from bot.web.live_log import MAX_STREAMS, LiveLogCallbacks, LiveLogs
from bot.web.readiness import Readiness
from handlers.addresses import PATCH_FILE
from handlers.context import Context
from handlers.effects.outbox import count_backlog, list_troubles
from handlers.inbox.inbox import count_deliveries
from handlers.inbox.receiving import MAX_PENDING
from handlers.text.report import has_words
from handlers.text.transcript import find_last_lines
from handlers.words.costs import describe_limits, describe_meter
from handlers.words.report_comment import render_duration
from runner.agents import Agent
from runner.changes.concerns import is_withheld
from runner.checks.verification import Check
from runner.model.job import DIGEST_SHOWN, Job, Report
from runner.model.jobd_answers import Worklog
from runner.model.meter import Meter
from runner.rows import job_rows
from runner.rows.check_rows import fetch_checks
from runner.rows.claims import fetch_claimed
from runner.rows.machine_states import fetch_machine_states, fetch_sightings
from runner.rows.pauses import fetch_pauses
from runner.rows.tellings import fetch_tellings
from runner.rows.worklogs import fetch_worklog
from runner.scheduler.supervisor import name_claim
from runner.steps.spool import GROWING, STAGES, Spool

STATIC = {path.name: path for path in (Path(__file__).parent / "static").iterdir() if path.is_file()}
"""Name -> file. Every page may load these files."""
ARTIFACTS = {"report.md": "body", "worklog.md": "worklog", "repro.py": "repro", PATCH_FILE: "patch"}
"""File name -> field of the report."""

REFRESH_S = 5
"""How often the page of an active job reloads in a browser without scripts."""

LIVE_PARTS = ("state", "facts", "steps", "history")
"""The parts of the page that are the same for all readers. They are sent when they change."""

LOG_PART = "worklog"
"""The part that is sent only to people who may read the log."""

MAX_LOOKS = 20
"""The most times that a page asks whether the pull request of a note exists."""


class Pages:
    """The handlers of health, status, and the pages and files of jobs. `routes` adds those of the dashboard."""

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
        """`count_held` counts the missed labels that wait for the operator (`handlers.recovery`).

        `follows` says of an active job whether this replica reads its logs. Without `auth`, nobody can sign in.
        """
        self._context = context
        self._count_held = count_held
        self._slots = machines
        self._follows = follows
        self._readiness = Readiness(context.db, max_pending)
        self._deps = DashboardDeps.set_up(context, auth or AuthConfig())
        renderer = self._deps.renderer
        self._logs = JobLogs(context.db, spool, agents, renderer.secrets)
        self._clean_logs = CleanLogs(self._logs.clean)
        decided = LiveLogCallbacks(self._find_reader, self._look, renderer.render_html)
        signs_in = self._deps.oauth is not None
        self.live = LiveLogs(decided, self._deps.queue, spool, self._logs, max_streams, people_sign_in=signs_in)
        """The live logs. They must be closed when the service stops."""
        self._large = LargeAnswers(self._find_login, max_under_way, people_sign_in=signs_in)

    def routes(self) -> list[web.RouteDef]:
        """The routes of all pages."""
        deps, oauth = self._deps, self._deps.oauth
        signs_in = SignIn(deps, oauth) if oauth else None
        pages = [
            *ListPages(deps, self._slots).routes(),
            *((*Actions(deps).routes(), *OperatorActions(deps).routes()) if signs_in else ()),
            *(NotePages(deps, oauth, signs_in).routes() if oauth and signs_in else []),
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
        return [*map(self._large.guard, [*map(deps.queue.guard, pages), *others])]

    async def show_health(self, request: web.Request) -> web.Response:
        """Answer while the process is alive."""
        return web.json_response({"status": "ok"})

    async def show_readiness(self, request: web.Request) -> web.Response:
        """Whether deliveries can be stored. An outage of GitHub or of a machine does not change the answer."""
        answer = await self._readiness.find()
        return web.json_response(answer.body, status=answer.status)

    async def show_status(self, request: web.Request) -> web.Response:
        """The numbers of jobs, deliveries and replies, and the machines.

        Visitors who may not see machines get neither these nor the reasons why replies wait.
        """
        async with self._context.db.read() as connection:
            jobs = await job_rows.fetch_active_jobs(connection)
            leases = await job_rows.fetch_leases(connection)
            machine_states = await fetch_machine_states(connection)
            sightings = await fetch_sightings(connection)
            pauses = await fetch_pauses(connection)
        states = [str(job.state) for job in jobs]
        counted = {state: states.count(state) for state in sorted(set(states))}
        deliveries = await count_deliveries(self._context.db, ("pending", "failed"))
        machines = describe_machines(self._slots, machine_states, leases, sightings, self._deps.renderer)
        backlog = asdict(await count_backlog(self._context.db))
        if not await self._deps.visibility.sees_machines(self._deps.sessions.read(request)):
            machines, backlog["reasons"] = [], {}
        numbers = {"jobs": counted, "deliveries": deliveries, "replies": backlog, "held_labels": self._count_held()}
        numbers["pauses"] = len(pauses)
        values = {"machines": machines, **numbers}
        return web.json_response(values, dumps=partial(json.dumps, default=datetime.isoformat))

    async def show_job(self, request: web.Request) -> web.Response:
        """One job: state, history, report, diff, log."""
        visitor, job = await self._find(request)
        growing, reads_log = GROWING.get(job.state), await self._deps.visibility.reads_log(visitor, job)
        stages = [stage for stage in STAGES if may_read(stage, reads_log=reads_log)]
        logs = {stage: await self._logs.read(job, stage, SHOWN_LOG) for stage in stages}
        logs = {stage: log for stage, log in logs.items() if log.data or stage == growing}
        details = await fetch_details(self._deps, visitor, job)
        async with self._context.db.read() as connection:
            values = await self._fetch_standing(connection, job)
            values["checks"] = await fetch_checks(connection, job.id)
            values["worklog"] = await fetch_worklog(connection, job.id) if reads_log else None
            # The report is fetched last, because a confidential one may have arrived meanwhile.
            values["report"] = await job_rows.fetch_report(connection, job.id)
        values |= {"details": details, "posted": read_posted(request, visitor, job), "reads_log": reads_log}
        values["splits"] = request.query.get("view") == "split"
        return await run_for_page(partial(self._draw_job, visitor, job, logs=logs, **values))

    async def show_actions(self, request: web.Request) -> web.Response:
        """The part of a job's page that depends on its reader. The page requests this part when it may have changed."""
        visitor, job = await self._find(request)
        details = await fetch_details(self._deps, visitor, job)
        reads_log = await self._deps.visibility.reads_log(visitor, job)
        async with self._context.db.read() as connection:
            # Only the head is fetched: a report's texts can be many megabytes, and this part is requested often.
            report = await job_rows.fetch_report_head(connection, job.id)
        is_confidential = job.confidential or (report is not None and report.withheld)
        if is_confidential and not visitor.is_operator:
            return self._draw_withheld(visitor, job)
        if report and not report.has_words and not reads_log:
            report = None
        values: dict[str, Any] = {"details": details, "report": report, "is_confidential": is_confidential}
        values |= {"posted": read_posted(request, visitor, job), "max_looks": MAX_LOOKS}
        return self._deps.renderer.render_page("job_actions.html", visitor, job=job, **values)

    async def _fetch_standing(self, connection: AsyncConnection, job: Job) -> dict[str, Any]:
        """The parts of a job's state that are the same for all readers."""
        is_mine = not job.active or self._follows(job.id)
        earlier = await job_rows.fetch_job(connection, job.follows) if job.follows else None
        return {
            "events": await job_rows.fetch_events(connection, job.id),
            "moves": await job_rows.fetch_moves(connection, job.id),
            "meter": await job_rows.fetch_meter(connection, job.id),
            "tellings": await fetch_tellings(connection, job.id),
            # Readers of a public job may not know of a private one.
            "earlier": earlier if earlier and (job.private or not earlier.private) else None,
            "troubles": await list_troubles(connection, job),
            "elsewhere": not is_mine and name_claim(job.id) in await fetch_claimed(connection),
        }

    def _draw_job(
        self,
        visitor: Visitor,
        job: Job,
        *,
        report: Report | None,
        meter: Meter | None,
        checks: Sequence[Check],
        logs: Mapping[str, LogTail],
        moves: Moves,
        reads_log: bool,
        worklog: Worklog | None,
        **values: Any,
    ) -> web.Response:
        if withheld := self._withhold(visitor, job, report):
            return withheld
        shown_checks = show_checks(job, checks, report)
        report = report if reads_log or has_words(report) else None
        drawn = {stage: self._logs.draw(job, stage, log) for stage, log in logs.items()}
        is_confidential = is_withheld(job, report)
        if is_confidential:  # A stream would be the same for all readers, so a confidential log is not streamed.
            drawn = {stage: replace(log, live_from=None) for stage, log in drawn.items()}
        return self._deps.renderer.render_page(
            "job.html",
            visitor,
            report=report,
            checks=shown_checks,
            first="log" if job.active and drawn else "summary",
            last_lines=find_last_lines(drawn["agent"].entries) if job.agent_failed and "agent" in drawn else "",
            logs=drawn,
            # The stream of a log also carries the job's state, even for people who may not read the log.
            follows=GROWING[job.state] if job.active and GROWING[job.state] not in drawn else None,
            reads_log=reads_log,
            worklog=ShownWorklog(report.worklog) if report else self._show_worklog(job, worklog),
            no_log="" if reads_log else self._deps.visibility.explain_no_log(visitor, job),
            refresh_s=REFRESH_S,
            digest_shown=DIGEST_SHOWN,
            is_live=False,
            max_looks=MAX_LOOKS,
            artifacts=[name for name, field in ARTIFACTS.items() if report and getattr(report, field).strip()],
            is_confidential=is_confidential,
            **self._describe_standing(job, meter, moves),
            **values,
        )

    def _show_worklog(self, job: Job, worklog: Worklog | None) -> ShownWorklog | None:
        return self._logs.draw_worklog(job, worklog) if worklog else None

    def _describe_standing(self, job: Job, meter: Meter | None, moves: Moves) -> dict[str, Any]:
        now = self._context.now()
        took, model = describe_run(job, meter, now), (meter and meter.model) or job.model
        phases = list_phases(moves, job.ended_at or now, active=job.active)
        return {
            "job": job,
            "meter": meter,
            "took": took,
            "model": model,
            "limits": describe_limits(job),
            "phases": phases,
        }

    async def _look(self, job_id: str) -> JobView:
        """The current state of a job that a stream follows."""
        async with self._context.db.read() as connection:
            job = await job_rows.fetch_job(connection, job_id)
            assert job is not None, "jobs are never deleted"
            standing = await self._fetch_standing(connection, job)
            mark = await fetch_offer_mark(connection, job, self._context.db.secret)
            standing["worklog"] = await fetch_worklog(connection, job_id)
            report = await job_rows.fetch_report(connection, job_id)
        return await run_for_page(partial(self._draw_view, job, report, mark, **standing))

    def _draw_view(
        self,
        job: Job,
        report: Report | None,
        mark: str,
        *,
        meter: Meter | None,
        moves: Moves,
        worklog: Worklog | None,
        **values: Any,
    ) -> JobView:
        draw = self._deps.renderer.render_html
        if is_withheld(job, report):
            return JobView(job, True, {"gone": draw("confidential.html", "main", **describe_withheld(job))})
        values = {**values, **self._describe_standing(job, meter, moves), "is_live": True}
        parts = {part: draw("job.html", part, **values) for part in LIVE_PARTS}
        shown = self._show_worklog(job, worklog)
        log_parts = {LOG_PART: draw("job.html", LOG_PART, job=job, worklog=shown, no_log="")} if shown else {}
        return JobView(job, False, {"standing": mark, **parts}, log_parts)

    async def show_patch(self, request: web.Request) -> web.Response:
        """The patch as pages show it. `git apply` accepts it only if `ShownPatch.is_exact`."""
        report, withheld = await self._fetch_result(*await self._find(request))
        if withheld:
            return withheld
        if report is None or not report.patch:
            raise web.HTTPNotFound(text="this job has no patch\n", headers=HEADERS)
        return await run_for_page(self._send_text, "patch", report.patch)

    async def send_artifact(self, request: web.Request) -> web.Response:
        """Download a text of a job. Browsers treat it as plain text, whatever it contains."""
        name = request.match_info["name"]
        report, withheld = await self._fetch_result(*await self._find(request))
        if withheld:
            return withheld
        text = getattr(report, ARTIFACTS[name]) if report and name in ARTIFACTS else ""
        if not text.strip():
            raise web.HTTPNotFound(text="this job has no such file\n", headers=HEADERS)
        answer = await run_for_page(self._send_text, ARTIFACTS[name], text)
        answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return answer

    async def show_log(self, request: web.Request) -> web.Response:
        """The raw log of a stage, without secrets, colours and invisible characters."""
        (visitor, job), stage = await self._find(request), request.match_info["stage"]
        if not may_read(stage, reads_log=await self._deps.visibility.reads_log(visitor, job)):
            raise web.HTTPForbidden(text=f"{self._deps.visibility.explain_no_log(visitor, job)}\n", headers=HEADERS)
        log = await self._logs.read(job, stage, SENT_LOG) if stage in STAGES else None
        cleaned = await self._clean(log) if log and log.data else None
        # The report is checked last, because a confidential one may have arrived meanwhile.
        _, withheld = await self._fetch_result(visitor, job)
        if withheld:
            return withheld
        if cleaned is None:
            raise web.HTTPNotFound(text="this job has no such log\n", headers=HEADERS)
        return web.Response(body=cleaned, headers=HEADERS, content_type="text/plain", charset="utf-8")

    async def _clean(self, log: LogTail) -> bytes:
        try:
            return await self._clean_logs.fetch(log)
        except TooMany:
            raise refuse_busy("too many requests for logs") from None

    async def _find(self, request: web.Request) -> tuple[Visitor, Job]:
        visitor = self._deps.sessions.read(request)
        return visitor, await self._deps.find_job(request, visitor)

    def _find_login(self, request: web.Request) -> str | None:
        return self._deps.sessions.read(request).login

    async def _find_reader(self, request: web.Request) -> tuple[str | None, Job, bool]:
        visitor, job = await self._find(request)
        return visitor.login, job, await self._deps.visibility.reads_log(visitor, job)

    async def _fetch_result(self, visitor: Visitor, job: Job) -> tuple[Report | None, web.Response | None]:
        """The result of a job, and the page to send instead if the visitor may not see the result.

        If the agent wrote no report, only people who may read the log get the result.
        """
        async with self._context.db.read() as connection:
            report = await job_rows.fetch_report(connection, job.id)
        if report and not has_words(report) and not await self._deps.visibility.reads_log(visitor, job):
            report = None
        return report, await run_for_page(self._withhold, visitor, job, report)

    def _withhold(self, visitor: Visitor, job: Job, report: Report | None) -> web.Response | None:
        """The page that replaces a withheld run. None for operators, and for any other run."""
        if visitor.is_operator or not is_withheld(job, report):
            return None
        return self._draw_withheld(visitor, job)

    def _draw_withheld(self, visitor: Visitor, job: Job) -> web.Response:
        return self._deps.renderer.render_page("confidential.html", visitor, **describe_withheld(job))

    def _send_text(self, field: str, text: str) -> web.Response:
        renderer = self._deps.renderer
        shown = renderer.show_patch(text).text if field == "patch" else renderer.redact(text)
        return web.Response(text=shown, headers=HEADERS)


async def send_static(request: web.Request) -> web.StreamResponse:
    """A file that every page may load: a style sheet or a script."""
    if (path := STATIC.get(request.match_info["name"])) is None:
        raise web.HTTPNotFound(text="there is no such file\n", headers=HEADERS)
    return web.FileResponse(path, headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"})


def read_posted(request: web.Request, visitor: Visitor, job: Job) -> int:
    """How often this page has looked for the pull request of a note that its reader has just posted.

    0 if the reader has posted no note. Only the session that has posted a note knows the value of `posted`.
    """
    given, looks = request.query.get("posted", ""), request.query.get("looks", "")
    if visitor.login is None or not is_same(given, visitor.sign(job.id)):
        return 0
    return min(int(looks), MAX_LOOKS) if re.fullmatch(r"[0-9]{1,4}", looks) else 1


def describe_withheld(job: Job) -> dict[str, Any]:
    """The values that are shown of a withheld run."""
    return {"job": job, "state": name_state(job.state, is_hidden=True)}


def describe_run(job: Job, meter: Meter | None, now: datetime) -> str:
    """A job's time, turns and cost so far, on one line. Empty if the job has not started."""
    duration = [render_duration((job.ended_at or now) - job.started_at)] if job.started_at else []
    return ", ".join([*duration, *([describe_meter(meter)] if meter else [])])
