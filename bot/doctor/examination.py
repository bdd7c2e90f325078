"""Runs the checks of all parts concurrently, and keeps their order."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp

import bot
from bot.config.settings import ConfigError, Settings, load_settings
from bot.doctor.file_checks import check_files
from bot.doctor.findings import MAX_WORDS, Finding, Part, hide_consequences
from bot.doctor.github_checks import check_app, check_repository
from bot.doctor.host_checks import check_agent, check_service, read_known_repositories
from bot.doctor.machine_checks import check_machine
from bot.github import AppGitHub
from bot.github.inspection import QUICK, Inspection
from bot.github.session import open_session
from bot.operations.context import now
from handlers.cases.known_repositories import OwnRepositories
from handlers.text.sanitize import one_line, redact
from runner.characters import show_for_terminal

CONFIGURATION = Part("configuration")

PATIENCE_S = 180.0
"""The most time for one part. If it takes longer, that is reported, and the other parts are shown."""

OURS = Path(bot.__path__[0])


async def examine(config: Path) -> list[Finding]:
    """All findings in display order, without secrets and terminal control characters."""
    try:
        settings = load_settings(config)
    except ConfigError as error:
        fix = f"fix it in {config.name} (see ptq.example.toml)"
        return [CONFIGURATION.fail(config.name, problem, fix) for problem in error.problems]
    found = [CONFIGURATION.ok(config.name, "valid"), *check_files(settings), *await _look(settings)]
    secrets = settings.secret_values()
    return [clean(finding, secrets) for finding in hide_consequences(found)]


async def _look(settings: Settings) -> list[Finding]:
    async with open_session(settings.outbound()) as session:
        known = await read_known_repositories(settings)
        looking = [look_at(about, checks) for about, checks in _list_parts(settings, session, known)]
        return [finding for found in await asyncio.gather(*looking) for finding in found]


def _list_parts(
    settings: Settings, session: aiohttp.ClientSession, known: Mapping[str, int]
) -> Iterator[tuple[str, AsyncIterator[Finding]]]:
    """Each part with its checks."""
    yield "service", check_service(session, settings)
    api_url, app_id, key = settings.github.api_url, settings.github.app_id, settings.github.read_private_key()
    mine = OwnRepositories(known)
    inspection = Inspection(session, api_url=api_url, app_id=app_id, private_key=key, now=now, repositories=mine)
    yield "GitHub App", check_app(inspection, settings)
    github = AppGitHub(
        session, api_url=api_url, app_id=app_id, private_key=key, now=now, timings=QUICK, repositories=mine
    )
    for name in settings.repos:
        yield f"repository {name}", check_repository(inspection, github, settings, name, known)
    for machine in settings.machine_list():
        yield f"machine {machine.name}", check_machine(settings, machine)
    upstreams = settings.upstreams()
    for spec in settings.agent_specs():
        yield f"agent {spec.name}", check_agent(session, spec, upstreams.get(spec.name))


async def look_at(about: str, checks: AsyncIterator[Finding]) -> list[Finding]:
    """The findings of one part. If a check hangs or raises, that is a finding. An error's text may hold a secret."""
    found: list[Finding] = []
    fix = "try again; if it fails again, this is a bug in ptq-bot: please report it with this message"
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for finding in checks:
                found.append(finding)
    except TimeoutError:
        found.append(Part(about).fail("answer", f"no result within {PATIENCE_S:.0f} seconds", fix))
    except Exception as error:
        found.append(Part(about).fail("answer", f"the check failed: {describe_error(error)}", fix))
    return found


def describe_error(error: Exception) -> str:
    """The error, and the line in our code that raised it."""
    steps = traceback.extract_tb(error.__traceback__)[1:]
    ours = [step for step in steps if Path(step.filename).is_relative_to(OURS)] or steps
    where = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    return f"{type(error).__name__}{where}: {error}"


def clean(finding: Finding, secrets: frozenset[str]) -> Finding:
    """Remove secrets, and then shorten the texts: half a secret would not be recognized. Pure."""
    words, fix = (show_for_terminal(redact(text, secrets)) for text in (finding.words, finding.fix))
    return replace(finding, words=one_line(words, MAX_WORDS), fix=fix)
