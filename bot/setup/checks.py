"""Checks what a form names before it is saved: GitHub, an agent's program, and its models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from bot.doctor.findings import DoctorVerdict
from bot.doctor.host_checks import check_agent
from bot.gateway.proxy import Upstream
from bot.gateway.requests import RequestRule
from bot.github.session import describe_failure
from bot.setup.answers import AgentAnswer, MachineAnswer, Place
from bot.setup.github_app import GitHubSetupError, connect
from bot.setup.steps import InvalidInput
from bot.setup.trial import PROGRAMS, find_on_machine
from runner.agents import AgentSpec

FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


async def require_github(place: Place) -> None:
    """Ask GitHub for a page that needs no key. Raises `InvalidInput` if nobody, or somebody else, answers."""
    url = f"{place.api_url}/rate_limit"
    try:
        async with connect(place) as session, session.get(url, allow_redirects=False) as answer:
            status, kind = answer.status, answer.content_type
    except GitHubSetupError as error:
        raise InvalidInput(str(error), "ca_file") from None
    except aiohttp.ClientSSLError as error:
        words = f"{place.api_url} has a certificate that this computer does not trust ({_say(error)}). "
        raise InvalidInput(f"{words}Enter the file with the CA that issued it.", "ca_file") from None
    except aiohttp.ClientProxyConnectionError as error:
        raise InvalidInput(f"The proxy does not answer ({_say(error)}).", "proxy") from None
    except FAILURES as error:
        words = f"{place.api_url} does not answer ({_say(error)}). Check the address"
        raise InvalidInput(f"{words}{' and the proxy' * bool(place.proxy)}, and the network.", "web_url") from None
    if status >= 500 or "json" not in kind:
        raise InvalidInput(f"{place.api_url} does not answer like GitHub (status {status}).", "web_url")


def _say(error: Exception) -> str:
    """Why a request got no answer, without the names of errors that Python has."""
    return "no answer in time" if isinstance(error, TimeoutError) else describe_failure(error).rpartition(": ")[2]


async def require_program(agent: AgentAnswer, machines: Sequence[MachineAnswer], folder: Path) -> None:
    """Look for an agent's program on the machines. Raises `InvalidInput` if none has it and at least one lacks it."""
    program = agent.command[0] if agent.command else PROGRAMS[agent.kind]
    found = await asyncio.gather(*(find_on_machine(machine, folder, program) for machine in machines))
    lacking = [machine.name for machine, has in zip(machines, found, strict=True) if has is False]
    if lacking and not any(found):
        raise InvalidInput(
            f"{program} is not installed on {', '.join(lacking)}. Install it there, on the PATH of a login without a "
            "terminal (~/.profile may not be read), or enter its full path as the command.",
            "command" if agent.command else "kind",
            may_insist=True,
        )


async def require_models(place: Place, agent: AgentAnswer) -> None:
    """Ask an agent's models with its key. Raises `InvalidInput` if they do not accept it."""
    if not agent.gateway_url:
        return
    upstream = Upstream(agent.gateway_url, agent.key, {}, RequestRule())
    try:
        async with connect(place) as session:
            async for finding in check_agent(session, AgentSpec(agent.name, agent.kind), upstream):
                if finding.verdict is DoctorVerdict.FAILED:
                    field = "key" if "rejected the key" in finding.words else "gateway_url"
                    raise InvalidInput(f"{finding.words}.", field, may_insist=True)
    except GitHubSetupError as error:
        raise InvalidInput(str(error)) from None
