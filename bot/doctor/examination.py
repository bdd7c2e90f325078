"""Runs every check of the doctor, those of different parts side by side, and keeps their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from bot.config import ConfigError, Settings, load_settings
from bot.doctor.findings import Finding, Part
from bot.doctor.github_checks import check_app, check_repository
from bot.doctor.host_checks import check_agent, check_service
from bot.doctor.machine_checks import check_machine
from bot.github import AppGitHub
from bot.github.inspection import QUICK, Inspection
from bot.github.session import open_session
from bot.reports import show_for_terminal
from handlers.sanitize import redact

CONFIGURATION = Part("configuration")

PATIENCE_S = 90.0
"""For one part: whatever hangs is told of, and keeps nothing else from being told."""


async def examine(config: Path) -> list[Finding]:
    """Everything that was found, in the order in which it is shown: no secret in it, and nothing for a terminal."""
    try:
        settings = load_settings(config)
    except ConfigError as error:
        fix = "mend it there; ptq.example.toml explains every key"
        return [CONFIGURATION.fail(config.name, problem, fix) for problem in error.problems]
    found = [CONFIGURATION.ok(config.name, "it can be used"), *await _look(settings)]
    return [_clean(finding, settings) for finding in found]


async def _look(settings: Settings) -> list[Finding]:
    async with open_session(settings.way_out()) as session:
        looking = [_bound(about, checks) for about, checks in _list_parts(settings, session)]
        return [finding for found in await asyncio.gather(*looking) for finding in found]


def _list_parts(settings: Settings, session: aiohttp.ClientSession) -> Iterator[tuple[str, AsyncIterator[Finding]]]:
    """Every part, with what looks at it."""
    yield "service", check_service(session, settings)
    api_url, app_id, key = settings.github.api_url, settings.github.app_id, settings.private_key()
    inspection = Inspection(session, api_url=api_url, app_id=app_id, private_key=key, now=_now)
    yield "GitHub App", check_app(inspection, settings)
    github = AppGitHub(session, api_url=api_url, app_id=app_id, private_key=key, now=_now, timings=QUICK)
    for name in settings.repos:
        yield f"repository {name}", check_repository(inspection, github, settings, name)
    for machine in settings.machine_list():
        yield f"machine {machine.name}", check_machine(settings, machine)
    upstreams = settings.upstreams()
    for spec in settings.agent_specs():
        yield f"agent {spec.name}", check_agent(session, spec, upstreams.get(spec.name))


def _now() -> datetime:
    return datetime.now(UTC)


async def _bound(about: str, checks: AsyncIterator[Finding]) -> list[Finding]:
    """What was found out of one part; and where it hangs or stumbles, that."""
    found: list[Finding] = []
    fix = "try again; if it stays so, tell us what the service's log says"
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for finding in checks:
                found.append(finding)
    except TimeoutError:
        found.append(Part(about).fail("answer", f"it did not end within {PATIENCE_S:.0f} seconds", fix))
    except Exception as error:
        found.append(Part(about).fail("answer", f"the check itself failed ({type(error).__name__})", fix))
    return found


def _clean(finding: Finding, settings: Settings) -> Finding:
    secrets = settings.secret_values()
    words, fix = (show_for_terminal(redact(text, secrets)) for text in (finding.words, finding.fix))
    return Finding(finding.about, finding.check, finding.verdict, words, fix)
