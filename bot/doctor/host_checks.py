"""Checks on the service's host: database, data folder, address, and the keys of models."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path

import aiohttp
from sqlalchemy import make_url
from yarl import URL

from bot.config.policy_tables import DashboardTable
from bot.config.settings import Settings
from bot.doctor.findings import Cause, DoctorVerdict, Finding, Part
from bot.gateway.proxy import Upstream
from bot.gateway.requests import Api
from bot.github.session import describe_failure
from bot.operations.context import read_database
from handlers.cases.known_repositories import fetch_numbers
from runner.agents import AgentSpec
from runner.db.database import open_existing_database
from runner.db.errors import DatabaseError, ForeignDatabase, NewDatabase, NoDatabase, OldDatabase, UnavailableDatabase

SERVICE = Part("service")
NEEDED = tuple(Cause(SERVICE.about, check) for check in ("database", "data_dir"))
"""Without these no service can run."""
GB = 1_000_000_000
LITTLE_GB = 1.0
"""The doctor warns if the disk of data_dir has less free space than this."""

KEY_NEEDED = ("claude", "codex", "pi")
"""Kinds of agents that ask their models with a key of the operator, unless the gateway does."""

OWN_FOLDER = "create that folder for the service's account"

DATABASE_FIXES: Mapping[type[DatabaseError], str] = {
    OldDatabase: "stop the service, make a backup, then run: ptq-bot db upgrade",
    NewDatabase: "install the version of ptq-bot that ran last, or a newer one",
    ForeignDatabase: "set [server] database_url to a new database",
    UnavailableDatabase: "start the database server, or correct [server] database_url",
}
WRITE_ACCESS = "give the service's account read and write access to the database, or correct [server] database_url"

TIMEOUT = aiohttp.ClientTimeout(total=10.0)
FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


async def check_service(session: aiohttp.ClientSession, settings: Settings) -> AsyncIterator[Finding]:
    """Check database, data folder, operators and address."""
    yield await _check_database(settings)
    yield _check_folder(settings)
    yield judge_operators(settings.dashboard)
    running = await _find_running(session, settings)
    address = await _check_address(session, settings)
    if running is None and address.verdict is DoctorVerdict.OK:
        running = SERVICE.ok("running", "on another host")
    if running is None:
        fix = "start it: ptq-bot serve (docs/operations.md); if it runs on another host, run the doctor there"
        yield SERVICE.warn("running", "no service is running on this host", fix, *NEEDED)
        return
    yield running
    yield address


async def _check_database(settings: Settings) -> Finding:
    try:
        async with open_existing_database(settings.server.database_url) as database:
            await database.accepts_writes()
    except NoDatabase:
        return _check_new_database(Path(make_url(settings.server.database_url).database or ""))
    except DatabaseError as error:
        return SERVICE.fail("database", str(error), DATABASE_FIXES.get(type(error), WRITE_ACCESS))
    return SERVICE.ok("database", "writable")


async def read_known_repositories(settings: Settings) -> dict[str, int]:
    """The numbers of the repositories that the service knows, by name in lower case; none if it has no database."""
    try:
        async with read_database(settings) as connection:
            return await fetch_numbers(connection)
    except DatabaseError:
        return {}  # `_check_database` says why.


def _check_new_database(file: Path) -> Finding:
    folder = file.parent
    if _may_write(folder):
        return SERVICE.ok("database", f"will be created when the service starts: {file}")
    words = "no write permission" if folder.is_dir() else "the folder does not exist"
    fix = f"{OWN_FOLDER}, or set [server] database_url to another place (docs/operators.md)"
    return SERVICE.fail("database", f"cannot be created in {folder}: {words}", fix)


def _may_write(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _check_folder(settings: Settings) -> Finding:
    folder = settings.server.data_dir
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not _may_write(existing):
        words = "no write permission" if existing.is_dir() else f"{existing} is not a folder"
        fix = f"{OWN_FOLDER}, or set [server] data_dir to another place (docs/operators.md)"
        return SERVICE.fail("data_dir", f"cannot use {folder}: {words}", fix)
    free_gb = shutil.disk_usage(existing).free / GB
    if free_gb < LITTLE_GB:
        return SERVICE.fail("data_dir", f"only {free_gb:.1f} GB free on its disk", "free disk space, or move data_dir")
    return SERVICE.ok("data_dir", f"{free_gb:,.0f} GB free")


def judge_operators(dashboard: DashboardTable) -> Finding:
    """Check whether somebody sees what only operators may see. Pure."""
    if dashboard.client_id is None:
        return SERVICE.ok("operators", "only on this host: nobody can sign in to the pages")
    if not dashboard.operators:
        words = "none: nobody sees deliveries, costs and confidential reports on the pages"
        return SERVICE.warn("operators", words, "add your GitHub login to [dashboard] operators (docs/dashboard.md)")
    return SERVICE.ok("operators", ", ".join(sorted(dashboard.operators)))


async def _find_running(session: aiohttp.ClientSession, settings: Settings) -> Finding | None:
    host = "localhost" if settings.server.host in ("0.0.0.0", "::") else settings.server.host  # noqa: S104
    url = URL.build(scheme="http", host=host, port=settings.server.port, path="/readyz")
    try:
        async with session.get(url, timeout=TIMEOUT) as answer:
            is_ready = answer.status == 200
    except FAILURES:
        return None
    if is_ready:
        return SERVICE.ok("running", "yes")
    fix = f"correct what {url} and the service's log say"
    return SERVICE.fail("running", "not accepting deliveries", fix, *NEEDED)


async def _check_address(session: aiohttp.ClientSession, settings: Settings) -> Finding:
    url = settings.server.public_url
    try:
        async with session.get(f"{url}/healthz", timeout=TIMEOUT) as answer:
            if answer.status == 200:
                return SERVICE.ok("public_url", f"{url} leads to the service")
            words = f"{url} answers {answer.status}"
    except FAILURES as error:
        words = f"{url} does not answer from here ({describe_failure(error)})"
    fix = "correct [server] public_url or the proxy in front, unless only GitHub can reach it"
    return SERVICE.warn("public_url", words, fix, Cause("GitHub App", "webhook"))


async def check_agent(
    session: aiohttp.ClientSession, spec: AgentSpec, upstream: Upstream | None
) -> AsyncIterator[Finding]:
    """Check an agent's key and its models."""
    part = Part(f"agent {spec.name}")
    yield await _check_models(session, part, spec, upstream) if upstream else judge_key(part, spec)


def judge_key(part: Part, spec: AgentSpec) -> Finding:
    """Check the key of an agent that does not use the gateway. Pure."""
    if spec.key_on_machines:
        fix = "add a [gateway] table (docs/gateway.md), or use a separate key with a low limit"
        if spec.kind == "cursor":
            fix = "use a separate key with a low limit: Cursor's program cannot use a gateway"
        return part.warn("key", "the API key is stored on the machines and readable by jobs", fix)
    if spec.kind in KEY_NEEDED:
        words = "no API key, and jobs don't see logins of the machine's account"
        return part.warn("key", words, f"add [agents.{spec.name}.gateway] with the key (docs/gateway.md)")
    return part.ok("key", "no API key configured")


async def _check_models(session: aiohttp.ClientSession, part: Part, spec: AgentSpec, upstream: Upstream) -> Finding:
    speaks_messages = spec.kind == "claude" or spec.gateway_api == "anthropic-messages"
    headers = upstream.sign(Api.MESSAGES if speaks_messages else Api.RESPONSES)
    headers |= {"anthropic-version": "2023-06-01"} if speaks_messages else {}
    try:
        async with session.get(
            f"{upstream.url}/v1/models", headers=headers, timeout=TIMEOUT, allow_redirects=False
        ) as answer:
            status = answer.status
    except FAILURES as error:
        words = f"{upstream.url} does not answer ({describe_failure(error)})"
        return part.fail("models", words, f"fix [agents.{spec.name}.gateway] url, the network, or [proxy]")
    return judge_models(part, spec.name, upstream.url, status)


def judge_models(part: Part, agent: str, url: str, status: int) -> Finding:
    """Judge the answer to a request for the list of models. Pure."""
    table, words = f"[agents.{agent}.gateway]", f"{url}/v1/models answers {status}"
    if status == HTTPStatus.OK:
        return part.ok("models", f"{url} accepts the key")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return part.fail("models", f"{url} rejected the key ({status})", f"fix {table} key")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        fix = "wait; if it happens again, check the account's limits and balance"
        return part.warn("models", f"{words}: rate limit reached", fix)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return part.warn("models", words, "try again; see the vendor's status page")
    if status == HTTPStatus.NOT_FOUND:
        fix = f"there are no models at this address: fix {table} url, without /v1"
        return part.fail("models", words, fix)
    if status in range(300, 400):
        fix = f"set {table} url to the target of the redirect, without /v1; the gateway does not follow redirects"
        return part.fail("models", f"{words}, a redirect", fix)
    return part.fail("models", words, f"fix {table} url, key and headers (see the vendor's documentation)")
