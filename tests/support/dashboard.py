"""The dashboard in front of the stand-in, with the real client between them, and browsers that people sit at."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from html import unescape
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from bot.demo.loopback import find_free_port
from bot.github import AppGitHub
from bot.web.auth.auth_config import AuthConfig
from bot.web.auth.form_fields import MAX_FORM
from bot.web.auth.oauth import GitHubOAuth, OAuthApp
from bot.web.live_log import MAX_STREAMS
from bot.web.pages import Pages
from github_standin import StandIn
from github_standin.standin import CLIENT_ID, CLIENT_SECRET
from handlers.cases import casebook
from handlers.cases.case import end_job
from handlers.context import Context
from handlers.jobs.start import open_case
from handlers.rules import RepositoryRules
from runner.agents import AgentSpec
from runner.db.database import Database
from runner.model.job import Job, Report
from runner.model.machines import Machine
from runner.rows import job_rows
from runner.steps.spool import Spool
from tests.support.clock import Clock
from tests.support.jobs import make_job, open_database, store_report
from tests.support.scripted_github import FAST, app_key_pem
from tests.support.site import AGENTS, SECRET, Page
from tests.support.visitor import APP_ID, NAME, Visitor, open_visitor

HIDDEN = "octo/hidden"
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass
class Browser:
    """Somebody's, with its cookies. It sends what a browser sends of where a form came from."""

    url: str
    session: aiohttp.ClientSession
    page: Page = field(default_factory=lambda: Page(0, {}, ""))

    async def visit(self, path: str, *, follow: bool = True) -> Page:
        """Where a link leads, also through GitHub and back."""
        url = path if path.startswith("http") else self.url + path
        return await self._take(self.session.get(url, allow_redirects=follow))

    async def send(
        self, path: str, fields: Mapping[str, str] = NOTHING, *, origin: str | None = "", follow: bool = True
    ) -> Page:
        """Send a form; `origin` is another site's, or None for a browser that says nothing."""
        headers = {} if origin is None else {"Origin": origin or self.url}
        return await self._take(
            self.session.post(self.url + path, data=fields, headers=headers, allow_redirects=follow)
        )

    async def fill_in(self, path: str, fields: Mapping[str, str] = NOTHING, *, follow: bool = True) -> Page:
        """Send the form of the last page that leads there, with what it holds and what somebody put in."""
        return await self.send(path, {**self.fields(path), **fields}, follow=follow)

    def fields(self, path: str) -> dict[str, str]:
        """The hidden fields of the last page's form that leads there."""
        form = re.search(rf'<form[^>]* action="{re.escape(path)}".*?</form>', self.page.html, re.DOTALL)
        assert form, f"no form leads to {path}: {self.page.text}"
        hidden = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form[0])
        return {name: unescape(value) for name, value in hidden}

    def offers(self, path: str) -> bool:
        """Whether the last page has a form that leads there."""
        return f'action="{path}"' in self.page.html

    async def sign_in(self, login: str, path: str = "/") -> Page:
        """Sign in as somebody, and come back."""
        asked = await self.visit(f"/sign-in?next={path}")
        return await self.choose(asked, login)

    async def choose(self, asked: Page, login: str, *, follow: bool = True) -> Page:
        """Say who one is on GitHub's page."""
        assert f"Sign in as <b>{login}</b>" in asked.html, asked.html
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.html.split("</form>")[0]))
        where = f"{self.last_origin}/login/oauth/authorize"
        data = {name: unescape(value) for name, value in fields.items()} | {"login": login}
        return await self._take(self.session.post(where, data=data, allow_redirects=follow))

    async def _take(self, sent: Any) -> Page:
        async with sent as answer:
            parts = urlsplit(str(answer.url))
            self.last_origin, self.path = f"{parts.scheme}://{parts.netloc}", answer.url.path_qs
            headers = {name: value for name, value in answer.headers.items() if name != "Set-Cookie"}
            self.set_cookies = answer.headers.getall("Set-Cookie", [])
            self.page = Page(answer.status, headers, await answer.text())
        return self.page

    def cookies(self) -> dict[str, str]:
        """What it keeps of the dashboard's."""
        return {cookie.key: cookie.value for cookie in self.session.cookie_jar}


@dataclass
class Dashboard:
    """The dashboard, and the world around it."""

    visitor: Visitor
    database: Database
    context: Context
    url: str
    clock: Clock
    spool: Spool

    @property
    def github(self) -> StandIn:
        return self.visitor.github

    @asynccontextmanager
    async def browser(self, login: str | None = None) -> AsyncIterator[Browser]:
        """A browser of its own; with a login, somebody has signed in there."""
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            browser = Browser(self.url, session)
            if login:
                await browser.sign_in(login)
            yield browser

    async def add(self, report: Report | None = None, **changes: Any) -> Job:
        """A job with its case; the case waits for a note where there is a diff."""
        job = make_job(issue_title="It is <b>broken</b>", created_at=self.clock(), changed_at=self.clock(), **changes)
        async with self.database.write() as connection:
            await job_rows.insert_job(connection, job)
            if job.thread is not None:
                await open_case(connection, self.url, job)
            if report:
                await store_report(connection, report)
            case = await casebook.fetch_case(connection, job.case_key)
            if case and not job.active:
                has_diff = report is not None and report.digest is not None
                await casebook.save_case(connection, end_job(case, job.id, self.clock(), approvable=has_diff))
        return job

    async def fetch_job(self, job_id: str) -> Job:
        async with self.database.read() as connection:
            job = await job_rows.fetch_job(connection, job_id)
        assert job
        return job

    async def jobs(self) -> list[Job]:
        async with self.database.read() as connection:
            return await job_rows.fetch_recent_jobs(connection, 100)


@asynccontextmanager
async def open_dashboard(
    folder: Path,
    *,
    public: bool = True,
    signs_in: bool = True,
    role_lasts_s: float = 0.0,
    none_lasts_s: float = 0.0,
    calls_of_person: int | None = None,
    max_streams: int = MAX_STREAMS,
    public_logs: bool = False,
) -> AsyncIterator[Dashboard]:
    """One public and one private repository; alice may write in both, bob in neither, and root operates."""
    async with open_visitor(folder) as visitor, open_database(folder) as database:
        github, clock = visitor.github, visitor.clock
        github.add_repository(HIDDEN, folder / "widgets.git", private=True)
        github.set_permission(HIDDEN, "alice", "write")
        github.set_permission(HIDDEN, "carol", "read")
        for login in ("bob", "root"):
            github.add_user(login)
        port = find_free_port()
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            client = AppGitHub(
                session, api_url=github.api_url, app_id=APP_ID, private_key=app_key_pem(), now=clock, timings=FAST
            )
            context = replace(make_context(client, database, url, clock), public_logs=public_logs)
            app = OAuthApp(CLIENT_ID, CLIENT_SECRET, github.url, github.api_url)
            oauth = GitHubOAuth(session, app, settles=timedelta(seconds=0.2)) if signs_in else None
            lasts = (role_lasts_s, none_lasts_s, client.list_left)
            auth = AuthConfig(oauth, public, ("root",), github.url, *lasts, calls_of_person=calls_of_person)
            application = web.Application(client_max_size=MAX_FORM)
            spool = Spool(folder / "spool")
            pages = Pages(context, spool, {"gpu-1": 2}, AGENTS, max_streams=max_streams, auth=auth)
            application.router.add_routes(pages.routes())
            application.on_shutdown.append(pages.live.close)
            runner = web.AppRunner(application)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            try:
                yield Dashboard(visitor, database, context, url, clock, spool)
            finally:
                await runner.cleanup()


def make_context(github: AppGitHub, database: Database, url: str, clock: Clock) -> Context:
    names = (NAME, HIDDEN)
    return Context(
        github=github,
        db=database,
        repositories={name: RepositoryRules(name, agent="mine") for name in names},
        agents={"mine": AgentSpec("mine", "command", ("true",))},
        public_url=url,
        secrets=(SECRET,),
        now=clock,
        notify=lambda: None,
        machines={
            "gpu-1": Machine("gpu-1", "/work", host="gpu.internal", user="ptq", serves=frozenset({"public", "private"}))
        },
        signs_in=True,
    )
