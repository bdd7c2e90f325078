"""The composition root: makes every part once, joins them, and runs the loops. Nothing is decided here."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp
import structlog
from aiohttp import web

from bot.config import Settings
from bot.github import AppGitHub, Timings
from bot.notify import Notifier
from bot.pages import Pages
from bot.webhook import Webhook, make_web_application
from handlers import ROUTER
from handlers.context import Context
from handlers.inbox import Inbox
from handlers.outbox import post_replies
from handlers.outcomes import report_jobs
from handlers.pulls import open_pulls
from handlers.recovery import Recovery
from handlers.write_ledger import WriteLedger
from runner.agents import build_agent
from runner.bench import Bench
from runner.claims import LASTS_S, Claims
from runner.db import Database
from runner.gauge import Gauge
from runner.hosts import open_host
from runner.jobd_client import JobdClient
from runner.loops import Bell, run_forever
from runner.spool import Spool
from runner.supervisor import Supervisor

log = structlog.get_logger()

BEAT_S = 60.0
"""How often the service writes down that it is alive, in seconds."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the loops look without being rung, in seconds. Everything that happens in the service rings them."""

    poll_s: float = 2.0
    """How often a machine is asked how its jobs stand."""
    sweep_s: float = 5.0
    recover_s: float = 300.0
    """How often GitHub is asked for what never arrived here."""
    in_flight_s: float = 30.0
    """How long a webhook may be under way: a label that is younger is left to it."""
    grace_s: float = 10.0
    """How long a stop waits for the deliveries in hand."""
    claim_s: float = LASTS_S
    """How long a replica's claims outlive it."""
    github: Timings = field(default_factory=Timings)


def now() -> datetime:
    """The service's clock."""
    return datetime.now(UTC)


class Service:
    """The running service: `async with Service(...)` starts it, leaving the block stops it; agents go on."""

    def __init__(self, settings: Settings, pace: Pace | None = None) -> None:
        self._settings = settings
        self._pace = pace or Pace()
        self._agents = {spec.name: build_agent(spec) for spec in settings.agent_specs()}
        self._stack = AsyncExitStack()
        self.url = ""
        """Where it listens, known once it has started."""

    async def __aenter__(self) -> Service:
        """Open the database, join the parts, listen, and start the loops."""
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        log.info("service.started", url=self.url, repositories=len(self.context.repositories))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Take no more deliveries, finish those in hand, close what is open."""
        await self._stack.aclose()
        log.info("service.stopped")

    async def _start(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        database = await self._open_database(stack)
        intake = Bell(database.notify)
        bell = Bell(database.notify, narrower=intake)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        self.context = Context(
            github=AppGitHub(
                session,
                api_url=settings.github.api_url,
                app_id=settings.github.app_id,
                private_key=settings.private_key(),
                timings=self._pace.github,
                now=now,
                budget=WriteLedger(database, self._pace.github.budget(), now),
            ),
            db=database,
            repositories={rules.name.lower(): rules for rules in settings.repository_rules()},
            agents={spec.name: spec for spec in settings.agent_specs()},
            public_url=settings.server.public_url,
            secrets=settings.secret_values(),
            now=now,
            ring=bell.ring,
            skills=settings.skill_list(),
            caps={profile.repository.lower(): profile.caps for profile in settings.profiles()},
        )
        inbox = Inbox(database, ROUTER, now, intake.ring_here)
        notifier = Notifier(session, database, settings.notify.url, now)
        recovery = await self._begin_recovery(stack, inbox, notifier)
        claims = await self._build_claims(stack, database)
        supervisor, spool = self._build_supervisor(stack, database, bell, claims)
        pages = self._build_pages(supervisor, spool, recovery)
        await self._listen(stack, Webhook(inbox, settings.webhook_secrets(), intake), pages)
        stack.push_async_callback(supervisor.stop)
        stack.push_async_callback(self._drain, inbox)
        context, sweep_s = self.context, self._pace.sweep_s
        loops: tuple[tuple[str, Callable[[], Awaitable[None]], Bell, float], ...] = (
            ("inbox", claims.keeping("inbox", lambda: inbox.step(context)), intake, sweep_s),
            ("supervisor", supervisor.step, bell, self._pace.poll_s),
            ("outcomes", claims.keeping("outcomes", lambda: report_jobs(context)), bell, sweep_s),
            ("outbox", claims.keeping("outbox", lambda: post_replies(context)), bell, sweep_s),
            ("pulls", claims.keeping("pulls", lambda: open_pulls(context)), bell, sweep_s),
            ("notifications", claims.keeping("notifications", notifier.step), bell, sweep_s),
            # Nobody rings these two: nothing that happens here tells of what never arrived.
            ("heartbeat", recovery.beat, Bell(), BEAT_S),
            ("recovery", claims.keeping("recovery", recovery.step), Bell(), self._pace.recover_s),
        )
        tasks = {name: run_forever(name, step, rung_by, interval_s) for name, step, rung_by, interval_s in loops}
        for name, running in {**tasks, "wire": database.on_change(bell.ring_here)}.items():
            stack.push_async_callback(_cancel, asyncio.create_task(running, name=name))

    async def _open_database(self, stack: AsyncExitStack) -> Database:
        database = Database(self._settings.server.database_url)
        stack.push_async_callback(database.close)
        await database.open()
        stack.enter_context(database.hold())
        return database

    async def _build_claims(self, stack: AsyncExitStack, database: Database) -> Claims:
        claims = Claims(database, self._pace.claim_s)
        if database.is_embedded:
            await claims.clear()  # No other service has this file: whoever held them is dead.
        stack.push_async_callback(claims.close)
        renewing = asyncio.create_task(claims.run(), name="claims")
        stack.push_async_callback(_cancel, renewing)
        return claims

    async def _begin_recovery(self, stack: AsyncExitStack, inbox: Inbox, notifier: Notifier) -> Recovery:
        recovery = Recovery(
            self.context,
            inbox,
            ROUTER,
            notifier.tell,
            sweep_max=self._settings.recovery.sweep_max,
            in_flight_s=self._pace.in_flight_s,
        )
        await recovery.begin()
        stack.push_async_callback(recovery.beat)
        return recovery

    def _build_supervisor(
        self, stack: AsyncExitStack, database: Database, bell: Bell, claims: Claims
    ) -> tuple[Supervisor, Spool]:
        settings = self._settings
        machines = {machine.name: machine for machine in settings.machine_list()}
        hosts = {name: open_host(machine) for name, machine in machines.items()}
        for host in hosts.values():
            stack.push_async_callback(host.close)
        spool = Spool(settings.server.data_dir / "spool")
        bench = Bench(
            db=database,
            clients={name: JobdClient(machines[name], host) for name, host in hosts.items()},
            profiles={profile.repository: profile for profile in settings.profiles()},
            agents=self._agents,
            skills={skill.name: skill for skill in settings.skill_list()},
            spool=spool,
            gauge=Gauge(spool, settings.price_list(), now),
            now=now,
        )
        return Supervisor(bench, machines, bell, claims, self._pace.poll_s), spool

    def _build_pages(self, supervisor: Supervisor, spool: Spool, recovery: Recovery) -> Pages:
        slots = {machine.name: machine.slots for machine in self._settings.machine_list()}
        return Pages(self.context, supervisor, spool, slots, self._agents, lambda: recovery.held)

    async def _listen(self, stack: AsyncExitStack, webhook: Webhook, pages: Pages) -> None:
        application = make_web_application()
        application.router.add_post("/webhook", webhook.handle)
        application.router.add_routes(pages.routes())
        # Compressed bodies are refused by their header; nothing may be unpacked before that.
        web_runner = web.AppRunner(
            application, access_log=None, auto_decompress=False, shutdown_timeout=self._pace.grace_s
        )
        await web_runner.setup()
        stack.push_async_callback(web_runner.cleanup)
        server = self._settings.server
        await web.TCPSite(web_runner, server.host, server.port).start()
        host, port = web_runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def _drain(self, inbox: Inbox) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.grace_s):
                await inbox.stop()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def serve(settings: Settings, pace: Pace | None = None) -> None:
    """Run the service until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Service(settings, pace):
        await stop.wait()
