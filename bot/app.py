"""The composition root: creates all parts, connects them, and runs the loops. It contains no policy."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import aiohttp
import structlog
from aiohttp import web

from bot.config.roster import Roster
from bot.config.settings import Settings
from bot.config.tables import find_web_url
from bot.gateway.endpoints import PREFIX, ModelGateway
from bot.gateway.git import GitProxy
from bot.gateway.packages import PackageProxy
from bot.github import AppGitHub
from bot.github.session import open_session
from bot.listener import HttpListener, raise_file_limit
from bot.observability.metrics import Metrics
from bot.observability.notify import Notifier
from bot.operations.context import build_context, now
from bot.pace import Pace
from bot.web.auth.auth_config import build_auth_config
from bot.web.auth.form_fields import MAX_FORM
from bot.web.pages import Pages
from bot.webhook import Webhook
from handlers.cases.known_repositories import SharedRepositories
from handlers.cases.retention import Retention, clean_database, clean_spool
from handlers.context import Context
from handlers.effects.case_labels import CaseLabels
from handlers.effects.drain import drain
from handlers.effects.outbox import Comments
from handlers.effects.outdated_comments import OutdatedComments
from handlers.effects.rate_limit import SharedBudget
from handlers.holds.held import check_holds
from handlers.inbox.inbox import Inbox
from handlers.jobs.history import GitHubHistory
from handlers.jobs.outcomes import report_jobs
from handlers.pulls.pulls import Pulls
from handlers.recovery.recovery import Recovery
from handlers.triggers.router import ROUTER
from runner.agents import build_agent
from runner.db.database import Database
from runner.db.errors import DatabaseError, UnavailableDatabase
from runner.model.back_off import BackOff
from runner.rows.claims import Claims
from runner.scheduler.refresh import Refresher
from runner.scheduler.supervisor import Supervisor, name_claim
from runner.steps.loops import Loop, Wakeup
from runner.steps.runtime import Runtime
from runner.steps.spool import Spool
from runner.steps.usage_reader import UsageReader
from runner.transport.hosts import HostOpener, open_host

log = structlog.get_logger()

DATABASE_WAITS = BackOff(0.5, 15.0)
"""The waits between attempts to open a database that is locked or unreachable."""

BEAT_S = 60.0
"""How often the service stores that it is alive, in seconds."""

REFRESH_S = 300.0
"""How often the service checks whether a base of environments is due for a refresh, in seconds."""

CHECKPOINT_S = 5.0
"""How often SQLite's log is copied into its file, in seconds."""

ENDING = (signal.SIGTERM, signal.SIGINT)
"""The signals that stop the service."""


class Service:
    """`async with Service(...)` runs the service inside the block. Agents keep running after the block."""

    def __init__(self, settings: Settings, pace: Pace | None = None, opens: HostOpener = open_host) -> None:
        self._settings = settings
        self._pace = pace or Pace()
        self._roster = Roster(settings, self._pace.silence_s, opens)
        self._agents = {spec.name: build_agent(spec) for spec in settings.agent_specs()}
        self._prices = settings.price_list()
        self._database = Database(settings.server.database_url)
        self._intake = Wakeup(self._database.notify)
        """Wakes only the inbox, because deliveries arrive more often than the other loops should run."""
        self._wakeup = Wakeup(self._database.notify, narrower=self._intake)
        self._reloaded = Wakeup()
        self._stack = AsyncExitStack()
        self.url = ""
        """The address that the service listens on. Empty before the start."""
        self.metrics_url = ""
        """The address of the metrics. Empty before the start, and if no `metrics_port` is configured."""

    async def __aenter__(self) -> Service:
        """Open the database, connect the parts, listen, and start the loops.

        While the database is locked or unreachable, this retries. Raises `DatabaseError` for problems that waiting does
        not solve.
        """
        for failures in count(1):
            try:
                async with AsyncExitStack() as stack:
                    await self._start(stack)
                    self._stack = stack.pop_all()
                break
            except UnavailableDatabase as error:
                wait_s = DATABASE_WAITS.after(failures)
                log.warning("service.waits_for_its_database", reason=str(error), wait_s=wait_s)
            await asyncio.sleep(wait_s)
        log.info(
            "service.started",
            url=self.url,
            public_url=self._settings.server.public_url,
            repositories=len(self.context.repositories),
        )
        if exposed := [name for name, spec in self.context.agents.items() if spec.key_on_machines]:
            # Jobs on the machines can read these keys: see docs/security.md.
            log.warning("agents.keys_are_on_machines", agents=", ".join(exposed))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop accepting deliveries, finish those in progress, and close all parts."""
        await self._stack.aclose()
        log.info("service.stopped")

    def reload(self, read: Callable[[], Settings]) -> None:
        """Use the machines and repositories of the configuration from `read`.

        If it is invalid, log that, and change nothing.
        """
        self._roster.reload(read)
        self._wakeup.notify()
        self._reloaded.notify_here()

    async def _start(self, stack: AsyncExitStack) -> None:
        settings, database, wakeup = self._settings, self._database, self._wakeup
        stack.push_async_callback(database.close)
        await database.open()
        stack.enter_context(database.hold())
        stack.push_async_callback(self._roster.close)
        session = await stack.enter_async_context(open_session(settings.outbound()))
        github = self._build_github(session, database)
        self.context = self._build_context(github, database)
        inbox = Inbox(database, ROUTER, now, self._intake.notify_here, settings.server.max_pending_deliveries)
        with database.explaining():
            await inbox.begin()
        claims = await self._build_claims(stack, database)
        spool = Spool(settings.server.data_dir / "spool")
        gateway = await self._build_gateway(stack, database, github)
        supervisor, refresher = self._build_supervisor(database, wakeup, claims, spool, gateway)
        notifier = Notifier(session, self.context, settings.notify)
        recovery = await self._begin_recovery(stack, inbox)
        pages = self._build_pages(session, github, spool, recovery, claims)
        webhook = Webhook(inbox, settings.webhook_secrets(), self._intake)
        metrics = Metrics(self.context, self._roster.slots, lambda: recovery.held, github.list_left)
        listener = await self._listen(stack, webhook, pages, metrics, gateway)
        stack.push_async_callback(supervisor.stop)
        context, roster, sweep_s = self.context, self._roster, self._pace.sweep_s
        comments = Comments(context, timedelta(seconds=self._pace.settles_s))
        labels = CaseLabels(context, timedelta(seconds=self._pace.label_rest_s))
        loops = [
            Loop("inbox", lambda: inbox.step(context), self._intake, sweep_s, claims),
            Loop("supervisor", supervisor.step, wakeup, self._pace.poll_s),
            Loop("outcomes", lambda: report_jobs(context), wakeup, sweep_s, claims),
            Loop("holds", lambda: check_holds(context), wakeup, sweep_s, claims),
            Loop("outbox", lambda: drain(comments), wakeup, sweep_s, claims),
            Loop("pulls", lambda: drain(Pulls(context)), wakeup, sweep_s, claims),
            Loop("labels", lambda: drain(labels), wakeup, sweep_s, claims),
            Loop("outdated", lambda: drain(OutdatedComments(context)), wakeup, sweep_s, claims),
            Loop("notifications", notifier.step, wakeup, sweep_s, claims),
            Loop("machines", lambda: roster.let_go(database), wakeup, sweep_s),
            *self._clean_up(database, inbox, claims, spool),
        ]
        # Nothing waits for a pass of these loops when the service ends. A reload wakes the recovery early.
        for loop in (
            Loop("heartbeat", recovery.beat, Wakeup(), BEAT_S),
            Loop("recovery", recovery.step, self._reloaded, self._pace.recover_s, claims),
            Loop("bases", refresher.step, Wakeup(), REFRESH_S, claims),
        ):
            stack.push_async_callback(loop.cancel)
        wire = asyncio.create_task(database.on_change(wakeup.notify_here), name="wire")
        stack.push_async_callback(_cancel, wire)
        warning = asyncio.create_task(roster.warn_of_open_machines(), name="warning")
        stack.push_async_callback(_cancel, warning)
        stack.push_async_callback(self._finish, listener, inbox, loops)

    def _clean_up(self, database: Database, inbox: Inbox, claims: Claims, spool: Spool) -> list[Loop]:
        """The loops for the maintenance of the database and the spool. They only run at their intervals."""
        retention, never_woken, clean_s = self._settings.retention.make(Retention), Wakeup(), self._pace.clean_s

        async def checkpoint() -> None:
            if not inbox.calm_in_s:
                await database.checkpoint()

        return [
            Loop("checkpoint", checkpoint, never_woken, CHECKPOINT_S),
            Loop("retention", lambda: clean_database(database, retention, now), never_woken, clean_s, claims),
            # Each replica has its own live logs.
            Loop("spool", lambda: clean_spool(database, spool), never_woken, clean_s),
        ]

    async def _begin_recovery(self, stack: AsyncExitStack, inbox: Inbox) -> Recovery:
        recovery = Recovery(
            self.context,
            inbox,
            ROUTER,
            sweep_max=self._settings.recovery.sweep_max,
            in_flight_s=self._pace.in_flight_s,
            is_relayed=self._settings.server.is_relayed(),
        )
        with self._database.explaining():
            await recovery.begin()
        stack.push_async_callback(self._beat_once_more, recovery)
        return recovery

    async def _beat_once_more(self, recovery: Recovery) -> None:
        """Store when the service ended. If that fails, the service counts as offline a little longer.

        That does no harm.
        """
        try:
            with self._database.explaining():
                await recovery.beat()
        except DatabaseError as error:
            log.warning("service.end_not_written_down", reason=str(error))

    def _build_github(self, session: aiohttp.ClientSession, database: Database) -> AppGitHub:
        settings = self._settings
        return AppGitHub(
            session,
            api_url=settings.github.api_url,
            app_id=settings.github.app_id,
            private_key=settings.github.read_private_key(),
            timings=self._pace.github,
            now=now,
            budget=SharedBudget(database, self._pace.github.budget(), now),
            repositories=SharedRepositories(database, self._roster.find_names),
        )

    def _build_context(self, github: AppGitHub, database: Database) -> Context:
        context = build_context(self._settings, github, database, now, self._wakeup.notify)
        return replace(context, repositories=self._roster.repositories, machines=self._roster.machines)

    async def _build_claims(self, stack: AsyncExitStack, database: Database) -> Claims:
        claims = Claims(database, self._pace.claim_s)
        if database.is_embedded:
            with database.explaining():
                await claims.clear()  # No other service uses this file, so the former holders of claims are dead.
        stack.push_async_callback(claims.close)
        renewing = asyncio.create_task(claims.run(), name="claims")
        stack.push_async_callback(_cancel, renewing)
        return claims

    def _build_supervisor(
        self, database: Database, wakeup: Wakeup, claims: Claims, spool: Spool, gateway: ModelGateway
    ) -> tuple[Supervisor, Refresher]:
        roster = self._roster
        runtime = Runtime(
            db=database,
            clients=roster.clients,
            profiles=roster.profiles,
            agents=self._agents,
            skills={skill.name: skill for skill in self.context.skills},
            spool=spool,
            usage_reader=UsageReader(spool, self._prices, now),
            now=now,
            gateway=gateway,
            history=GitHubHistory(self.context.github, now),
        )
        refresher = Refresher(runtime, roster.machines)
        supervisor = Supervisor(runtime, roster.machines, wakeup, claims, self._pace.poll_s, self._pace.orphans_s)
        return supervisor, refresher

    async def _build_gateway(self, stack: AsyncExitStack, database: Database, github: AppGitHub) -> ModelGateway:
        settings = self._settings
        session = await stack.enter_async_context(open_session(settings.outbound(), limit=0, auto_decompress=False))
        url = settings.gateway.url or ""
        git = GitProxy(session, find_web_url(settings.github.api_url), github, self._roster.profiles)
        packages = PackageProxy(self._roster.profiles)
        return ModelGateway(session, database, settings.upstreams(), self._prices, now, git, packages, url)

    def _build_pages(
        self, session: aiohttp.ClientSession, github: AppGitHub, spool: Spool, recovery: Recovery, claims: Claims
    ) -> Pages:
        return Pages(
            self.context,
            spool,
            self._roster.slots,
            self._agents,
            lambda: recovery.held,
            max_pending=self._settings.server.max_pending_deliveries,
            follows=lambda job_id: claims.has(name_claim(job_id)),
            auth=build_auth_config(session, self._settings, github.list_left),
        )

    async def _listen(
        self, stack: AsyncExitStack, webhook: Webhook, pages: Pages, metrics: Metrics, gateway: ModelGateway
    ) -> HttpListener:
        application = web.Application(client_max_size=MAX_FORM)
        application.router.add_post("/webhook", webhook.handle)
        application.router.add_routes(pages.routes())
        application.on_shutdown.append(pages.live.close)
        if self._settings.gateway.url:
            application.router.add_route("*", f"{PREFIX}/{{path:.*}}", gateway.answer_by_url)
        listener = HttpListener(application, self._pace.grace_s)
        stack.push_async_callback(listener.close)
        server = self._settings.server
        self.url = await listener.open(server.host, server.port)
        if server.metrics_port is not None:
            watching = HttpListener(metrics.make_application(), self._pace.grace_s)
            stack.push_async_callback(watching.close)
            self.metrics_url = await watching.open(server.metrics_host, server.metrics_port)
        return listener

    async def _finish(self, listener: HttpListener, inbox: Inbox, loops: Sequence[Loop]) -> None:
        """Stop accepting deliveries, and finish those in progress, for at most the grace period."""
        log.info("service.stopping", grace_s=self._pace.grace_s)
        await asyncio.gather(listener.close(), self._finish_work(inbox, loops))

    async def _finish_work(self, inbox: Inbox, loops: Sequence[Loop]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.grace_s):
                await asyncio.gather(*(loop.finish() for loop in loops))
                await inbox.stop()
        await asyncio.gather(*(loop.cancel() for loop in loops))
        await inbox.abandon()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def serve(settings: Settings, read: Callable[[], Settings], pace: Pace | None = None) -> None:
    """Run the service until SIGTERM or SIGINT. SIGHUP loads the configuration again, with `read`.

    A second SIGTERM or SIGINT ends the process at once. This is safe, because all durable state is in the database.
    """
    raise_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def begin_to_stop() -> None:
        for number in ENDING:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop.set()

    service = Service(settings, pace)
    loop.add_signal_handler(signal.SIGHUP, service.reload, read)
    for number in ENDING:
        loop.add_signal_handler(number, begin_to_stop)
    async with AsyncExitStack() as stack:
        if await _unless(stop, stack.enter_async_context(service)):
            # The objects that exist now stay until the end. A garbage collection of all of them would pause the service
            # for 100 ms.
            gc.collect()
            gc.freeze()
            await stop.wait()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Await `work`, and cancel it if `stop` is set first. Returns whether it finished. Raises what `work` raises."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait([working, stopping])
    if working.cancelled():
        return False
    working.result()
    return True
