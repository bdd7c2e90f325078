"""What people and probes read over HTTP: health, status, a page for each job. Plain HTML, kept up to date by htmx.

Everything on a job's page may have been written by an agent: it is redacted and escaped, whatever it is, and the page
may load and run nothing but our own files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.job_logs import SENT_LOG, SHOWN_LOG, End, JobLogs
from bot.live_channel import View
from bot.live_log import MAX_STREAMS, Desk, LiveLogs
from handlers.context import Context
from handlers.costs import describe_cost, describe_meter
from handlers.inbox import count_deliveries
from handlers.outbox import count_backlog, list_troubles
from handlers.receiving import MAX_PENDING
from handlers.report import is_confidential
from handlers.report_comment import render_duration
from handlers.sanitize import redact
from handlers.transcript import spell_out
from runner import store
from runner.agents import Agent
from runner.characters import show_invisible
from runner.check_rows import fetch_checks
from runner.claims import fetch_claimed
from runner.inventory import Sighting
from runner.job import DIGEST_SHOWN, Job, Report
from runner.machine_states import fetch_machine_states, fetch_sightings
from runner.machines import USABLE, Lease, MachineState
from runner.meter import Meter
from runner.pauses import fetch_pauses
from runner.spool import GROWING, STAGES, Spool
from runner.supervisor import name_claim
from runner.verification import Kind, Side

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
STATIC = Path(__file__).parent / "static"
LISTED_JOBS = 200
COLOURED_DIFF = 200_000
"""Characters beyond which a diff is shown without colours: each line would cost an element."""

REFRESH_S = 5
"""How often the page of an active job loads itself anew, where scripts do not run."""

_IN_CONFIDENTIAL = "ecurity"
"""In every report that is for the operator alone: its outcome, without the letter that Unicode has twice."""

TITLES = {
    Kind.ISSUE: "the script of",
    Kind.AGENT: "the agent's",
    Kind.TESTS: "the tests in",
}
SIDES = {
    Side.BASE: "On base",
    Side.TEXT: "The change as text alone, the base's code runs",
    Side.CHANGED: "With the change",
}

_KINDS = {"+": "plus", "-": "minus", "@": "hunk"}


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
    ) -> None:
        """`count_held` says how many missed labels wait for the operator (`handlers.recovery`).

        `follows` says of an active job whether this replica is the one that reads its logs.
        """
        self._context = context
        self._count_held = count_held
        self._slots = machines
        self._follows = follows
        self._max_pending = max_pending
        self._secrets = spell_out(context.secrets)
        self._logs = JobLogs(context.db, spool, agents, self._secrets)
        self.live = LiveLogs(Desk(self._find, self._look, self._draw, HEADERS), spool, self._logs, max_streams)
        """To be closed when the service stops."""
        loader = FileSystemLoader(Path(__file__).parent / "templates")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=self._clean)
        self._templates.filters["diff_lines"] = self._clean_diff
        # Behind a proxy the service may be a folder of another site.
        self._templates.globals["root"] = urlsplit(context.public_url).path

    def routes(self) -> list[web.RouteDef]:
        """Every page."""
        return [
            web.get("/", self.show_start),
            web.get("/healthz", self.show_health),
            web.get("/readyz", self.show_readiness),
            web.get("/status", self.show_status),
            web.get("/jobs", self.show_jobs),
            web.get("/jobs/{id}", self.show_job),
            web.get("/jobs/{id}/patch", self.show_patch),
            web.get("/jobs/{id}/log/{stage}", self.show_log),
            self.live.route(),
            web.get("/static/{name}", send_static),
        ]

    async def show_start(self, request: web.Request) -> web.Response:
        """Where people look first is the list of jobs."""
        raise web.HTTPFound("jobs", headers=HEADERS)

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
            jobs = await store.fetch_active_jobs(connection)
            leases = await store.fetch_leases(connection)
            machine_states = await fetch_machine_states(connection)
            sightings = await fetch_sightings(connection)
            pauses = await fetch_pauses(connection)
        states = [str(job.state) for job in jobs]
        counted = {state: states.count(state) for state in sorted(set(states))}
        deliveries = await count_deliveries(self._context.db, ("pending", "failed"))
        machines = [
            {**machine, "has": self._describe_sighting(sightings.get(machine["name"]))}
            for machine in self._describe_machines(machine_states, leases)
        ]
        backlog = asdict(await count_backlog(self._context.db))
        numbers = {"jobs": counted, "deliveries": deliveries, "replies": backlog, "held_labels": self._count_held()}
        numbers["pauses"] = len(pauses)
        values = {"machines": machines, **numbers}
        return web.json_response(values, dumps=partial(json.dumps, default=datetime.isoformat))

    def _describe_machines(self, states: Mapping[str, MachineState], leases: list[Lease]) -> list[dict[str, Any]]:
        """How each configured machine stands; who drained it is for the operator alone."""
        described = []
        # One that is gone from the configuration has no slots, and is here as long as something runs there.
        gone = {lease.machine: 0 for lease in leases if lease.machine not in self._slots}
        for name, slots in {**self._slots, **gone}.items():
            state = states.get(name, USABLE)
            leased = sum(lease.machine == name for lease in leases)
            trouble = self._redact(state.trouble) if state.trouble else None
            since = {"drained_since": state.drained_at, "out_since": state.outage and state.outage.since}
            described.append({"name": name, "slots": slots, "leased": leased, "trouble": trouble, **since})
        return described

    def _describe_sighting(self, sighting: Sighting | None) -> dict[str, Any] | None:
        """What was last seen on a machine; None where it was never asked."""
        if sighting is None:
            return None
        shown = ("name", "memory_mib", "driver")
        inventory = sighting.inventory
        return {
            "gpus": [{key: self._clean(getattr(gpu, key)) for key in shown} for gpu in inventory.gpus],
            "gpu_trouble": self._redact(inventory.gpu_trouble) if inventory.gpu_trouble else None,
            "disk": {"free_bytes": inventory.free_bytes, "total_bytes": inventory.total_bytes},
            "free_inodes": inventory.free_inodes,
            "unknown_job_folders": sighting.stranger_count,
            "seen_at": sighting.at,
        }

    async def show_jobs(self, request: web.Request) -> web.Response:
        """How the machines stand, and the newest jobs of public repositories."""
        async with self._context.db.read() as connection:
            machines = self._describe_machines(
                await fetch_machine_states(connection), await store.fetch_leases(connection)
            )
            found = await store.fetch_public_jobs(connection, LISTED_JOBS)
            bodies = await store.fetch_bodies(connection, [job.id for job, _ in found], _IN_CONFIDENTIAL)
        return await asyncio.to_thread(self._draw_jobs, found, bodies, machines)

    def _draw_jobs(
        self, found: list[tuple[Job, Meter | None]], bodies: Mapping[str, str], machines: list[dict[str, Any]]
    ) -> web.Response:
        withheld = {job_id for job_id, body in bodies.items() if is_confidential(body)}
        costs = {
            job.id: describe_cost(meter)
            for job, meter in found
            if meter and meter.cost_usd is not None and job.id not in withheld
        }
        return self._render("jobs.html", jobs=[job for job, _ in found], costs=costs, machines=machines)

    async def show_job(self, request: web.Request) -> web.Response:
        """One job: state, history, report, diff, log. Its address cannot be guessed."""
        job = await self._find(request)
        growing = GROWING.get(job.state)
        logs = {stage: await self._logs.read(job, stage, SHOWN_LOG) for stage in STAGES}
        logs = {stage: log for stage, log in logs.items() if log.data or stage == growing}
        async with self._context.db.read() as connection:
            values = await self._fetch_standing(connection, job)
            values["checks"] = await fetch_checks(connection, job.id)
            # Last of all, so that nothing is shown of a run whose report came meanwhile and is confidential.
            values["report"] = await store.fetch_report(connection, job.id)
        return await asyncio.to_thread(self._draw_job, job, logs=logs, **values)

    async def _fetch_standing(self, connection: AsyncConnection, job: Job) -> dict[str, Any]:
        """What a job's page says of how it stands."""
        is_mine = not job.active or self._follows(job.id)
        return {
            "events": await store.fetch_events(connection, job.id),
            "meter": await store.fetch_meter(connection, job.id),
            "earlier": await store.fetch_job(connection, job.follows) if job.follows else None,
            "troubles": await list_troubles(connection, job),
            "elsewhere": not is_mine and name_claim(job.id) in await fetch_claimed(connection),
        }

    def _draw_job(
        self, job: Job, *, report: Report | None, meter: Meter | None, logs: Mapping[str, End], **values: Any
    ) -> web.Response:
        if withheld := self._withhold(job, report, meter):
            return withheld
        texts = [(title, text) for title, text in report.texts() if text.strip()] if report else []
        return self._render(
            "job.html",
            report=report,
            texts=texts,
            logs={stage: self._logs.draw(job, stage, log) for stage, log in logs.items()},
            refresh_s=REFRESH_S,
            digest_shown=DIGEST_SHOWN,
            sides=SIDES,
            titles=TITLES,
            is_live=False,
            **self._describe_standing(job, meter),
            **values,
        )

    def _describe_standing(self, job: Job, meter: Meter | None) -> dict[str, Any]:
        took = describe_run(job, meter, self._context.now())
        return {"job": job, "meter": meter, "took": took, "model": (meter and meter.model) or job.model}

    async def _look(self, job_id: str, is_suspect: bool) -> View:
        """How a job that somebody follows stands now; its log may be suspect of what only the operator should see."""
        async with self._context.db.read() as connection:
            job = await store.fetch_job(connection, job_id)
            assert job is not None, "no job is ever deleted"
            standing = await self._fetch_standing(connection, job)
            report = await store.fetch_report(connection, job_id)
        return await asyncio.to_thread(self._draw_view, job, report, is_suspect=is_suspect, **standing)

    def _draw_view(
        self, job: Job, report: Report | None, *, is_suspect: bool, meter: Meter | None, **values: Any
    ) -> View:
        if is_withheld(report, meter) or (report is None and is_suspect):
            return View(job, True, {"gone": self._draw("confidential.html", "main", **describe_withheld(job))})
        values = {**values, **self._describe_standing(job, meter), "is_live": True}
        return View(job, False, {part: self._draw("job.html", part, **values) for part in ("state", "history")})

    async def show_patch(self, request: web.Request) -> web.Response:
        """The raw patch, for `git apply`."""
        job = await self._find(request)
        report, meter = await self._fetch_result(job)
        if withheld := await asyncio.to_thread(self._withhold, job, report, meter):
            return withheld
        if report is None or not report.patch:
            raise web.HTTPNotFound(text="this job has no patch\n", headers=HEADERS)
        return web.Response(text=self._redact(report.patch), headers=HEADERS)

    async def show_log(self, request: web.Request) -> web.Response:
        """The log of a stage as the machine gave it, but for secrets, colours and what nobody sees."""
        job, stage = await self._find(request), request.match_info["stage"]
        log = await self._logs.read(job, stage, SENT_LOG) if stage in STAGES else None
        report, meter = await self._fetch_result(job)
        if withheld := await asyncio.to_thread(self._withhold, job, report, meter):
            return withheld
        if log is None or not log.data:
            raise web.HTTPNotFound(text="this job has no such log\n", headers=HEADERS)
        text = await asyncio.to_thread(self._logs.clean, log)
        return web.Response(text=text, headers=HEADERS)

    async def _find(self, request: web.Request) -> Job:
        async with self._context.db.read() as connection:
            job = await store.fetch_job(connection, request.match_info["id"])
        if job is None:
            raise web.HTTPNotFound(text="there is no such job\n", headers=HEADERS)
        return job

    async def _fetch_result(self, job: Job) -> tuple[Report | None, Meter | None]:
        async with self._context.db.read() as connection:
            return await store.fetch_report(connection, job.id), await store.fetch_meter(connection, job.id)

    def _withhold(self, job: Job, report: Report | None, meter: Meter | None) -> web.Response | None:
        """What stands in place of a run whose result is, or may be, for the operator alone; None for any other."""
        return self._render("confidential.html", **describe_withheld(job)) if is_withheld(report, meter) else None

    def _clean(self, value: object) -> object:
        """What every value passes on its way into a page; one that is escaped already has passed it before."""
        is_raw = isinstance(value, str) and not hasattr(value, "__html__")
        return show_invisible(self._redact(str(value))) if is_raw else value

    def _clean_diff(self, patch: str) -> Iterable[tuple[str, str]]:
        """The lines of a diff, cleaned as a whole: a secret may have several lines."""
        text = show_invisible(self._redact(patch))
        return split_diff(text) if len(text) < COLOURED_DIFF else [("", text)]

    def _redact(self, text: str) -> str:
        return redact(text, self._secrets)

    def _render(self, template: str, **values: Any) -> web.Response:
        return web.Response(text=self._draw(template, **values), content_type="text/html", headers=HEADERS)

    def _draw(self, template: str, block: str = "", /, **values: Any) -> str:
        """A template, or one block of it."""
        found = self._templates.get_template(template)
        return "".join(found.blocks[block](found.new_context(values))) if block else found.render(**values)


async def send_static(request: web.Request) -> web.StreamResponse:
    """A file that every page may load: the style sheet, and htmx, which runs nothing but what stands in attributes."""
    path = STATIC / request.match_info["name"]
    if path.parent != STATIC or not path.is_file():
        raise web.HTTPNotFound(text="there is no such file\n", headers=HEADERS)
    return web.FileResponse(path, headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"})


def is_withheld(report: Report | None, meter: Meter | None) -> bool:
    """Whether a run's result is, or may be, for the operator alone."""
    return meter is not None and meter.withheld if report is None else is_confidential(report.body)


def describe_withheld(job: Job) -> dict[str, Any]:
    """All that is said of a run that is withheld."""
    return {"job": job, "state": job.state if job.active else "ended"}


def describe_run(job: Job, meter: Meter | None, now: datetime) -> str:
    """How long a job has run by now and what it has taken, on one line; empty for one that has not started."""
    duration = [render_duration((job.ended_at or now) - job.started_at)] if job.started_at else []
    return ", ".join([*duration, *([describe_meter(meter)] if meter else [])])


def split_diff(text: str) -> Iterator[tuple[str, str]]:
    """Each line of a diff with what it is: `plus`, `minus`, `hunk`, or nothing."""
    in_hunk = False
    for line in text.removesuffix("\n").split("\n"):
        in_hunk = line.startswith("@@") or (in_hunk and not line.startswith("diff --git "))
        yield _KINDS.get(line[:1], "") if in_hunk else "", f"{line}\n"
