"""What the doctor looks at on the service's own host: its database, its folder, its address, the keys of models."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

import aiohttp
from sqlalchemy import make_url
from yarl import URL

from bot.config.settings import Settings
from bot.doctor.findings import Finding, Part
from bot.gateway.proxy import Upstream
from bot.gateway.requests import Api
from bot.github.session import describe_failure
from runner.agents import AgentSpec
from runner.db.database import open_beside
from runner.db.errors import DatabaseError, NoDatabase, OldDatabase

SERVICE = Part("service")
GB = 1_000_000_000
LITTLE_GB = 1.0
"""Room on the disk of data_dir below which logs of jobs may find none."""

OWN_FOLDER = "make that folder, for the account that the service runs as"

TIMEOUT = aiohttp.ClientTimeout(total=10.0)
FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


async def check_service(session: aiohttp.ClientSession, settings: Settings) -> AsyncIterator[Finding]:
    """Database, folder and address."""
    yield await _check_database(settings)
    yield _check_folder(settings)
    running = await _find_running(session, settings)
    if running is None:
        yield SERVICE.warn("running", "no service answers here", "start it: ptq-bot serve (docs/operations.md)")
        return
    yield running
    yield await _check_address(session, settings)


async def _check_database(settings: Settings) -> Finding:
    try:
        async with open_beside(settings.server.database_url) as database:
            await database.accepts_writes()
    except NoDatabase:
        return _check_new_database(Path(make_url(settings.server.database_url).database or ""))
    except OldDatabase as error:
        return SERVICE.fail("database", str(error), "stop the service, make a backup, then run: ptq-bot db upgrade")
    except DatabaseError as error:
        fix = "mend [server] database_url; let the service's account write there, or start the database's server"
        return SERVICE.fail("database", str(error), fix)
    return SERVICE.ok("database", "it takes writes")


def _check_new_database(file: Path) -> Finding:
    folder = file.parent
    if _may_write(folder):
        return SERVICE.ok("database", f"it is made when the service starts: {file}")
    words = "we may not write to it" if folder.is_dir() else "there is no such folder"
    fix = f"{OWN_FOLDER}, or name another place in [server] database_url (docs/operators.md)"
    return SERVICE.fail("database", f"it cannot be made in {folder}: {words}", fix)


def _may_write(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _check_folder(settings: Settings) -> Finding:
    folder = settings.server.data_dir
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not _may_write(existing):
        words = "we may not write to it" if existing.is_dir() else f"{existing} is no folder"
        fix = f"{OWN_FOLDER}, or name another place in [server] data_dir (docs/operators.md)"
        return SERVICE.fail("data_dir", f"{folder} cannot be used: {words}", fix)
    free_gb = shutil.disk_usage(existing).free / GB
    if free_gb < LITTLE_GB:
        return SERVICE.fail("data_dir", f"its disk has {free_gb:.1f} GB free", "make room, or move data_dir")
    return SERVICE.ok("data_dir", f"{free_gb:,.0f} GB free")


async def _find_running(session: aiohttp.ClientSession, settings: Settings) -> Finding | None:
    host = "localhost" if settings.server.host in ("0.0.0.0", "::") else settings.server.host  # noqa: S104
    url = URL.build(scheme="http", host=host, port=settings.server.port, path="/readyz")
    try:
        async with session.get(url, timeout=TIMEOUT) as answer:
            is_ready = answer.status == 200
    except FAILURES:
        return None
    if is_ready:
        return SERVICE.ok("running", "it takes deliveries")
    return SERVICE.fail("running", "it takes no deliveries just now", "see /readyz and its log for the reason")


async def _check_address(session: aiohttp.ClientSession, settings: Settings) -> Finding:
    url = settings.server.public_url
    try:
        async with session.get(f"{url}/healthz", timeout=TIMEOUT) as answer:
            if answer.status == 200:
                return SERVICE.ok("public_url", f"{url} leads to it")
            words = f"{url} answers {answer.status}"
    except FAILURES as error:
        words = f"{url} does not answer from here ({describe_failure(error)})"
    return SERVICE.warn("public_url", words, "mend it or the proxy in front, unless only GitHub can reach that address")


async def check_agent(
    session: aiohttp.ClientSession, spec: AgentSpec, upstream: Upstream | None
) -> AsyncIterator[Finding]:
    """An agent's key, and its models."""
    part = Part(f"agent {spec.name}")
    yield await _check_models(session, part, spec, upstream) if upstream else judge_key(part, spec)


def judge_key(part: Part, spec: AgentSpec) -> Finding:
    """Where the key of an agent is that does not ask by the gateway. Pure."""
    if spec.key_on_machines:
        fix = "give it a [gateway] table (docs/gateway.md), or a key of its own with a low limit"
        if spec.kind == "cursor":
            fix = "give it a key of its own with a low limit: Cursor's program cannot be led to a gateway"
        return part.warn("key", "its key is on machines, where every job can read it", fix)
    return part.ok("key", "it has none")


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
        words = f"its models do not answer at {upstream.url} ({describe_failure(error)})"
        return part.fail("models", words, f"mend [agents.{spec.name}.gateway] url, the network, or [proxy]")
    return judge_models(part, spec.name, upstream.url, status)


def judge_models(part: Part, agent: str, url: str, status: int) -> Finding:
    """What an agent's models answer to the question which there are. Pure."""
    table, words = f"[agents.{agent}.gateway]", f"{url}/v1/models answers {status}"
    if status == HTTPStatus.OK:
        return part.ok("models", f"{url} takes the key")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return part.fail("models", f"{url} does not take the key ({status})", f"mend {table} key")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        fix = "wait; if it stays so, see what the key's account may ask for, and whether it has money left"
        return part.warn("models", f"{words}: it has no room for more just now", fix)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return part.warn("models", words, "try again; see its status page")
    if status == HTTPStatus.NOT_FOUND:
        fix = f"there are no models at this address: mend {table} url, and leave /v1 out of it"
        return part.fail("models", words, fix)
    if status in range(300, 400):
        fix = f"mend {table} url: give the address that it leads to, without /v1; the gateway follows nobody"
        return part.fail("models", f"{words}, and so leads elsewhere", fix)
    return part.fail("models", words, f"mend {table} url, key and headers: see what its vendor wants to be asked")
