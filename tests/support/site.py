"""The pages behind a real server, over a real database, and what a browser makes of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Middleware

from bot.web.large_answers import MAX_UNDER_WAY
from bot.web.live_log import MAX_STREAMS
from bot.web.pages import Pages
from handlers.context import Context
from runner.agents import AgentSpec, build_agent
from runner.db.database import Database
from runner.model.job import Job, Report
from runner.model.jobd_answers import Worklog
from runner.model.machines import Outage
from runner.rows import job_rows
from runner.rows.machine_states import drain, save_outage
from runner.rows.worklogs import save_worklog
from runner.steps.spool import Spool
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.meters import make_meter

SECRET = "a secret of the operator"
AGENTS = {
    "mine": build_agent(AgentSpec("mine", "command", ("true",))),
    **{kind: build_agent(AgentSpec(kind, kind)) for kind in ("claude", "codex", "pi")},
}
"""As the operator has configured them."""

PATCH = """\
diff --git a/chunks.py b/chunks.py
index 1d72694..6e9e73f 100644
--- a/chunks.py
+++ b/chunks.py
@@ -1,2 +1,2 @@
 items = 5
--- size
+++ size < 3 & "x"
"""

OUR_SCRIPT = re.compile(r"(/\w+)?/static/(htmx(-sse)?\.min|live|dashboard|drafts)\.js")


def make_report(**changes: Any) -> Report:
    values: dict[str, Any] = {"body": "It is fixed.", "worklog": "", "pr_title": "", "repro": "", "patch": PATCH}
    return Report(**{"job_id": "0123456789", "changes": (), "digest": "ab" * 32, **values, **changes})


@dataclass
class Page(HTMLParser):
    """An answer, and what a browser makes of it. What every page of ours begins with is left out: its scripts are not
    among the tags, and the words and classes of its head are not among those of the page."""

    status: int
    headers: dict[str, str]
    html: str
    class_names: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""
    in_head: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_head = (self.in_head or tag == "body") and tag != "main"
        if not (tag == "script" and OUR_SCRIPT.fullmatch(dict(attrs).get("src") or "")):
            self.tags.append((tag, dict(attrs)))
            self.class_names += [] if self.in_head else (dict(attrs).get("class") or "").split()

    def handle_data(self, data: str) -> None:
        self.text += "" if self.in_head else data

    def links(self) -> list[str]:
        return [attrs["href"] or "" for _, attrs in self.tags if "href" in attrs and attrs.get("class") != "skip"]

    def classes(self) -> list[str]:
        return self.class_names

    def refreshes(self) -> list[str | None]:
        return [attrs["content"] for tag, attrs in self.tags if tag == "meta" and "http-equiv" in attrs]


@dataclass
class Site:
    """The pages behind a real server, over a real database."""

    database: Database
    spool: Spool
    session: aiohttp.ClientSession
    url: str = ""

    async def get(self, path: str, method: str = "GET") -> Page:
        async with self.session.request(method, self.url + path, allow_redirects=False) as answer:
            return Page(answer.status, dict(answer.headers), await answer.text())

    async def status(self) -> dict[str, Any]:
        async with self.session.get(f"{self.url}/status") as answer:
            values: dict[str, Any] = await answer.json()
            return values

    async def add(self, report: Report | None = None, **changes: Any) -> Job:
        job = make_job(**changes)
        async with self.database.write() as connection:
            await job_rows.insert_job(connection, job)
            if report:
                await store_report(connection, report)
        return job

    async def note_outage(self, machine: str, reason: str) -> None:
        async with self.database.write() as connection:
            await save_outage(connection, machine, Outage(reason, True, NOON, NOON, NOON))

    async def drain(self, machine: str) -> None:
        async with self.database.write() as connection:
            await drain(connection, machine, "root", NOON)

    async def take(self, job: Job, **reading: Any) -> None:
        """Note what a job has taken."""
        async with self.database.write() as connection:
            await job_rows.save_meter(connection, make_meter(job.id, **reading))

    async def write_worklog(self, job: Job, mark: str, text: str) -> None:
        """Note what a running agent has written."""
        async with self.database.write() as connection:
            await save_worklog(connection, job.id, Worklog(mark, text, is_cut=False))

    async def keep_log(self, job: Job, stage: str, log: bytes) -> None:
        async with self.database.write() as connection:
            await job_rows.save_log(connection, job.id, stage, job_rows.compress_log(log))


@asynccontextmanager
async def open_site(
    folder: Path,
    public_url: str = "https://ptq.example",
    secrets: Collection[str] = (SECRET,),
    max_streams: int = MAX_STREAMS,
    middlewares: Sequence[Middleware] = (),
    max_under_way: int = MAX_UNDER_WAY,
    *,
    public_logs: bool = True,
) -> AsyncIterator[Site]:
    folder.mkdir(exist_ok=True)
    async with open_database(folder) as database, aiohttp.ClientSession() as session:
        spool = Spool(folder / "spool")
        site = Site(database, spool, session)
        github = cast("Any", None)  # No page asks GitHub.
        context = Context(
            github, database, {}, {}, public_url, secrets, lambda: NOON, lambda: None, public_logs=public_logs
        )
        application = web.Application(middlewares=middlewares)
        slots = {"gpu-1": 2, "gpu-2": 1}
        pages = Pages(context, spool, slots, AGENTS, max_streams=max_streams, max_under_way=max_under_way)
        application.router.add_routes(pages.routes())
        application.on_shutdown.append(pages.live.close)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        site.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield site
        finally:
            await runner.cleanup()
